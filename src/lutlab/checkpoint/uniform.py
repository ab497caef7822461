"""Common ground of the exports: the uniform form of a model's quantized layers, and a folder in transformers' form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lutlab.checkpoint.saving import new_folder
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.errors import LutlabError
from lutlab.formats import name_of
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.uniform import PackedUniform, to_uniform
from lutlab.lazy import PreTrainedModel, PreTrainedTokenizerBase, torch
from lutlab.modules import QuantLinear
from lutlab.tensors import UniformTensor


def uniform_of(name: str, layer: QuantLinear) -> UniformTensor:
    """A layer's weight as scale * (codes - zero_point), with zero_point in 0 .. 2^q-1.

    Raises:
        LutlabError: it has no such form; the message says why.
    """
    packed, tensor = layer.packed, None
    if isinstance(packed, PackedUniform):
        tensor = packed.unpack()
    elif isinstance(packed, PackedBCQ):
        tensor = to_uniform(packed.unpack())
    if tensor is None:
        raise LutlabError(
            f"{name}: its codes are not uniform (those of format {name_of(packed)} are where alpha_b = 2^b alpha_0, "
            "with a matching offset, LUT-GEMM Eq. 5), and this layout can only hold uniform weights: export a model of "
            "method=rtn or gptq, or keep this one with lutlab.save"
        )
    top = 2**tensor.bits - 1
    low, high = int(tensor.zero_point.min()), int(tensor.zero_point.max())
    if low < 0 or high > top:
        raise LutlabError(
            f"{name}: zero points from {low} to {high}, but this layout keeps them in {tensor.bits} bits, 0 to {top}: "
            "quantize with a grid that contains 0 (method=rtn method.variant=gptq), or keep this model with lutlab.save"
        )
    return tensor


def write(
    model: PreTrainedModel,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None,
    config: Mapping[str, Any],
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
) -> None:
    """Write the model with `tensors` [layer][name] in place of its quantized layers' buffers; biases stay.

    Raises:
        LutlabError: the folder is not empty, or cannot be written.
    """
    layers = quantized_layers(model).items()
    packed = {f"{name}.{buffer}" for name, layer in layers for buffer in layer.packed.buffers}
    state = {key: tensor for key, tensor in model.state_dict().items() if key not in packed}
    for layer, by_name in tensors.items():
        state |= {f"{layer}.{name}": tensor.contiguous() for name, tensor in by_name.items()}
    ours = getattr(model.config, "quantization_config", None)
    try:
        with new_folder(folder) as draft:
            model.config.quantization_config = dict(config)
            model.save_pretrained(draft, state_dict=state)
            if tokenizer is not None:
                tokenizer.save_pretrained(draft)
    finally:
        if ours is None:
            del model.config.quantization_config
        else:
            model.config.quantization_config = ours
