"""compressed-tensors `pack-quantized` (llm-compressor, vLLM): asymmetric integers by group or by row.

    W[n, k] = weight_scale[n, k // g] * (codes[n, k] - zero_point[n, k // g])

    weight_packed     [N, ceil(K q / 32)] int32   row n: its codes as a stream of bits (formats/code_words.py)
    weight_zero_point [ceil(N q / 32), G] int32   column j: the zero points of group j as a stream of bits
    weight_scale      [N, G]                      weight_shape [2] int64: N, K

Its readers count signed: they take 2^(q-1) from codes and zero points alike. transformers 5.23 reads asymmetric
weights with quantization_config=CompressedTensorsConfig(dequantize=True) only, and then one (q, g) a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lutlab.checkpoint.transformers import quantized_layers
from lutlab.checkpoint.uniform import uniform_of, write
from lutlab.errors import LutlabError
from lutlab.formats.code_words import pack_words
from lutlab.tensors import UniformTensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def export_compressed_tensors(
    model: PreTrainedModel, folder: str | Path, tokenizer: PreTrainedTokenizerBase | None = None
) -> None:
    """Write a uniformly quantized model in the pack-quantized format of compressed-tensors.

    Args:
        model: any of its nn.Linear layers quantized, each with its own q and g.
        folder: new, or empty.
        tokenizer: saved beside the model.

    Raises:
        LutlabError: the layout cannot hold this model; the message says why. Or the folder cannot be written.
    """
    layers = quantized_layers(model)
    _check_linear(model, list(layers))
    tensors, groups = {}, {}
    for name, layer in layers.items():
        tensor = uniform_of(name, layer)
        tensors[name] = pack(name, tensor, model.dtype)
        groups.setdefault((tensor.bits, _group_size(tensor)), []).append(name)
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{i}": _scheme(q, g, names) for i, ((q, g), names) in enumerate(groups.items())
        },
        "ignore": [],
    }
    write(model, folder, tokenizer, config, tensors)


def pack(name: str, tensor: UniformTensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The four tensors of a layer; scales in the model's dtype, to which readers convert them.

    Raises:
        LutlabError: channels are in another order, the last group is shorter, or the dtype cannot hold the scales.
    """
    columns = tensor.codes.shape[1]
    g = _group_size(tensor)
    if tensor.order is not None or (g is not None and columns % g):
        what = f"groups of {g} do not divide K = {columns}"
        if tensor.order is not None:
            what = "groups are of reordered channels (act_order)"
        raise LutlabError(
            f"{name}: {what}, which compressed-tensors cannot say: quantize with static groups and a g that divides K, "
            "or use lutlab.save"
        )
    scale = tensor.scale.to(dtype)
    if not torch.equal(scale.double(), tensor.scale.double()):
        raise LutlabError(
            f"{name}: {dtype}, the model's dtype, cannot hold its scales, and readers would round them: export the "
            "model in float32 (model.float())"
        )
    return {
        "weight_packed": pack_words(tensor.codes, tensor.bits),
        "weight_zero_point": pack_words(tensor.zero_point.T, tensor.bits).T,
        "weight_scale": scale,
        "weight_shape": torch.tensor(tensor.codes.shape),
    }


def _group_size(tensor: UniformTensor) -> int | None:
    """None: one group a row, which the format calls `channel`."""
    return None if tensor.scale.shape[1] == 1 else tensor.group_size


def _scheme(q: int, g: int | None, names: list[str]) -> dict[str, Any]:
    weights = {"num_bits": q, "type": "int", "symmetric": False, "group_size": g, "dynamic": False}
    weights["strategy"] = "channel" if g is None else "group"
    return {"targets": names, "weights": weights, "format": "pack-quantized"}


def _check_linear(model: PreTrainedModel, names: list[str]) -> None:
    """compressed-tensors has no place for GPT-2's Conv1D."""
    with torch.device("meta"):
        original = type(model)(model.config)
    for name in names:
        module = original.get_submodule(name)
        if not isinstance(module, nn.Linear):
            raise LutlabError(
                f"{name} is a {type(module).__name__} in this architecture, and compressed-tensors replaces nn.Linear "
                "only: use export_gptq or lutlab.save"
            )
