"""Bits that a method stores of a matrix [N, K], from its shape alone, so that a budget is refused before work begins.

A small random matrix is quantized and packed; its layout with the sizes of the real one says how long the buffers of
that are. No byte of the model is read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits, Width
from lutlab.base.lazy import torch
from lutlab.base.tensors import CalibStats
from lutlab.formats import pack
from lutlab.formats.contract import Format
from lutlab.quantizers.contract import Calibrated, Method

_MOST_BITS = 1e9  # a weight, of a budget: far beyond what any takes, and within what a float counts
_SAMPLE = 64  # rows and columns that are quantized to learn a method's layout


def check_budget(
    budget: float,
    shapes: Mapping[str, tuple[int, int]],
    method: Method,
    candidates: Collection[Width],
    skip: Collection[str] = (),
) -> None:
    """Refuse a budget that the smallest candidates exceed.

    Args:
        budget: stored bits a weight over all layers.
        shapes: layer name -> (N, K).
        method: the method, with its options.
        candidates: (q, g) that a layer may have.
        skip: patterns (fnmatch) of the names of layers that stay in 16 bits.

    Raises:
        LutlabError: the smallest size is above the budget; the message states it.
    """
    weights = sum(rows * columns for rows, columns in shapes.values())
    smallest = 0
    for name, (rows, columns) in shapes.items():
        skipped = any(fnmatchcase(name, pattern) for pattern in skip)
        sizes = (stored_bits(method, q, g, rows, columns) for q, g in candidates)
        smallest += 16 * rows * columns if skipped else min(sizes)
    refuse_below(smallest, budget_bits(budget, weights), weights)


def budget_bits(budget: float, weights: int) -> int:
    """The most bits whose quotient by `weights` is at most `budget` bits a weight.

    >>> budget_bits(3.3, 1000)
    3300

    Raises:
        LutlabError: the budget is not a positive number.
    """
    if isinstance(budget, bool) or not 0 < budget <= _MOST_BITS:
        raise LutlabError(
            f"budget={budget}: give a positive number of stored bits a weight, as 3.5"
        )
    bits = math.floor(budget * weights) + 1
    while bits / weights > budget:
        bits -= 1
    return bits


def refuse_below(smallest: int, bits: int, weights: int) -> None:
    """Raise LutlabError if a budget of so many bits is less than the smallest size of so many weights."""
    if smallest > bits:
        raise LutlabError(
            f"budget={bits / weights:.4g} is below the smallest size that the candidates give, "
            f"{smallest / weights:.4g} bits a weight: raise it, or allow fewer bits (candidates.q) or larger groups "
            "(candidates.g)"
        )


@functools.cache
def stored_bits(method: Method, q: Bits, g: int, rows: int, columns: int) -> int:
    """Bits of every buffer of a weight [rows, columns], padding included, in the layout that a random weight gets.

    A weight whose zero points leave 0 .. 2^q - 1 takes more.
    """
    return empty(method, q, g, rows, columns).bits_stored


def empty(method: Method, q: Bits, g: int, rows: int, columns: int) -> Format:
    """A weight [rows, columns] in the layout that a random one gets, on the meta device: sizes without numbers."""
    if layout := method.layout(rows, columns):
        return registry.lookup("format", method.format).from_layout(layout, "meta")
    packed = _packed(method, q, g, min(rows, _SAMPLE), min(columns, _SAMPLE))
    return packed.from_layout(method.resized(packed.layout(), rows, columns, q, g), "meta")


@functools.cache
def _packed(method: Method, q: Bits, g: int, rows: int, columns: int) -> Format:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    if not isinstance(method, Calibrated):
        return pack(method.quantize(weight, q, g))
    stats = CalibStats(torch.eye(columns), torch.ones(columns), 1)
    return pack(method.quantize(weight, q, g, method.prepare(stats)))
