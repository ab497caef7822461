"""Memory of a decoder on its devices: weights as stored, head, embeddings, the cache, scratch; the least devices.

The scratch is one matrix of the largest product in full precision, which reading a prompt dequantizes into.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lutlab.errors import LutlabError
from lutlab.groups import Bits
from lutlab.predict.devices import Device, device
from lutlab.predict.shapes import Decoder, decoder
from lutlab.predict.weights import FULL, PAPER, weight_bytes
from lutlab.quantizers.contract import Method

MOST_GPUS = 1024


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
    matrix = max(rows * columns for rows, columns in shape.products)
    parts = {
        "weights": weight_bytes(shape, q, g, stored) * (number_bytes / 2 if q == FULL else 1),
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
    count = 1
    while count <= shape.heads:
        of = {"gpus": count, "context": context, "batch": batch, "number_bytes": number_bytes}
        found = predict_memory(shape, q, g, stored=stored, **of)
        if found.each <= to.memory:
            return count
        count *= 2
    return None
