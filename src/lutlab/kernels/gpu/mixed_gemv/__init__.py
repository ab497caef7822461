"""y[M, N] = x[M, K] W[N, K]^T on a GPU, W of groups of 2, 3 and 4 bits with outliers of 16 bits.

    mixed_async    the paper's Algorithm 1, on tensor cores; chosen
    mixed_sync     its twin without overlap, by name, to measure what asynchrony buys

Variants as those of lut_gemv: knobs, limits and a plan, which is data (lut_gemv/variant.py).
"""

from __future__ import annotations

from lutlab.errors import LutlabError, nearest
from lutlab.kernels.gpu.lut_gemv.variant import Variant
from lutlab.kernels.gpu.mixed_gemv import product

VARIANTS = {one.name: one for one in (product.ASYNC, product.SYNC)}
BEST = "mixed_async"


def variant(name: str) -> Variant:
    """A variant by its name.

    Raises:
        LutlabError: there is none of this name.
    """
    if name not in VARIANTS:
        raise LutlabError(f"no kernel variant '{name}': {nearest(name, VARIANTS)}")
    return VARIANTS[name]
