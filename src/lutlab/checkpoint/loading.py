"""Load a quantized model from a folder: what lutlab.save wrote, bit for bit, or another project (foreign/)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError

from lutlab.base import arguments
from lutlab.base.devices import device_named
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import check_file, check_sums, has_sums
from lutlab.base.lazy import PreTrainedConfig, PreTrainedModel, nn
from lutlab.checkpoint.foreign import gguf_packed
from lutlab.checkpoint.foreign.reading import load_foreign
from lutlab.checkpoint.transformers import CURE, METHOD, LutlabConfig, empty_layers
from lutlab.embeddings import QuantEmbedding
from lutlab.gguf.folder import is_gguf
from lutlab.models.families import family_of, model_class
from lutlab.models.files import ANYBCQ, Shards, quantization_of, weight_files
from lutlab.models.load import check_loaded
from lutlab.models.pretrained import config_of, model_of
from lutlab.models.resident import placed
from lutlab.models.streamed import Streamed, assign, check_tied, finish, outside, skeleton

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


def load(
    folder: str | Path, dtype: torch.dtype | str = "auto", device: str = "cpu"
) -> PreTrainedModel:
    """Load a quantized model, in evaluation mode: what `save` wrote, or another project (foreign/ says which).

    Weights of others are packed as uniform codes, those of BPDQ and AnyBCQ as binary ones, without loss:
    `packed.dequantize()` of uniform codes, rounded to the dtype of the file's scales, is what the layout's own reader
    makes (GPTQ, AWQ: float16 products), and of binary codes the layout's formula, rounded once to float32 (planes.py).
    `save` writes them as ours.

    Args:
        folder: folder with config.json and safetensors, or a GGUF file.
        dtype: dtype of everything that is not quantized; `auto` is the one it was saved in. Packed weights never
            change.
        device: device of the model.

    Raises:
        LutlabError: no such device here; weights that are not quantized, a layout that lutlab does not read, zero
            points that readers disagree on; files that are missing, truncated, of another model, or not those of the
            folder's SHA256SUMS.
    """
    folder, chosen, device = _folder(folder), _dtype(dtype), device_named(device)
    quantization = _quantization(folder)
    if (quantization or {}).get("quant_method") == METHOD:
        return placed(_load_ours(folder, chosen or "auto"), device)
    if has_sums(folder):  # an export; or lutlab's own, whose config.json does not say so any more
        check_sums(folder, CURE, used=["config.json"])
    config, saved = _config(folder)
    chosen = chosen or saved or torch.float16  # that of the scales of all these layouts
    return load_foreign(folder, config, quantization, chosen, device)


def load_mapped(
    folder: str | Path, dtype: torch.dtype | str = "auto"
) -> tuple[PreTrainedModel, Streamed]:
    """A model, and its blocks, which stay in their files until they are opened: only pages that are looked at are read.

    Embeddings and norms are in memory from the beginning; an output head of its own is the file's pages too. Files are
    not compared with SHA256SUMS, for which they would be read: check_sums, or one rank a file, does that.

    Args:
        folder: folder that lutlab.save wrote, or of a model in full precision; with config.json and safetensors.
        dtype: dtype of everything that is not quantized; `auto` is the one it was saved in.

    Raises:
        LutlabError: the weights are not quantized, or in another project's layout; files are missing, truncated, of
            another model, or not those of the folder's SHA256SUMS.
    """
    folder, chosen = _folder(folder), _dtype(dtype)
    quantization = _quantization(folder)
    method = (quantization or {}).get("quant_method", METHOD)
    if method != METHOD:
        raise LutlabError(
            f"{folder} is quantized in the layout of {method}, which is packed anew while it is loaded: "
            "lutlab.save(lutlab.load(folder), <new folder>) once, and give that"
        )
    config, saved = _config(folder)
    model = skeleton(config, chosen or saved or torch.float32, folder)
    layouts = LutlabConfig(**quantization).layers if quantization else {}
    for name, layer in empty_layers(model, layouts):
        if isinstance(layer, QuantEmbedding):
            raise LutlabError(
                f"{folder}: its table of tokens is quantized, and only dense ones are read block by block: save the "
                "model without embeddings="
            )
        model.set_submodule(name, layer)
    shards = Shards(folder, model.base_model_prefix)
    tied = model.all_tied_weights_keys
    shards.check([n for n in model.state_dict() if n not in tied], family_of(config).blocks)
    check_tied(folder, model, shards)

    def stored(name: str, expected: torch.Tensor, *, packed: bool = False) -> torch.Tensor:
        """A tensor of the files; what is not packed has the model's dtype."""
        tensor = shards.mapped(name)
        if tensor.shape != expected.shape or (packed and tensor.dtype != expected.dtype):
            raise LutlabError(
                f"{folder}: {name} is {tensor.dtype} {list(tensor.shape)} in the files, but config.json says "
                f"{expected.dtype} {list(expected.shape)}: the two belong to different models; copy the folder again"
            )
        return tensor if packed else tensor.to(expected.dtype)

    def fill(block: nn.Module, prefix: str) -> None:
        parameters = dict(block.named_parameters())
        tensors = {
            prefix + name: stored(prefix + name, expected, packed=name not in parameters)
            for name, expected in block.state_dict().items()
        }
        assign(block, prefix, tensors)

    names = {module: name for name, module in model.named_modules()}
    head = model.get_output_embeddings()
    for module in outside(model):
        prefix = f"{names[module]}."
        named = {prefix + n: p for n, p in module.named_parameters(recurse=False)}
        tensors = {name: stored(name, p) for name, p in named.items() if name not in tied}
        if module is not head:
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        assign(module, prefix, tensors)
    return finish(model, "cpu"), Streamed(model, fill, "cpu")


def _folder(path: Any) -> Path:
    """Check the argument `folder`; a GGUF file is unpacked into one."""
    folder = arguments.path("folder", path)
    return gguf_packed.unpacked(folder) if is_gguf(folder) else folder


def _quantization(folder: Path) -> dict[str, Any] | None:
    """The quantization config of a folder with the files of a model."""
    if not (folder / "config.json").is_file():
        raise LutlabError(f"no config.json in {folder}: give the folder of a quantized model")
    if has_sums(folder):  # the other files are compared before a weight is read
        check_file(folder, "config.json", CURE)
    quantization = quantization_of(folder)
    weight_files(folder)
    return quantization


def _dtype(dtype: Any) -> torch.dtype | None:
    """Check the argument `dtype`; None is `auto`."""
    if not isinstance(dtype, torch.dtype):
        arguments.instance("dtype", dtype, str, "auto, float16, bfloat16 or float32")
    if dtype == "auto":
        return None
    named = DTYPES.get(dtype, dtype)
    if named not in DTYPES.values():
        raise LutlabError(
            f"dtype is {arguments.described(dtype)}: give auto, or one of {', '.join(DTYPES)}"
        )
    return named


def _config(folder: Path) -> tuple[PreTrainedConfig, torch.dtype | None]:
    """The architecture of a folder, without what it says of quantized weights, and the dtype that it names."""
    try:
        config = config_of(folder)
    except (OSError, ValueError) as error:
        raise _damaged(folder, error) from error
    for key in ("quantization_config", ANYBCQ):
        vars(config).pop(key, None)
    return config, cast("torch.dtype | None", config.dtype)  # a name is a dtype once it is read


def _load_ours(folder: Path, dtype: torch.dtype | str) -> PreTrainedModel:
    try:
        config = config_of(folder)
        model, info = model_of(
            model_class(config),
            folder,
            dtype=dtype,
            ignore_mismatched_sizes=True,  # reported in info, with the names
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise _damaged(folder, error) from error
    check_loaded(model, info, folder)
    return model


def _damaged(folder: Path, error: Exception) -> LutlabError:
    cause = str(error).strip().partition("\n")[0]
    return LutlabError(
        f"cannot load {folder} ({type(error).__name__}: {cause}): files are damaged, truncated or of another model; "
        "copy the folder again"
    )
