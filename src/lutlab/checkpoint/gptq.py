"""The GPTQ checkpoint layout (AutoGPTQ, GPTQModel, vLLM), format `gptq_v2`.

    W[n, k] = scales[g_idx[k], n] * (codes[n, k] - zero_point[g_idx[k], n])

    qweight [ceil(K q / 32), N] int32   column n: the codes of row n as a stream of bits (formats/code_words.py)
    qzeros  [G, ceil(N q / 32)] int32   row j: the zero points of group j as a stream of bits
    scales  [G, N] float16              g_idx [K] int32: the group of input channel k

`gptq` (v1) stores zero_point - 1, which has no place for a zero point of 0; v2 stores zero_point itself. GPTQModel 7.7
reads g of -1, 16, 32, 64, … 1024 only.
"""

from __future__ import annotations

from pathlib import Path

import torch

from lutlab.checkpoint.saving import check_saved
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.checkpoint.uniform import uniform_of, write
from lutlab.errors import LutlabError
from lutlab.formats.code_words import WORD, pack_words
from lutlab.groups import group_length
from lutlab.lazy import PreTrainedModel, PreTrainedTokenizerBase
from lutlab.models.families import kinds
from lutlab.tensors import UniformTensor

BITS = (2, 3, 4, 8)


def export_gptq(
    model: PreTrainedModel, folder: str | Path, tokenizer: PreTrainedTokenizerBase | None = None
) -> None:
    """Write a uniformly quantized model as a GPTQ checkpoint of format gptq_v2.

    Args:
        model: all linear layers of its decoder blocks quantized, with one q (2, 3, 4, 8) and one g.
        folder: new, or empty.
        tokenizer: saved beside the model.

    Raises:
        LutlabError: the layout cannot hold this model; the message says why. Or the folder cannot be written.
    """
    check_saved(model, tokenizer)
    layers = quantized_layers(model)
    left = [name for name in kinds(model.config) if name not in layers]
    uniform = {name: uniform_of(name, layer) for name, layer in layers.items()}
    widths = {(tensor.bits, tensor.group_size) for tensor in uniform.values()}
    if left or len(widths) > 1:
        found = f"{left[0]} is not" if left else f"these have (q, g) = {sorted(widths)}"
        raise LutlabError(
            f"{found}: a GPTQ checkpoint has one q and one g for all linear layers of the blocks; quantize them alike, "
            "or use export_compressed_tensors"
        )
    ((q, g),) = widths
    if q not in BITS:
        raise LutlabError(f"q={q}: the GPTQ layout is defined for q of {BITS} only")
    tensors = {name: pack(name, tensor) for name, tensor in uniform.items()}
    config = {
        "quant_method": "gptq",
        "checkpoint_format": "gptq_v2",
        "bits": q,
        "group_size": g,
        "sym": False,
        "desc_act": any(tensor.order is not None for tensor in uniform.values()),
        "lm_head": False,
        "meta": {"quantizer": ["lutlab"]},
    }
    write(model, folder, tokenizer, config, tensors)


def pack(name: str, tensor: UniformTensor) -> dict[str, torch.Tensor]:
    """The four buffers of a layer.

    Raises:
        LutlabError: rows or columns do not fill whole words, or a scale is not a float16.
    """
    q, (rows, columns) = tensor.bits, tensor.codes.shape
    if rows * q % WORD or columns * q % WORD:
        raise LutlabError(
            f"{name}: [N, K] = {[rows, columns]} at q={q} do not fill whole 32-bit words, which readers of the GPTQ "
            "layout count on: use export_compressed_tensors or lutlab.save"
        )
    if tensor.scale.dtype != torch.float16:
        raise LutlabError(
            f"{name}: scales of {tensor.scale.dtype}, but the GPTQ layout holds float16: quantize with scale_dtype=fp16"
        )
    group = torch.arange(columns, dtype=torch.int32) // group_length(tensor.group_size, columns)
    codes, order = tensor.codes.cpu(), torch.arange(columns)
    if tensor.order is not None:
        order = tensor.order.long().cpu()
    place = torch.argsort(order)  # input channel k is column place[k]
    return {
        "qweight": pack_words(codes[:, place], q).T,
        "qzeros": pack_words(tensor.zero_point.cpu().T, q),
        "scales": tensor.scale.cpu().T,
        "g_idx": group[place],
    }
