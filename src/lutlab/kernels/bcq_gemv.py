"""y[M, N] = x[M, K] W[N, K]^T on the CPU, W in planes (formats/bcq_rows.py), by lookup tables in registers.

    y[m, n] = sum_groups ( sum_b alpha_b sum_k B_b[n, k] x[m, k]  +  offset sum_k x[m, k] )        LUT-GEMM Eq. 2

fp32 throughout: no activation is quantized. A row of W is summed by one thread in a fixed order, so that y does not
depend on the number of threads (in its last bits it depends on the number of rows of x).

    >>> packed = bcq_rows.pack(bcq.pack(tensor))                                          # doctest: +SKIP
    >>> bcq_gemv.kernel(packed).gemv(x, packed).shape                                     # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lutlab.codegen import bcq, library
from lutlab.codegen.isa import Isa, detect
from lutlab.kernels.rows_gemv import C_NAMES, Kernel

if TYPE_CHECKING:
    import torch

    from lutlab.formats.bcq_rows import PackedBCQRows

VARIANT = "bcq lut"
# Rows of x from which on dequantizing once is faster, at 4 planes: 4096x4096, AVX2, one thread of a Zen 3. With 2
# planes it is not up to 256 rows.
DENSE_ROWS = 48


def source(packed: PackedBCQRows, isa: Isa) -> str:
    """The C source for a weight."""
    return bcq.source(
        isa,
        q=packed.bits,
        groups_in_unit=packed.geometry.groups_in_unit,
        alpha=C_NAMES[packed.scale_dtype],
        offset=None if packed.offset_dtype is None else C_NAMES[packed.offset_dtype],
    )


def kernel(packed: PackedBCQRows, isa: Isa | None = None) -> Kernel:
    """The kernel for a weight, built now or before.

    Raises:
        NoCompiler: there is no C compiler.
    """
    isa = isa or detect()
    built = library.load(source(packed, isa), f"bcq-q{packed.bits}", isa)
    return Kernel(built, VARIANT, isa.name, None if packed.bits <= 2 else DENSE_ROWS)


def gemv(
    x: torch.Tensor,
    packed: PackedBCQRows,
    out: torch.Tensor | None = None,
    threads: int | None = None,
) -> torch.Tensor:
    """The product x [..., K] -> y [..., N], as rows_gemv.Kernel.gemv, with the best kernel of this CPU."""
    return kernel(packed).gemv(x, packed, out, threads)
