"""y[M, N] = x[M, K] W[N, K]^T on the CPU, W uniform codes (uniform_rows.py), converted and multiplied.

    y[m, n] = sum_groups scale ( sum_k codes[n, k] x[m, k]  -  zero_point sum_k x[m, k] )             QIGen Eq. 2

Codes become floats and meet float32 activations; codes of up to 4 bits on AVX2, for up to 3 rows of x, meet
activations as integers of 24 bits with one scale for the columns of a unit, whose sums are exact: both are in error by
what float32 rounds at the size of the largest activations. A row of W is summed by one thread in a fixed order, so that
y does not depend on the number of threads; it does, in its last bits, on the number of rows of x. Codes of 2 and 3 bits
are faster as planes: formats/bcq_rows.pack_uniform.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lutlab.kernels.codegen import library
from lutlab.kernels.codegen.isa import Isa, detect
from lutlab.kernels.cpu.rows.rows_gemv import C_NAMES, DENSE_ROWS, Kernel, prefetch_bytes
from lutlab.kernels.cpu.uniform import uniform_source as uniform

if TYPE_CHECKING:
    import torch

    from lutlab.kernels.cpu.uniform.uniform_rows import PackedUniformRows

FLOATS, INTEGERS = "uniform convert", "uniform int24"


def source(packed: PackedUniformRows, isa: Isa) -> str:
    """The C source for a weight."""
    return uniform.source(isa, bits=packed.field_bits, scale=C_NAMES[packed.scale_dtype])


def kernel(packed: PackedUniformRows, isa: Isa | None = None) -> Kernel:
    """The kernel for a weight, built now or before.

    Raises:
        NoCompiler: there is no C compiler.
    """
    isa = isa or detect()
    built = library.load(source(packed, isa), f"uniform-{packed.field_bits}", isa)
    variant = INTEGERS if uniform.integers(isa, packed.field_bits) else FLOATS
    return Kernel(built, variant, isa.name, DENSE_ROWS, prefetch_bytes(isa))


def gemv(
    x: torch.Tensor,
    packed: PackedUniformRows,
    out: torch.Tensor | None = None,
    threads: int | None = None,
) -> torch.Tensor:
    """The product x [..., K] -> y [..., N], as rows_gemv.Kernel.gemv, with the best kernel of this CPU."""
    return kernel(packed).gemv(x, packed, out, threads)
