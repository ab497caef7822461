"""Milliseconds a token: what a step reads, launches and sends (Terms), priced by an engine's rates.

The prediction is linear in the constants that are fitted, so that fit.py solves for them with the same Terms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lutlab.errors import LutlabError
from lutlab.groups import Bits
from lutlab.predict import engines
from lutlab.predict.devices import Device, device
from lutlab.predict.engines import Engine, Errors, Rates
from lutlab.predict.footprint import Memory, check_asked, predict_memory
from lutlab.predict.shapes import Decoder, decoder
from lutlab.predict.weights import FULL
from lutlab.quantizers.contract import Method


@dataclass(frozen=True)
class Terms:
    """Loads of one step, a device's share of them.

    Attributes:
        dense, packed, head, cache: bytes read, of full-precision weights, quantized ones, the head, keys and values.
        layers: L; quantized_layers: L where they are quantized, else 0.
        products: launched, P L.
        doublings: L log2 G.
        sent_s: seconds that the bytes of the all-reduces take on the link.
    """

    dense: float
    packed: float
    head: float
    cache: float
    layers: int
    quantized_layers: int
    products: int
    doublings: float
    sent_s: float


@dataclass(frozen=True)
class Prediction:
    """A latency that nobody measured.

    Attributes:
        ms_per_token: milliseconds a step, one token in each row of the batch.
        parts: the same by what takes it: weights, head, cache, layers, communication.
        errors: relative errors of such predictions where they were compared; None where they never were, as on another
            GPU.
        memory: memory of the model on its devices.
        device: device of the prediction.
        gpus: number of devices.
    """

    ms_per_token: float
    parts: Mapping[str, float]
    errors: Errors | None
    memory: Memory
    device: Device
    gpus: int

    @property
    def fits(self) -> bool:
        """Whether the model fits on its devices."""
        return self.memory.each <= self.device.memory


def terms(shape: Decoder, q: Bits, held: Memory, to: Device, batch: int) -> Terms:
    """The loads of a device, whose share of the model is `held`."""
    full, gpus = q == FULL, held.gpus
    share = {name: size / gpus for name, size in held.parts.items()}
    sent = 2 * 2 * (gpus - 1) / gpus * 2 * shape.hidden * batch  # two all-reduces of d halves
    return Terms(
        dense=share["weights"] if full else 0.0,
        packed=0.0 if full else share["weights"],
        head=share["head"],
        cache=share["cache"],
        layers=shape.layers,
        quantized_layers=0 if full else shape.layers,
        products=shape.layers * len(shape.products),
        doublings=shape.layers * math.log2(gpus),
        sent_s=shape.layers * sent / to.link if gpus > 1 else 0.0,
    )


def parts(of: Terms, rates: Rates, to: Device) -> dict[str, float]:
    """Milliseconds by what takes them."""
    per_byte = 1e3 / to.bandwidth
    return {
        "weights": per_byte * (of.dense / rates.dense + of.packed / rates.packed),
        "head": per_byte * of.head / rates.head,
        "cache": per_byte * of.cache / rates.dense,
        "layers": 1e-3
        * (
            of.layers * rates.layer_us
            + of.quantized_layers * rates.packed_layer_us
            + of.products * rates.product_us
        ),
        "communication": 1e-3 * of.doublings * rates.link_us + 1e3 * of.sent_s,
    }


def predict_latency(
    shape: str | Decoder,
    q: Bits = FULL,
    g: int = -1,
    *,
    gpu: str | Device = "A100-80GB",
    gpus: int = 1,
    engine: str | Engine = "lut-gemm",
    context: int | None = None,
    batch: int = 1,
    stored: str | Method | None = None,
) -> Prediction:
    """Predict milliseconds a token of decoding.

    Examples:
        >>> found = predict_latency("opt-30b", q=3, g=64, gpus=2)
        >>> round(found.ms_per_token), found.fits  # the paper prints 12.6
        (12, True)

    Args:
        shape: a model of conf/shapes by its name, a folder with a config.json, or its sizes.
        q: bits of a weight, 1 to 8; 16 is full precision.
        g: group size, -1 row-wise.
        gpu: a type of GPU (DEVICES), or a device of your own.
        gpus: number of GPUs that share the model, each product and the head cut into as many parts.
        engine: `lut-gemm`, `lutlab` or `lutlab-cpu` (ENGINES), or one of your own rates.
        context: tokens in the cache; None: those that the engine's constants are of.
        batch: number of rows.
        stored: method whose layout the weights have, or `lut-gemm` as that paper counts; None: the engine's.

    Raises:
        LutlabError: an unknown GPU, engine or shape, or a number that is out of range.
    """
    shape = shape if isinstance(shape, Decoder) else decoder(shape)
    to, by = device(gpu), engines.engine(engine)
    context = by.context if context is None else context
    layout = by.stored if stored is None else stored
    check_asked(shape, gpus, context, batch)
    if batch > by.longest_batch:
        raise LutlabError(
            f"batch={batch}: the constants of engine '{by.name}' are of at most {by.longest_batch} row(s): give no "
            "more, or another engine"
        )
    if gpus > 1 and not to.link:
        raise LutlabError(f"gpus={gpus}: {to.name} has no link to another; give gpus=1, or a link")
    of = {"gpus": gpus, "context": context, "batch": batch, "number_bytes": by.number_bytes}
    held = predict_memory(shape, q, g, stored=layout, **of)
    split = parts(terms(shape, q, held, to, batch), by.rates, to)
    errors = by.errors if to.name == by.gpu else None
    return Prediction(sum(split.values()), split, errors, held, to, gpus)
