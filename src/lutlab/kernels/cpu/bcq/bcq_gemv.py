"""y[M, N] = x[M, K] W[N, K]^T on the CPU, W in planes (bcq_rows.py), by lookup tables in registers.

    y[m, n] = sum_groups ( sum_b alpha_b sum_k B_b[n, k] x[m, k]  +  offset sum_k x[m, k] )        LUT-GEMM Eq. 2

Tables hold float32 sums of activations; with AVX2, where lookups of bytes are cheaper, integers of 24 bits with one
scale for the columns of a unit, whose sums are exact: both are in error by what float32 rounds at the size of the
largest activations. tables="int16" is faster, less exact and never chosen unasked: 16 bits with AVX-512, 18 with AVX2;
an outlier makes the step coarser for the columns of its unit only. Errors as recorded: kernels/README.md.

A row of W is summed by one thread in a fixed order: y does not depend on the number of threads. From `tile_from` rows
of x on (codegen/bcq.py) weights become floats in L1 once for all of them, whatever the tables: in its last bits, and
with int16 in more, a row of y depends on the number of rows of x.

    >>> packed = bcq_rows.pack(bcq.pack(tensor))                                          # doctest: +SKIP
    >>> bcq_gemv.kernel(packed).gemv(x, packed).shape                                     # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lutlab.errors import LutlabError, nearest
from lutlab.formats.bcq import WORD
from lutlab.kernels.codegen import library
from lutlab.kernels.codegen.isa import Isa, detect
from lutlab.kernels.cpu.bcq import bcq_source as bcq
from lutlab.kernels.cpu.rows.row_blocks import geometry
from lutlab.kernels.cpu.rows.rows_gemv import C_NAMES, DENSE_ROWS, Kernel, prefetch_bytes

if TYPE_CHECKING:
    import torch

    from lutlab.kernels.cpu.bcq.bcq_rows import PackedBCQRows

EXACT, INT16 = "exact", "int16"  # what tables hold
# Instruction set, tables -> bytes of a row that lie together, bits of an integer entry, variant; else FLOATS.
INTEGERS = {
    ("avx2", EXACT): (1, 24, "bcq lut int24"),
    ("avx2", INT16): (1, 18, "bcq lut int18"),
    ("avx512", INT16): (2, 16, "bcq lut int16"),
}
FLOATS = (4, None, "bcq lut")


def lane_bytes(isa: Isa, group_size: int, in_features: int, tables: str = EXACT) -> int:
    """The layout (bcq_rows.py) of the fastest kernel; a word that holds several groups has tables of floats.

    Raises:
        LutlabError: there are no such tables for this instruction set.
    """
    if tables not in (EXACT, INT16):
        raise LutlabError(f"tables={tables}: no such tables; {nearest(tables, (EXACT, INT16))}")
    if tables == INT16 and (isa.name, tables) not in INTEGERS:
        raise LutlabError(
            f"tables={tables} exist for AVX-512 and AVX2, and kernels are built for {isa.name}: take tables={EXACT}"
        )
    if geometry(in_features, group_size, WORD).groups_in_unit > 1:
        return FLOATS[0]
    return INTEGERS.get((isa.name, tables), FLOATS)[0]


def source(packed: PackedBCQRows, isa: Isa, tables: str = EXACT) -> str:
    """The C source for a weight."""
    _, table_bits, _ = _kind(packed, isa, tables)
    planes = {
        "q": packed.bits,
        "alpha": C_NAMES[packed.scale_dtype],
        "offset": None if packed.offset_dtype is None else C_NAMES[packed.offset_dtype],
    }
    if table_bits:
        return bcq.integer_source(isa, **planes, table_bits=table_bits)
    return bcq.source(isa, **planes, groups_in_unit=packed.geometry.groups_in_unit)


def kernel(packed: PackedBCQRows, isa: Isa | None = None, tables: str = EXACT) -> Kernel:
    """The kernel for a weight, built now or before.

    Raises:
        NoCompiler: there is no C compiler.
        LutlabError: the weight is not packed for these tables and this instruction set.
    """
    isa = isa or detect()
    _, table_bits, variant = _kind(packed, isa, tables)
    name = f"bcq-q{packed.bits}" + (f"-int{table_bits}" if table_bits else "")
    built = library.load(source(packed, isa, tables), name, isa)
    return Kernel(built, variant, isa.name, DENSE_ROWS, prefetch_bytes(isa))


def _kind(packed: PackedBCQRows, isa: Isa, tables: str) -> tuple[int, int | None, str]:
    for kind in (INTEGERS.get((isa.name, tables), FLOATS), FLOATS):
        if kind[0] == packed.lane_bytes:
            return kind
    raise LutlabError(
        f"planes packed with lane_bytes={packed.lane_bytes} have no kernel for {isa.name} with tables={tables}: "
        f"pack with lane_bytes={lane_bytes(isa, packed.group_size, packed.shape[1], tables)}"
    )


def gemv(
    x: torch.Tensor,
    packed: PackedBCQRows,
    out: torch.Tensor | None = None,
    threads: int | None = None,
) -> torch.Tensor:
    """The product x [..., K] -> y [..., N], as rows_gemv.Kernel.gemv, with the best kernel of this CPU."""
    return kernel(packed).gemv(x, packed, out, threads)
