"""vLLM plug-in: a model that lutlab.save wrote is served by vLLM, its linear layers multiplied by lutlab's kernels.

    entry point vllm.general_plugins -> register() -> quantization method "lutlab", which config.json names by itself

vLLM fuses q, k and v, and gate and up: their packed weights are joined (formats/cut.py), or, where their layouts
differ, multiplied one after the other. One GPU a stage: what tensor parallelism would cut is refused, pipeline
parallelism cuts between layers. vLLM's classes are imported in register() alone: it is no dependency.

vLLM keeps compiled graphs on disk for later processes. Its graphs see one operation a layer, vllm_linear, which finds
the layer by its name, and not by a number that another process may give to another one.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lutlab import registry
from lutlab.errors import LutlabError
from lutlab.formats.contract import Format
from lutlab.formats.cut import joined
from lutlab.modules import QuantLinear

log = logging.getLogger(__name__)
_LIBRARY = torch.library.Library("lutlab", "FRAGMENT")
_LIBRARY.define("vllm_linear(Tensor x, Tensor? bias, str name, int rows) -> Tensor")
_LAYERS: weakref.WeakValueDictionary[str, torch.nn.Module] = weakref.WeakValueDictionary()
METHOD = "lutlab"
ORDER = {"q": 0, "k": 1, "v": 2}  # vLLM numbers all other parts
DTYPES = (torch.float16, torch.bfloat16, torch.float32)  # of the GPU kernels


def register() -> None:
    """Make vLLM know the method; every process of a server calls it, perhaps more than once."""
    from vllm.model_executor.layers import linear, quantization
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

    if METHOD in quantization.QUANTIZATION_METHODS:
        return
    method = type("LutlabLinearMethod", (LinearMethod, linear.LinearMethodBase), {})

    class LutlabConfig(Config, QuantizationConfig):
        """Layouts of the quantized layers."""

        def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
            if not isinstance(layer, linear.LinearBase):
                return None
            parts = self.parts(prefix)
            return method(prefix, parts) if parts else linear.UnquantizedLinearMethod()

    quantization.register_quantization_config(METHOD)(LutlabConfig)


class Config:
    """The part of vLLM's QuantizationConfig that is lutlab's.

    Attributes:
        layers: path of each quantized layer in the checkpoint -> its layout.
        packed_modules_mapping: vLLM's, name of a fused layer -> names of its parts; it sets it.
    """

    packed_modules_mapping: Mapping[str, Sequence[str]]

    def __init__(self, layers: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__()
        self.layers = layers

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Config:
        """The configuration from `quantization_config` of config.json.

        Raises:
            LutlabError: another version of lutlab wrote it.
        """
        from lutlab.checkpoint.transformers import LutlabConfig

        return cls(LutlabConfig(**config).layers)

    def get_name(self) -> str:
        """Name of the quantization method."""
        return METHOD

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """Dtypes of x that the kernels take."""
        return list(DTYPES)

    @classmethod
    def get_min_capability(cls) -> int:
        """Least compute capability, sm_80."""
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        """No file besides config.json."""
        return []

    def parts(self, prefix: str) -> list[dict[str, Any]]:
        """Layouts of the layers of which vLLM makes one; none where they are not quantized.

        Raises:
            LutlabError: only some of them are quantized.
        """
        path, _, name = prefix.rpartition(".")
        names = self.packed_modules_mapping.get(name, [name])
        found = [self.layers.get(f"{path}.{one}") for one in names]
        if any(found) and not all(found):
            raise LutlabError(
                f"{prefix}: of {', '.join(names)} only some are quantized, and vLLM makes one layer of them: quantize "
                "all or none (skip=)"
            )
        return [dict(one) for one in found if one]


class LinearMethod:
    """The part of vLLM's LinearMethodBase that is lutlab's: of one fused layer, or of one that is not.

    Args:
        name: name of the layer in the model.
        layouts: layouts of its parts, in vLLM's order.
    """

    def __init__(self, name: str, layouts: Sequence[Mapping[str, Any]]) -> None:
        self.name = name
        self.empty = [_empty(layout) for layout in layouts]

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: Sequence[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **_: Any,
    ) -> None:
        """Give the layer a parameter for each buffer of the format; a loaded tensor is kept beside it, by its part.

        Raises:
            LutlabError: tensor parallelism, a checkpoint of other sizes, or a second model with a layer of this name.
        """
        if (input_size_per_partition, sum(output_partition_sizes)) != (input_size, output_size):
            raise LutlabError(
                "lutlab's layers are not cut by vLLM: serve with tensor_parallel_size=1 (pipeline_parallel_size shares "
                "a model out by layers), or decode with lutlab itself on several GPUs (docs/how-to/parallel.md)"
            )
        sizes = sum(one.shape[0] for one in self.empty), self.empty[0].shape[1]
        if sizes != (output_size, input_size):
            raise LutlabError(
                f"config.json has {sizes[0]} x {sizes[1]} for a layer of {output_size} x {input_size}: it belongs to "
                "another model; copy the folder again"
            )
        if _LAYERS.setdefault(self.name, layer) is not layer:
            raise LutlabError(
                f"{self.name} is a layer of two models in this process: serve one that lutlab has quantized, and a "
                "draft model in full precision"
            )
        layer.lutlab_dtype, layer.lutlab_loaded = params_dtype, {}
        for name in dict.fromkeys(
            n for one in self.empty for n, b in one.buffers.items() if b is not None
        ):
            parameter = torch.nn.Parameter(torch.empty(0), requires_grad=False)
            parameter.weight_loader = _keep(layer.lutlab_loaded, name)
            layer.register_parameter(name, parameter)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Make the layer's product ready, of all parts together where they can be joined.

        Raises:
            LutlabError: a buffer is missing, or not what config.json says.
        """
        loaded = layer.lutlab_loaded
        keys = sorted(loaded, key=lambda part: ORDER.get(part, part or 0))
        if len(keys) != len(self.empty):
            raise LutlabError(
                f"{len(keys)} parts of a layer were loaded, and it has {len(self.empty)}: the folder is damaged"
            )
        parts = [_filled(one, loaded.pop(key)) for one, key in zip(self.empty, keys, strict=True)]
        try:
            parts = [joined(parts)] if len(parts) > 1 else parts
        except LutlabError as error:
            log.info("a product for each part of a fused layer: %s", error)
        layer.lutlab_products = tuple(QuantLinear(one, None) for one in parts)  # no submodules
        for one in layer.lutlab_products:
            one.prepare(1, layer.lutlab_dtype)

    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The product x [..., K] -> [..., N], parts side by side."""
        rows = sum(one.shape[0] for one in self.empty)
        return torch.ops.lutlab.vllm_linear(x, bias, self.name, rows)


@torch.library.impl(_LIBRARY, "vllm_linear", "CompositeExplicitAutograd")
def _vllm_linear(x: torch.Tensor, bias: torch.Tensor | None, name: str, rows: int) -> torch.Tensor:
    found = [one(x) for one in _LAYERS[name].lutlab_products]
    y = found[0] if len(found) == 1 else torch.cat(found, -1)
    return y if bias is None else y + bias


@torch.library.register_fake("lutlab::vllm_linear")
def _vllm_linear_shape(
    x: torch.Tensor, bias: torch.Tensor | None, name: str, rows: int
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], rows)


def _empty(layout: Mapping[str, Any]) -> Format:
    """The layout of a layer as config.json has it, without numbers; the bias is vLLM's."""
    rest = {key: value for key, value in layout.items() if key not in ("format", "bias_dtype")}
    return registry.lookup("format", str(layout.get("format"))).from_layout(rest, "meta")


def _keep(loaded: dict[Any, dict[str, torch.Tensor]], name: str) -> Any:
    """The loader of a parameter: called with a part's tensor, it moves it to the parameter's device."""

    def load(parameter: torch.Tensor, tensor: torch.Tensor, part: Any = None) -> None:
        loaded.setdefault(part, {})[name] = tensor.to(parameter.device)

    return load


def _filled(empty: Format, loaded: Mapping[str, torch.Tensor]) -> Format:
    """A weight of a layout with the buffers that were loaded."""
    for name, expected in empty.buffers.items():
        if expected is None:
            continue
        found = loaded.get(name)
        if found is None or (found.shape, found.dtype) != (expected.shape, expected.dtype):
            said = "is missing" if found is None else f"is {found.dtype} {list(found.shape)}"
            raise LutlabError(
                f"{name} {said}, and config.json says {expected.dtype} {list(expected.shape)}: the folder is damaged, "
                "or its files are of different models; copy it again"
            )
    return empty.with_buffers(loaded)
