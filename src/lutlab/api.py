"""The Python API: four functions that need neither Hydra nor Weights & Biases.

    import lutlab
    packed = lutlab.quantize_tensor(weight, method="bcq", q=3, g=128)   # weight [N, K]
    packed.dequantize(), packed.bits_per_weight
    lutlab.quantize(model, method="rtn", q=4, g=128)                    # in place
    lutlab.perplexity(model, tokenizer, text, seqlen=2048)              # GPTQ protocol
    lutlab.lambada(model, tokenizer, ["... the last word"])

A mistake is a LutlabError, whose message says what to do.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from transformers import PreTrainedModel

from lutlab import registry
from lutlab.apply import Quantizer, quantize_model
from lutlab.errors import LutlabError, nearest
from lutlab.formats import pack
from lutlab.records import PackedWeight


def make_quantizer(method: str, **options: Any) -> Quantizer:
    """The quantizer registered as `method` with the given parameters.

    Raises:
        LutlabError: unknown method or parameter; the message suggests the nearest one.
    """
    cls = registry.lookup("method", method)
    known = [field.name for field in dataclasses.fields(cls)]
    for name in options:
        if name not in known:
            raise LutlabError(
                f"method '{method}' has no parameter '{name}': {nearest(name, known)}"
            )
    return cls(**options)


def quantize_tensor(
    weight: torch.Tensor, method: str = "bcq", q: int = 3, g: int = 128, **options: Any
) -> PackedWeight:
    """Quantize one weight matrix.

    >>> packed = quantize_tensor(torch.ones(2, 64), method="rtn", q=4, g=32)
    >>> packed.dequantize().shape, packed.bits_per_weight
    (torch.Size([2, 64]), 7.0)

    (4 bits of signs, and a group of 32 stores four 16-bit alphas and one 32-bit offset: 4 + 96 / 32 = 7.)

    Args:
        weight: [N, K] floating point; K are the input channels, along which groups run.
        method: `none`, `rtn` or `bcq`.
        q: bits, 1-8.
        g: weights that share a scale, at least 8, or -1 for one scale a row; the last group may be shorter.
        **options: parameters of the method, e.g. `variant="awq"` of `rtn`.

    Returns:
        The packed weight: `.dequantize()` gives [N, K] float32, `.bits_per_weight` counts every stored buffer.

    Raises:
        LutlabError: q, g, method or a parameter is out of range, or the weight is not a finite matrix, or empty.
    """
    matrix = isinstance(weight, torch.Tensor) and weight.ndim == 2 and weight.is_floating_point()
    if not matrix or weight.numel() == 0:
        shape = (
            f"{weight.dtype} {list(weight.shape)}"
            if isinstance(weight, torch.Tensor)
            else type(weight).__name__
        )
        raise LutlabError(f"weight must be a floating-point matrix [N, K], got {shape}")
    return pack(make_quantizer(method, **options).quantize(weight.detach().float(), q, g))


def quantize(
    model: PreTrainedModel, method: str = "rtn", q: int = 4, g: int = 128, **options: Any
) -> PreTrainedModel:
    """Quantize the linear layers of every decoder block, in place; embeddings and head stay as they are.

    Args:
        model: a transformers causal language model of a known family (OPT, LLaMA, GPT-2, GPT-Neo).
        method: as in quantize_tensor.
        q: as in quantize_tensor.
        g: as in quantize_tensor.
        **options: as in quantize_tensor.

    Returns:
        The same model, for chaining.

    Raises:
        LutlabError: as quantize_tensor; or the architecture is unknown, or the model is quantized already.
    """
    quantize_model(model, make_quantizer(method, **options), q, g)
    return model
