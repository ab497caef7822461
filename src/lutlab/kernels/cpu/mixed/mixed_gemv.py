"""y[M, N] = x[M, K] W[N, K]^T on the CPU, W of mixed groups (mixed_rows.py) with its outliers.

    y[m, n] = sum_groups scale ( sum_k codes[n, k] x[m, k]  -  zero_point sum_k x[m, k] )  +  sum_outliers value x[m, k]

fp32 throughout, or integers of 24 bits with exact sums (AVX2), as bcq_gemv has them. A row of W is summed by one thread
in a fixed order, so that y does not depend on the number of threads.
"""

from __future__ import annotations

from typing import ClassVar

from lutlab.formats.mixed import PackedMixed
from lutlab.kernels.cpu import VERSIONS
from lutlab.kernels.cpu.mixed import mixed_rows
from lutlab.kernels.cpu.rows.linear import RowsOp
from lutlab.registry import register


@register("kernel", "mixed_gemv")
class MixedGemv(RowsOp):
    """Column groups of 2, 3 and 4 bits and outliers in one call; panels and prefetch distance are not tuned."""

    version: ClassVar[int] = VERSIONS["mixed_gemv"]
    name: ClassVar[str] = "mixed_gemv"
    multiplies: ClassVar[str] = "format mixed"
    formats: ClassVar[tuple[type, ...]] = (PackedMixed,)
    tuned: ClassVar[bool] = False

    def empty(self, packed: PackedMixed, tables: str) -> mixed_rows.PackedMixedRows:
        """See RowsOp."""
        return mixed_rows.empty(packed)
