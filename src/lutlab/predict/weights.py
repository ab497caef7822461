"""Bits that a linear weight takes in memory, by the method that stores it or as LUT-GEMM counts them."""

from __future__ import annotations

import functools
import math

from lutlab.errors import LutlabError
from lutlab.groups import Bits, check_group_size, group_count
from lutlab.predict.shapes import Decoder
from lutlab.quantizers.contract import Method, make_method

PAPER = (
    "lut-gemm"  # one scale and one offset of 16 bits a group, which LUT-GEMM's model sizes follow
)
FULL = 16


def check_width(q: Bits, g: int) -> None:
    """Raise LutlabError unless q is 1 to 8, or 16 for full precision, and g a group size."""
    known = isinstance(q, int | float) and not isinstance(q, bool) and math.isfinite(q)
    if not known or not (1 <= q <= 8 or q == FULL):
        raise LutlabError(
            f"q={q!r} is no width of weights: give 1 to 8 bits (a fraction is a mean), or 16 for full precision"
        )
    check_group_size(g)


def weight_bytes(decoder: Decoder, q: Bits, g: int, stored: str | Method) -> float:
    """Bytes of all linear weights of the layers, each stored once.

    Args:
        decoder: sizes of the model.
        q: bits; 16 is full precision.
        g: group size, -1 row-wise.
        stored: PAPER, or the method, by its name or itself, whose layout holds them.

    Raises:
        LutlabError: q or g is out of range, or there is no such method.
    """
    check_width(q, g)
    return _weight_bytes(decoder, q, g, stored)


@functools.cache
def _weight_bytes(decoder: Decoder, q: Bits, g: int, stored: str | Method) -> float:
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
