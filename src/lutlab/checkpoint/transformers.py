"""Registrations with which transformers loads a saved model: a quantization config and its quantizer, named "lutlab".

config.json of such a model holds, beside the architecture's own keys,

    "quantization_config": {"quant_method": "lutlab", "format": 2, "layers": {<path of a layer>: <its layout>, …}}

with one entry a QuantLinear, {"format": "uniform", …} (modules.py says what a layout is); layers that are not named
stay as the architecture has them. Importing this module registers both. Files that lutlab.save wrote are compared with
their SHA256SUMS; transformers' own save_pretrained writes none, and such a folder is loaded with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from lutlab import embeddings
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import SUMS, check_sums, has_sums
from lutlab.base.lazy import PreTrainedModel
from lutlab.embeddings import QuantEmbedding, TiedHead
from lutlab.models.families import family_of, weight_of
from lutlab.models.files import check_names
from lutlab.modules import QuantLinear

log = logging.getLogger(__name__)
METHOD = "lutlab"
FORMAT = 2
CURE = (
    "the folder is damaged, or was changed after lutlab.save: copy it again; if the change is meant (an edited "
    f"config.json, another tokenizer), accept it by `rm {SUMS}; sha256sum * > {SUMS}` in the folder"
)
SAFETENSORS = {
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
}


@register_quantization_config(METHOD)
class LutlabConfig(QuantizationConfigMixin):
    """Layouts of the quantized layers by path.

    Raises:
        LutlabError: `layers` is not a mapping, or another version of lutlab wrote it.
    """

    def __init__(
        self,
        layers: Mapping[str, Mapping[str, Any]] | None = None,
        format: int = FORMAT,
        quant_method: str = METHOD,
        **unknown: Any,
    ) -> None:
        if format != FORMAT or unknown or not isinstance(layers, Mapping):
            raise LutlabError(
                f"quantization_config is of format {format!r} with keys {sorted(['layers', *unknown])}: this lutlab "
                f"reads format {FORMAT}, whose only other key `layers` maps paths to layouts (format 1 stored uniform "
                "codes as binary ones); use the version of lutlab that saved the model, or quantize and save it again"
            )
        self.quant_method = quant_method  # type: ignore[assignment] # its enumeration is of transformers' own
        self.format = format
        self.layers = {name: dict(layout) for name, layout in layers.items()}


@register_quantizer(METHOD)
class LutlabQuantizer(HfQuantizer):
    """Puts empty QuantLinears where the config names them; transformers then loads their buffers."""

    requires_calibration = True
    quantization_config: LutlabConfig

    def _process_model_before_weight_loading(
        self,
        model: PreTrainedModel,
        checkpoint_files: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Replace layers; the files must then hold every buffer, in the shape and dtype the config says.

        Raises:
            LutlabError: config, architecture and files do not belong together, or are not those of SHA256SUMS.
        """
        if checkpoint_files is not None:
            _check_sums([Path(path) for path in checkpoint_files])
        layers = dict(empty_layers(model, self.quantization_config.layers))
        for name, module in layers.items():
            # GPT-2 initializes the weight of every c_proj before it looks for missing ones: give it one to leave alone
            module.weight = torch.empty(0)
            module.weight._is_hf_initialized = True
            model.set_submodule(name, module)
        self._tied = embeddings.begin_tie(model)
        if checkpoint_files is not None:
            _check_files(model, layers, checkpoint_files)

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> None:
        for name in self.quantization_config.layers:
            del model.get_submodule(name).weight
        if self._tied:
            embeddings.tie(model)

    def is_serializable(self) -> bool:
        """Yes: model.save_pretrained writes what lutlab.save does."""
        return True

    @property
    def is_trainable(self) -> bool:
        """No: codes have no gradient."""
        return False


def declare(model: PreTrainedModel) -> None:
    """Say in the model's config which layers are quantized, and how; save_pretrained writes that down.

    Raises:
        LutlabError: there are none.
    """
    layers = quantized_layers(model)
    model.config.quantization_config = LutlabConfig({n: m.layout() for n, m in layers.items()})


def quantized_layers(model: PreTrainedModel) -> dict[str, QuantLinear]:
    """The quantized layers by path.

    Raises:
        LutlabError: there are none.
    """
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, QuantLinear) and not isinstance(module, TiedHead)
    }
    if not layers:
        raise LutlabError(
            f"no layer of this {type(model).__name__} is quantized: call lutlab.quantize first; a model in full "
            "precision saves itself, with model.save_pretrained(folder)"
        )
    return layers


def empty_layers(
    model: PreTrainedModel, layers: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, QuantLinear]]:
    """Layers on the meta device for the layouts of a config, each by its path; the model still has its own.

    Raises:
        LutlabError: a layout is damaged, or does not fit the model's layer.
    """
    for name, layout in layers.items():
        try:
            yield name, _skeleton(model, name, layout)
        except LutlabError as error:
            raise LutlabError(f"quantization_config, layer {name}: {error}") from error


def _skeleton(model: PreTrainedModel, name: str, layout: Mapping[str, Any]) -> QuantLinear:
    """An empty layer that fits where `name` is; its bias has the dtype that the model is loaded in.

    A layer may have a bias that the architecture has not: layers of other projects' files came with one.
    """
    try:
        replaced = model.get_submodule(name)
    except AttributeError as error:
        raise LutlabError(
            f"{type(model).__name__} has no such layer: load the model with AutoModelForCausalLM; else its config "
            "belongs to another one"
        ) from error
    cls = QuantEmbedding if isinstance(replaced, nn.Embedding) else QuantLinear
    module = cls.from_layout(layout, "meta")
    if not hasattr(replaced, "weight") or weight_of(replaced).ndim != 2:
        raise LutlabError(f"{type(replaced).__name__} is not a linear layer")
    biased, weight = getattr(replaced, "bias", None) is not None, weight_of(replaced)
    expected, size = tuple(weight.shape), (module.out_features, module.in_features)
    if size != expected or (biased and module.bias is None):
        raise LutlabError(
            f"[N, K] = {list(size)} with bias={module.bias is not None}, but the rest of config.json says "
            f"{list(expected)} with bias={biased}: the two belong to different models"
        )
    if isinstance(module, QuantEmbedding):
        module.like = torch.empty(0, dtype=weight.dtype, device="meta")
    if module.bias is not None:
        bias = torch.empty(module.out_features, dtype=weight.dtype, device="meta")
        module.bias = nn.Parameter(bias, requires_grad=False)
    return module


def _check_sums(files: Sequence[Path]) -> None:
    """Compare the folder of the weights with its SHA256SUMS; without one, say so."""
    folder = files[0].parent
    if has_sums(folder):
        check_sums(folder, CURE, used=["config.json", *(path.name for path in files)])
    else:
        log.warning(
            "%s has no %s, so that damage to its files would not be noticed: lutlab.save writes one; for files that "
            "you trust, `sha256sum * > %s` there",
            folder,
            SUMS,
            SUMS,
        )


def _check_files(
    model: PreTrainedModel, layers: Mapping[str, QuantLinear], files: Sequence[str]
) -> None:
    """Compare the files' headers with the empty layers, which would otherwise keep whatever memory holds, and with the
    model: transformers would leave tensors out that it has no place for, and draw those that are missing.
    """
    stored: dict[str, tuple[str, list[int]]] = {}
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118, no mapping
                stored |= {key: (s.get_dtype(), s.get_shape()) for key, s in slices.items()}
        except (OSError, SafetensorError) as error:
            raise LutlabError(
                f"cannot read {path} ({error}): it is damaged or truncated; copy it again"
            ) from error
    for name, layer in layers.items():
        for buffer, tensor in layer.packed.buffers.items():
            if tensor is None:
                continue
            key = f"{name}.{buffer}"
            expected = (SAFETENSORS[tensor.dtype], list(tensor.shape))
            if stored.get(key) != expected:
                raise LutlabError(
                    f"{key} is {stored.get(key, 'not there')} in the files, but config.json says {expected}: "
                    "a file is missing, or they belong to different models"
                )
    places = model.state_dict().keys()
    missing = places - stored.keys() - model.all_tied_weights_keys.keys()
    if type(model).__name__ not in (model.config.architectures or ()):
        missing = set()  # a new head, which is drawn
    lacking = dict.fromkeys(missing, "has no such weight")
    blocks = family_of(model.config).blocks
    check_names(Path(files[0]).parent, lacking, stored.keys() - places, places, blocks)
