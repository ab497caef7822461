"""y[M, N] = x[M, K] W[N, K]^T on the CPU, W of mixed groups (mixed_rows.py) with its outliers.

    y[m, n] = sum_groups scale ( sum_k codes[n, k] x[m, k]  -  zero_point sum_k x[m, k] )  +  sum_outliers value x[m, k]

fp32 throughout, or integers of 24 bits with exact sums (AVX2), as bcq_gemv has them. A row of W is summed by one thread
in a fixed order, so that y does not depend on the number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lutlab.kernels.codegen import library
from lutlab.kernels.codegen.isa import Isa, detect
from lutlab.kernels.cpu.mixed import mixed_source as mixed
from lutlab.kernels.cpu.rows.rows_gemv import DENSE_ROWS, Kernel, prefetch_bytes
from lutlab.tensors import MIXED_WIDTHS

if TYPE_CHECKING:
    import torch

    from lutlab.kernels.cpu.mixed.mixed_rows import PackedMixedRows

INTEGERS, FLOATS = "mixed int24", "mixed"


def instructions() -> Isa:
    """AVX2 where it runs, also on CPUs with AVX-512: its integers are faster than plain C in 512 bits; else plain C."""
    return detect(without="avx512")


def interleaved(isa: Isa) -> bool:
    """The order of rows (mixed_rows.py) that an instruction set reads."""
    return isa.name == "avx2"


def source(packed: PackedMixedRows, isa: Isa) -> str:
    """The C source for a weight."""
    return mixed.source(
        isa,
        widths=tuple(w for w, units in zip(MIXED_WIDTHS, packed.of_width, strict=True) if units),
        group_size=packed.group_size,
        row_scale=packed.row_scale,
    )


def kernel(packed: PackedMixedRows, isa: Isa | None = None) -> Kernel:
    """The kernel for a weight, built now or before.

    Raises:
        NoCompiler: there is no C compiler.
    """
    isa = isa or instructions()
    widths = "".join(
        str(w) for w, units in zip(MIXED_WIDTHS, packed.of_width, strict=True) if units
    )
    built = library.load(source(packed, isa), f"mixed-{widths}-g{packed.group_size}", isa)
    variant = INTEGERS if interleaved(isa) else FLOATS
    return Kernel(built, variant, isa.name, DENSE_ROWS, prefetch_bytes(isa))


def gemv(
    x: torch.Tensor,
    packed: PackedMixedRows,
    out: torch.Tensor | None = None,
    threads: int | None = None,
) -> torch.Tensor:
    """The product x [..., K] -> y [..., N], as rows_gemv.Kernel.gemv, with the best kernel of this CPU."""
    return kernel(packed).gemv(x, packed, out, threads)
