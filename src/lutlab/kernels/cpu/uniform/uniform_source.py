"""C source of the GEMV over uniform codes of 4 or 8 bits (kernels/cpu/uniform/gemv.c, digits.c) for one CPU.

A code costs and, convert, FMA whatever its width, so that narrow ones are better run as planes (codegen/bcq.py): with
AVX-512 a plane costs a quarter of that a code, with AVX2 a third. Codes of 4 bits on AVX2 meet 3 bytes of each
activation instead, for few rows of x: vpmaddubsw multiplies and adds four times as many at once as an FMA.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from lutlab.kernels.codegen import templates
from lutlab.kernels.codegen.isa import Isa
from lutlab.kernels.cpu.rows.tiles import tiles

# Vectors of 16 rows worked on together for 1, 2, ... rows of x at once, and sums under way at once.
VECTORS = {"avx512": {1: 2, 2: 2, 4: 2, 8: 2}, "avx2": {1: 2, 2: 2, 4: 1}}
PORTABLE_VECTORS = {1: 1, 4: 1}
SUMS = {"avx512": 8, "avx2": 4}
PORTABLE_SUMS = 1
# Rows of x from which on codes become floats in L1 once, instead of once for every few rows of x.
TILE_FROM = {"avx512": 9, "avx2": 12, "portable": 2}
INTEGER_TILE_FROM = {"avx2": 32}
# Eights of rows of W worked on together for 1, 2, ... rows of x at once, in integers.
EIGHTS = {"avx2": {1: 2}}
INTEGER_ROWS = 3  # of x at most; four at once cost less converted, as they share the conversion


@dataclass(frozen=True)
class Loop:
    """A loop over the words of a unit for m rows of x, a tile of vectors at a time, with `ways` sums for each."""

    m: int
    tiles: tuple[range, ...]
    ways: int

    def sum(self, vector: int, m: int, field: int) -> str:
        """The variable that a field times row m of x is added to."""
        return f"sum{vector}_{m}_{field % self.ways}"

    def sums(self, tile: Sequence[int], m: int | None = None) -> list[str]:
        """Variables of the sums of a tile, or of one row of x in it."""
        rows = range(self.m) if m is None else (m,)
        return [self.sum(v, i, way) for v in tile for i in rows for way in range(self.ways)]

    def __repr__(self) -> str:
        """As the head of the source shows it."""
        return f"{self.m} x {len(self.tiles[0])} vectors x {self.ways} sums"


@dataclass(frozen=True)
class IntegerLoop:
    """A loop over the words of a unit for m rows of x, `eights` times 8 rows of W at a time, in integers."""

    m: int
    eights: int

    def sum(self, name: str, m: int, eight: int, digit: int) -> str:
        """The variable that 8 rows' codes times a digit of row m of x are added to."""
        return f"{name}{m}_{eight}_{digit}"

    def sums(self, name: str) -> list[str]:
        """All such variables."""
        places = itertools.product(range(self.m), range(self.eights), range(3))
        return [self.sum(name, *place) for place in places]

    def __repr__(self) -> str:
        """As the head of the source shows it."""
        return f"{self.m} x {8 * self.eights} rows"


def integers(isa: Isa, bits: int) -> bool:
    """Whether activations become integers (kernels/cpu/uniform/digits.c)."""
    return isa.name in EIGHTS and bits == 4


@templates.kept
def source(isa: Isa, *, bits: int, scale: str) -> str:
    """C source.

    Args:
        isa: the instructions to write it in.
        bits: of a field, 4 or 8.
        scale: f16 or f32, what scales are stored in.
    """
    vectors = dict(VECTORS.get(isa.name, PORTABLE_VECTORS))
    template, tile_from, more = "uniform/gemv.c", TILE_FROM, {}
    if integers(isa, bits):
        eights = EIGHTS[isa.name]
        vectors = {m: count for m, count in vectors.items() if m > INTEGER_ROWS}
        template, tile_from = "uniform/digits.c", INTEGER_TILE_FROM
        more["integer_loops"] = [IntegerLoop(m, count) for m, count in eights.items()]
    size = {"f16": 2, "f32": 4}[scale]
    return templates.render(
        template,
        simd=isa.name if isa.name in VECTORS else "portable",
        bits=bits,
        scale=scale,
        scale_size=size,
        scale_bytes=32 * size,
        loops=[_loop(m, count, SUMS.get(isa.name, PORTABLE_SUMS)) for m, count in vectors.items()],
        batches=sorted({*vectors, *(loop.m for loop in more.get("integer_loops", ()))}),
        **more,
        **tiles(isa, tile_from),
    )


def _loop(m: int, vectors: int, sums: int) -> Loop:
    tiles = tuple(range(first, first + vectors) for first in range(0, 2, vectors))
    return Loop(m, tiles, max(1, sums // (vectors * m)))
