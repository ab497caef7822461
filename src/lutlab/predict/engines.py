"""Engines as constants of one formula, in milliseconds a token on G devices:

    t = (weights/s + head/s' + cache/s'') / (G B) + L (o + P r + [packed] o' + a log2 G + all-reduce bytes / link)

B is the device's bandwidth, s the share of it that a product reads, P the products of a layer; o, o', r and a are
microseconds a layer, a product and a doubling of G. Shares and microseconds of `lut-gemm` are fitted to the papers'
tables (constants.json, which tools/fit_latency.py writes); the others' say where they are from.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from lutlab.errors import LutlabError, nearest
from lutlab.predict.weights import PAPER

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


@functools.cache
def constants() -> Mapping[str, Any]:
    """The file that fit_latency writes: engine -> its constants and errors."""
    return json.loads(files("lutlab.predict").joinpath(CONSTANTS).read_text(encoding="utf-8"))


def _fitted(name: str) -> tuple[Rates, Errors]:
    found = constants()[name]
    return Rates(**found["rates"]), Errors(**found["errors"])


def _engines() -> dict[str, Engine]:
    paper, paper_errors = _fitted("lut-gemm")
    kernels, _ = _fitted("lutlab-cpu")
    link = paper.link_us  # until ours is measured
    return {
        "lut-gemm": Engine(
            "lut-gemm",
            "FasterTransformer with cuBLAS and LUT-GEMM's kernels, as the papers measured it",
            paper,
            PAPER,
            constants()["lut-gemm"]["gpu"],
            paper_errors,
            longest_batch=1,
        ),
        "lutlab": Engine(
            "lutlab",
            "lutlab's kernels in one CUDA graph a step; constants are arithmetic for an H200, not measured",
            # 4.3 and 3.9 TB/s of an H200's 4.8; 15 us of attention, two norms, rope and cache a layer
            Rates(0.896, 0.896, 0.813, layer_us=15.0, product_us=5.0, link_us=link),
            "bcq",
        ),
        "lutlab-cpu": Engine(
            "lutlab-cpu",
            "lutlab's CPU kernels in one C call a step; the kernels' published times on two threads, and what a step "
            "of LLaMA-7B's shapes takes besides, at a context below 64; head and cache in 16 bits",
            kernels,
            "bcq",
        ),
    }


ENGINES = _engines()


def engine(name: str | Engine) -> Engine:
    """The engine of a name; an Engine, as of rates that were measured elsewhere, is itself.

    Raises:
        LutlabError: an unknown engine.
    """
    if isinstance(name, Engine):
        return name
    if name not in ENGINES:
        raise LutlabError(f"unknown engine '{name}' of a prediction: {nearest(str(name), ENGINES)}")
    return ENGINES[name]
