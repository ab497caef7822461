"""y[M, N] = x[M, K] W[N, K]^T on the CPU, W in planes (bcq_rows.py), by lookup tables in registers.

    y[m, n] = sum_groups ( sum_b alpha_b sum_k B_b[n, k] x[m, k]  +  offset sum_k x[m, k] )        LUT-GEMM Eq. 2

Tables hold float32 sums of activations; with AVX2, where lookups of bytes are cheaper, integers of 24 bits with one
scale for the columns of a unit, whose sums are exact: both are in error by what float32 rounds at the size of the
largest activations. tables="int16" is faster, less exact and never chosen unasked: 16 bits with AVX-512, 18 with AVX2;
an outlier makes the step coarser for the columns of its unit only. Errors as recorded: kernels/README.md.

A row of W is summed by one thread in a fixed order: y does not depend on the number of threads. From `tile_from` rows
of x on (bcq_source.py) weights become floats in L1 once for all of them, whatever the tables: in its last bits, and
with int16 in more, a row of y depends on the number of rows of x.
"""

from __future__ import annotations

from typing import ClassVar

from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.cpu import VERSIONS
from lutlab.kernels.cpu.bcq import bcq_rows
from lutlab.kernels.cpu.bcq.bcq_source import lane_bytes
from lutlab.kernels.cpu.rows.linear import RowsOp
from lutlab.registry import register


@register("kernel", "bcq_gemv")
class BCQGemv(RowsOp):
    """Planes of bits, by lookup tables in registers; those of uniform codes share a scale.

    tables: exact, or int16, which some CPUs have (kernel=int16 of a product).
    """

    version: ClassVar[int] = VERSIONS["bcq_gemv"]
    name: ClassVar[str] = "bcq_gemv"
    multiplies: ClassVar[str] = "formats bcq and uniform"
    formats: ClassVar[tuple[type, ...]] = (PackedBCQ, PackedUniform)
    options: ClassVar[tuple[str, ...]] = ("tables",)

    def empty(self, packed: PackedBCQ | PackedUniform, tables: str) -> bcq_rows.PackedBCQRows:
        """See RowsOp."""
        lanes = lane_bytes(detect(), packed.group_size, packed.shape[1], tables)
        return bcq_rows.empty(packed, lanes)
