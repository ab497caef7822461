"""Milliseconds a token of an engine on G devices, by constants of one formula:

    t = (weights/s + head/s' + cache/s'') / (G B) + L (o + P r + [packed] o' + a log2 G + all-reduce bytes / link)

B is the device's bandwidth, s the share of it that a product reads, P the products of a layer; o, o', r and a are
microseconds a layer, a product and a doubling of G. Shares and microseconds of `lut-gemm` are fitted to the papers'
tables (constants.json, which tools/fit_latency.py writes); the others' say where they are from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.groups import Bits
from lutlab.predict.devices import Device, device
from lutlab.predict.footprint import FULL, PAPER, Memory, check_asked, predict_memory
from lutlab.predict.shapes import Decoder, decoder
from lutlab.quantizers.contract import Method

CONSTANTS = "constants.json"


@dataclass(frozen=True)
class Rates:
    """Constants of an engine: shares of a bandwidth, and microseconds.

    Attributes:
        dense: share of the bandwidth at which weights of 16 bits are read.
        packed: the same of quantized weights.
        head: the same of the head; the cache is read at that of `dense`.
        layer_us: fixed microseconds of a layer: norms, attention, launches.
        packed_layer_us: microseconds that quantized products add to it.
        product_us: microseconds of a product's ramp and tail.
        link_us: microseconds of the two all-reduces of a layer, for each doubling of the devices.
    """

    dense: float
    packed: float
    head: float
    layer_us: float
    packed_layer_us: float = 0.0
    product_us: float = 0.0
    link_us: float = 0.0


@dataclass(frozen=True)
class Errors:
    """Relative errors of predictions: |predicted / published - 1|."""

    rows: int
    median: float
    p90: float
    worst: float

    def __str__(self) -> str:
        return f"median error {self.median:.1%}, worst {self.worst:.0%}".replace("%", " %")


@dataclass(frozen=True)
class Engine:
    """An engine whose latency can be predicted.

    Attributes:
        name: name of the engine, a value of `engine=`.
        about: source of the numbers that its constants rest on.
        rates: its constants.
        stored: layout of its quantized weights by default: PAPER or a method.
        gpu: the device that its errors are of; empty where nothing was compared.
        errors: errors of the numbers that its constants were fitted to; None where nothing was compared.
        number_bytes: bytes of a number that is not quantized: in the head, the cache, dense weights.
        longest_batch: rows that its constants are of.
        context: tokens in the cache that its constants are of.
    """

    name: str
    about: str
    rates: Rates
    stored: str
    gpu: str = ""
    errors: Errors | None = None
    number_bytes: int = 2
    longest_batch: int = 16
    context: int = 128


def _engines() -> dict[str, Engine]:
    constants = json.loads(files("lutlab.predict").joinpath(CONSTANTS).read_text(encoding="utf-8"))
    fitted = {name: Rates(**fit["rates"]) for name, fit in constants.items()}
    paper = fitted["lut-gemm"]
    link = paper.link_us  # until ours is measured
    engines = (
        Engine(
            "lut-gemm",
            "FasterTransformer with cuBLAS and LUT-GEMM's kernels, as the papers measured it",
            paper,
            PAPER,
            constants["lut-gemm"]["gpu"],
            Errors(**constants["lut-gemm"]["errors"]),
            longest_batch=1,
        ),
        Engine(
            "lutlab",
            "lutlab's kernels in one CUDA graph a step; constants are arithmetic for an H200, not measured",
            # 4.3 and 3.9 TB/s of an H200's 4.8; 15 us of attention, two norms, rope and cache a layer
            Rates(0.896, 0.896, 0.813, layer_us=15.0, product_us=5.0, link_us=link),
            "bcq",
        ),
        Engine(
            "lutlab-cpu",
            "lutlab's CPU kernels in one C call a step; the kernels' published times on two threads, and what a step "
            "of LLaMA-7B's shapes takes besides, at a context below 64; head and cache in 16 bits",
            fitted["lutlab-cpu"],
            "bcq",
        ),
    )
    return {engine.name: engine for engine in engines}


ENGINES = _engines()


def engine_of(name: str | Engine) -> Engine:
    """The engine of a name; an Engine, as of rates that were measured elsewhere, is itself.

    Raises:
        LutlabError: an unknown engine.
    """
    if isinstance(name, Engine):
        return name
    if name not in ENGINES:
        raise LutlabError(f"unknown engine '{name}' of a prediction: {nearest(str(name), ENGINES)}")
    return ENGINES[name]


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


def parts(
    shape: Decoder, q: Bits, memory: Memory, to: Device, batch: int, rates: Rates
) -> dict[str, float]:
    """Milliseconds by what takes them, of a model that takes `memory` on all its devices, each like `to`.

    Linear in microseconds and inverse shares, for which tools/fit.py solves.
    """
    share = {name: size / memory.gpus for name, size in memory.parts.items()}
    per_byte, layers = 1e3 / to.bandwidth, shape.layers
    # two all-reduces of d halves
    sent = 2 * 2 * (memory.gpus - 1) / memory.gpus * 2 * shape.hidden * batch
    sent_s = layers * sent / to.link if memory.gpus > 1 else 0.0
    return {
        "weights": per_byte * (share["weights"] / (rates.dense if q == FULL else rates.packed)),
        "head": per_byte * share["head"] / rates.head,
        "cache": per_byte * share["cache"] / rates.dense,
        "layers": 1e-3
        * (
            layers * rates.layer_us
            + (0 if q == FULL else layers) * rates.packed_layer_us
            + layers * len(shape.products) * rates.product_us
        ),
        "communication": 1e-3 * (layers * math.log2(memory.gpus)) * rates.link_us + 1e3 * sent_s,
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
        >>> prediction = predict_latency("opt-30b", q=3, g=64, gpus=2)
        >>> round(prediction.ms_per_token), prediction.fits  # the paper prints 12.6
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
    to, by = device(gpu), engine_of(engine)
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
    served = {"gpus": gpus, "context": context, "batch": batch}
    memory = predict_memory(shape, q, g, stored=layout, number_bytes=by.number_bytes, **served)
    split = parts(shape, q, memory, to, batch, by.rates)
    errors = by.errors if to.name == by.gpu else None
    return Prediction(sum(split.values()), split, errors, memory, to, gpus)
