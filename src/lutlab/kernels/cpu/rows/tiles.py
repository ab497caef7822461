"""Parameters of the templates over blocks of rows: loops for few rows of x, tiles for many.

A loop names its sums, so that they are registers. A tile (kernels/cpu/rows/tile.h) is weights that become floats in L1
once, for many rows of x. Its sums under way are registers: tile_vectors x tile_rows of 16 rows of W each, two registers
with AVX2. They hide the latency of an FMA (four cycles, two can start in one) and share each load of a weight among
tile_rows FMAs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lutlab.kernels.codegen.isa import Isa

# Vectors of 16 rows of W, rows of x.
SHAPES = {"avx512": (2, 8), "avx2": (1, 6)}
PORTABLE_SHAPE = (1, 4)


def tiles(isa: Isa, tile_from: Mapping[str, int]) -> dict[str, int]:
    """Parameters; tile_from: rows of x from which on this is faster, by instruction set ("portable": all others)."""
    vectors, rows = SHAPES.get(isa.name, PORTABLE_SHAPE)
    first = tile_from.get(isa.name) or tile_from["portable"]
    return {"tile_from": first, "tile_vectors": vectors, "tile_rows": rows}


@dataclass(frozen=True)
class Loop:
    """A loop over the words of a unit for m rows of x and some vectors of rows of W, each with `ways` sums."""

    m: int
    vectors: int
    ways: int

    def sum(self, vector: int, m: int, turn: int) -> str:
        """The variable that turn after turn of row m of x is added to."""
        return f"sum{vector}_{m}_{turn % self.ways}"

    def sums(self, vectors: Iterable[int] | None = None, m: int | None = None) -> list[str]:
        """All such variables, or those of some vectors, of one row of x."""
        return [
            self.sum(vector, i, way)
            for vector in (range(self.vectors) if vectors is None else vectors)
            for i in (range(self.m) if m is None else (m,))
            for way in range(self.ways)
        ]
