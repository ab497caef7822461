"""C source of the GEMV over mixed groups (kernels/cpu/mixed/gemv.c) for the widths, the groups and the CPU at hand."""

from __future__ import annotations

from lutlab.kernels.codegen import templates
from lutlab.kernels.codegen.isa import Isa
from lutlab.kernels.cpu.rows.tiles import tiles

# Rows of x from which on weights become floats in L1 once for all of them.
TILE_FROM = {"avx2": 20, "portable": 2}


@templates.kept
def source(isa: Isa, *, widths: tuple[int, ...], group_size: int, row_scale: bool) -> str:
    """C source.

    Args:
        isa: the instructions to write it in, AVX2's or none in particular.
        widths: bits that groups have, ascending, of 2, 3 and 4.
        group_size: columns of a group, a multiple of 8.
        row_scale: whether groups of 4 bits share a scale a row.
    """
    return templates.render(
        "mixed/gemv.c",
        simd="avx2" if isa.name == "avx2" else "portable",
        widths=widths,
        g=group_size,
        row_scale=row_scale,
        **tiles(isa, TILE_FROM),
    )
