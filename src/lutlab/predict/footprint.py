"""Memory of a decoder on its devices: weights as stored, head, embeddings, the cache, scratch; the least devices.

A linear weight takes the bits of the method that stores it, or those that LUT-GEMM counts. The scratch is one matrix of
the largest product in full precision, which reading a prompt dequantizes into.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits, check_group_size, group_count
from lutlab.predict.devices import Device, device
from lutlab.predict.shapes import Decoder, decoder
from lutlab.quantizers.contract import Method, make_method

# one scale and one offset of 16 bits a group, which LUT-GEMM's model sizes follow
PAPER = "lut-gemm"
FULL = 16


@dataclass(frozen=True)
class Memory:
    """Bytes of a model on `gpus` devices, by what takes them.

    Attributes:
        parts: bytes of all devices together, by part: weights, head, embeddings, cache, scratch.
        gpus: number of GPUs that share them alike.
    """

    parts: Mapping[str, float]
    gpus: int

    @property
    def total(self) -> float:
        """Bytes of all devices."""
        return sum(self.parts.values())

    @property
    def each(self) -> float:
        """Bytes of one device."""
        return self.total / self.gpus


def check_asked(shape: Decoder, gpus: int, context: int, batch: int) -> None:
    """Raise LutlabError unless the three are whole numbers in the range of a model."""
    for name, value, least in (("gpus", gpus, 1), ("context", context, 0), ("batch", batch, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise LutlabError(f"{name}={value!r}: give a whole number of at least {least}")
    if gpus > shape.heads:
        raise LutlabError(
            f"gpus={gpus}: {shape.name} has {shape.heads} heads of attention, which cannot be shared by more devices"
        )
    if context > shape.positions:
        raise LutlabError(
            f"context={context}: {shape.name} has at most {shape.positions} positions; give no more"
        )


def _check_width(q: Bits, g: int) -> None:
    """Raise LutlabError unless q is 1 to 8, or 16 for full precision, and g a group size."""
    known = isinstance(q, int | float) and not isinstance(q, bool) and math.isfinite(q)
    if not known or not (1 <= q <= 8 or q == FULL):
        raise LutlabError(
            f"q={q!r} is no width of weights: give 1 to 8 bits (a fraction is a mean), or 16 for full precision"
        )
    check_group_size(g)


@functools.cache
def _weight_bytes(decoder: Decoder, q: Bits, g: int, stored: str | Method) -> float:
    """Bytes of all linear weights of the layers, each stored once."""
    bits = sum(_bits(rows, columns, q, g, stored) for rows, columns in decoder.products)
    return decoder.layers * bits / 8


def _bits(rows: int, columns: int, q: Bits, g: int, stored: str | Method) -> float:
    if q == FULL:
        return FULL * rows * columns
    if stored == PAPER:
        return rows * (q * columns + 2 * 16 * group_count(g, columns))
    from lutlab.compress.sizes import stored_bits

    method = make_method(stored) if isinstance(stored, str) else stored
    return stored_bits(method, q, g, rows, columns)


def predict_memory(
    shape: str | Decoder,
    q: Bits = FULL,
    g: int = -1,
    *,
    gpus: int = 1,
    context: int | None = None,
    batch: int = 1,
    stored: str | Method = PAPER,
    number_bytes: int = 2,
) -> Memory:
    """Predict the memory of a model that decodes; arguments as of predict_latency.

    Examples:
        >>> round(predict_memory("opt-175b", q=3, context=2048).total / 1e9, 1)
        77.4

    Args:
        shape: a model of conf/shapes by its name, a folder with a config.json, or its sizes.
        q: bits of a weight, 1 to 8; 16 is full precision.
        g: group size, -1 row-wise.
        gpus: number of GPUs that share it.
        context: tokens that the cache holds in each row; None: the model's positions.
        batch: number of rows.
        stored: method whose layout the weights have, or `lut-gemm` as that paper counts.
        number_bytes: bytes of a number that is not quantized: 2, or 4 of float32.

    Raises:
        LutlabError: an unknown shape, or a number that is out of range.
    """
    shape = shape if isinstance(shape, Decoder) else decoder(shape)
    context = shape.positions if context is None else context
    check_asked(shape, gpus, context, batch)
    _check_width(q, g)
    matrix = max(rows * columns for rows, columns in shape.products)
    parts = {
        "weights": _weight_bytes(shape, q, g, stored) * (number_bytes / 2 if q == FULL else 1),
        "head": float(number_bytes * shape.head),
        "embeddings": float(number_bytes * shape.embedded),
        "cache": float(number_bytes * batch * context * shape.layers * shape.cached),
        "scratch": float(number_bytes * matrix),
    }
    return Memory(parts, gpus)


def predict_gpus(
    shape: str | Decoder,
    q: Bits = FULL,
    g: int = -1,
    *,
    gpu: str | Device = "A100-80GB",
    context: int | None = None,
    batch: int = 1,
    stored: str | Method = PAPER,
    number_bytes: int = 2,
) -> int | None:
    """The least number of GPUs, of 1, 2, 4, 8, …, that hold a model; None where its heads cannot be shared by as many.

    Examples:
        >>> predict_gpus("opt-175b", gpu="A100-80GB"), predict_gpus("opt-175b", q=3, gpu="A100-80GB")
        (8, 1)

    Args and errors as of predict_memory and predict_latency.
    """
    shape, to = shape if isinstance(shape, Decoder) else decoder(shape), device(gpu)
    shared = functools.partial(predict_memory, shape, q, g, stored=stored)
    count = 1
    while count <= shape.heads:
        memory = shared(gpus=count, context=context, batch=batch, number_bytes=number_bytes)
        if memory.each <= to.memory:
            return count
        count *= 2
    return None
