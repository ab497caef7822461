"""compressed-tensors (llm-compressor, vLLM): integers by group or by row, packed or a byte each.

    W[n, k] = weight_scale[n, k // g] * (codes[n, k] - zero_point[n, k // g])

    pack-quantized
    weight_packed     [N, ceil(K q / 32)] int32   row n: its codes as a stream of bits (formats/code_words.py)
    weight_zero_point [ceil(N q / 32), G] int32   column j: the zero points of group j as a stream of bits
    weight_scale      [N, G]                      weight_shape [2] int64: N, K

    int-quantized     weight [N, K] int8, weight_zero_point [N, G] int8, both less 2^(q-1); weight_scale [N, G]

Its readers of packed fields take 2^(q-1) from codes and zero points alike. Where all zero points are 2^(q-1) the
weights are symmetric, and there is no weight_zero_point.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lutlab.checkpoint.saving import check_saved
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.checkpoint.uniform import uniform_of, write
from lutlab.errors import LutlabError, nearest
from lutlab.formats.code_words import pack_words
from lutlab.lazy import PreTrainedModel, PreTrainedTokenizerBase
from lutlab.tensors import UniformTensor

log = logging.getLogger(__name__)
PACKED, BYTES = "pack-quantized", "int-quantized"


def export_compressed_tensors(
    model: PreTrainedModel,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    format: str = PACKED,
) -> None:
    """Write a uniformly quantized model in a format of compressed-tensors.

    What transformers 5.23 needs to read the folder, beside the package compressed-tensors:

    | format         | weights                 | AutoModelForCausalLM.from_pretrained(folder)                     |
    |----------------|-------------------------|------------------------------------------------------------------|
    | pack-quantized | symmetric               | loads it packed, layers of several (q, g) too                    |
    | pack-quantized | asymmetric, one (q, g)  | loads it dequantized: config.json says `dequantize`              |
    | pack-quantized | asymmetric, several     | does not (it expects zero points unpacked); vLLM's reader may    |
    | int-quantized  | any                     | loads it, layers of several (q, g) too; 8 bits a weight on disk  |

    lutlab.load reads all four.

    Args:
        model: any of its nn.Linear layers quantized, each with its own q and g.
        folder: new, or empty.
        tokenizer: saved beside the model.
        format: `pack-quantized` or `int-quantized`.

    Raises:
        LutlabError: the layout cannot hold this model; the message says why. Or the folder cannot be written.
    """
    if not isinstance(format, str) or format not in (PACKED, BYTES):
        raise LutlabError(
            f"unknown format '{format}' of compressed-tensors: {nearest(format, (PACKED, BYTES))}"
        )
    check_saved(model, tokenizer)
    layers = quantized_layers(model)
    _check_linear(model, list(layers))
    uniform = {name: uniform_of(name, layer) for name, layer in layers.items()}
    symmetric = all(bool((t.zero_point == 2 ** (t.bits - 1)).all()) for t in uniform.values())
    make = pack if format == PACKED else _bytes
    tensors, groups = {}, {}
    for name, tensor in uniform.items():
        tensors[name] = make(name, tensor, model.dtype)
        if symmetric:
            del tensors[name]["weight_zero_point"]
        groups.setdefault((tensor.bits, _group_size(tensor)), []).append(name)
    config = {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{i}": _scheme(width, names, format, symmetric)
            for i, (width, names) in enumerate(groups.items())
        },
        "ignore": [],
    }
    if format == PACKED and not symmetric:
        if len(groups) == 1:
            config["dequantize"] = True
        else:
            log.warning(
                "%s: transformers does not read asymmetric %s weights of several (q, g), lutlab.load does: "
                "format='%s' writes what transformers reads",
                folder,
                PACKED,
                BYTES,
            )
    write(model, folder, tokenizer, config, tensors)


def pack(name: str, tensor: UniformTensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The four tensors of a layer; scales in the model's dtype, to which readers convert them.

    Raises:
        LutlabError: channels are in another order, the last group is shorter, or the dtype cannot hold the scales.
    """
    return {
        "weight_packed": pack_words(tensor.codes, tensor.bits),
        "weight_zero_point": pack_words(tensor.zero_point.T, tensor.bits).T,
        "weight_scale": _scale(name, tensor, dtype),
        "weight_shape": torch.tensor(tensor.codes.shape),
    }


def _bytes(name: str, tensor: UniformTensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The three tensors of a layer of int-quantized; as pack."""
    half = 2 ** (tensor.bits - 1)
    return {
        "weight": (tensor.codes.short() - half).to(torch.int8),
        "weight_zero_point": (tensor.zero_point - half).to(torch.int8),
        "weight_scale": _scale(name, tensor, dtype),
    }


def _scale(name: str, tensor: UniformTensor, dtype: torch.dtype) -> torch.Tensor:
    """Scales [N, G] of a layer that the format can say, in the model's dtype."""
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
    return scale


def _group_size(tensor: UniformTensor) -> int | None:
    """Group size in the config; None for one group a row, which the format calls `channel`."""
    return None if tensor.scale.shape[1] == 1 else tensor.group_size


def _scheme(
    width: tuple[int, int | None], names: list[str], format: str, symmetric: bool
) -> dict[str, Any]:
    q, g = width
    weights = {"num_bits": q, "type": "int", "symmetric": symmetric, "group_size": g}
    weights |= {"dynamic": False, "strategy": "channel" if g is None else "group"}
    return {"targets": names, "weights": weights, "format": format}


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
