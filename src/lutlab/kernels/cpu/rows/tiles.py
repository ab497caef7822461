"""Parameters of kernels/cpu/rows/tile.h: weights become floats in L1 once, and many rows of x are multiplied by them.

Sums under way are registers: tile_vectors x tile_rows of 16 rows of W each, two registers with AVX2. They hide the
latency of an FMA (four cycles, two can start in one) and share each load of a weight among tile_rows FMAs.
"""

from __future__ import annotations

from collections.abc import Mapping

from lutlab.kernels.codegen.isa import Isa

# Vectors of 16 rows of W, rows of x.
SHAPES = {"avx512": (2, 8), "avx2": (1, 6)}
PORTABLE_SHAPE = (1, 4)


def tiles(isa: Isa, tile_from: Mapping[str, int]) -> dict[str, int]:
    """Parameters; tile_from: rows of x from which on this is faster, by instruction set ("portable": all others)."""
    vectors, rows = SHAPES.get(isa.name, PORTABLE_SHAPE)
    first = tile_from.get(isa.name) or tile_from["portable"]
    return {"tile_from": first, "tile_vectors": vectors, "tile_rows": rows}
