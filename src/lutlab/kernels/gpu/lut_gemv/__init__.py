"""y[M, N] = x[M, K] W[N, K]^T on a GPU, W in BCQ planes, batch 1 first: one file a variant, in the order of idea.

    y[n] = sum_g ( sum_b alpha[g, b, n] sum_{k in g} B_b[n, k] x[k]  +  z[g, n] sum_{k in g} x[k] )      LUT-GEMM Eq. 2

A variant is `<name>.py` here (knobs, limits, plan) and `kernels/cuda/lut_gemv/<name>.cu`. `choose` names the one that
runs; a variant that cannot take a case says why, and nobody takes its place unasked.
"""

from __future__ import annotations

from lutlab.errors import LutlabError, nearest
from lutlab.kernels.gpu.lut_gemv import (
    bit_planes,
    half_bits,
    lane_tables,
    optq,
    paper,
    uniform_mma,
)
from lutlab.kernels.gpu.lut_gemv.variant import Case, Gpu, Variant
from lutlab.kernels.gpu.short_names import full_name

# By name, in the order of idea; optq is a baseline, and never chosen.
VARIANTS = {
    module.VARIANT.name: module.VARIANT
    for module in (
        optq,
        paper,
        lane_tables,
        bit_planes,
        uniform_mma,
        half_bits,
    )
}
# The variants that `choose` may take, the best first of those that take equally many readings.
PREFERENCE = (
    "uniform_mma",
    "bit_planes",
    "lane_tables",
    "half_bits",
    "paper",
)


def variant(name: str) -> Variant:
    """A variant by its name or its short name.

    Raises:
        LutlabError: there is none of this name.
    """
    if full_name(name) not in VARIANTS:
        raise LutlabError(f"no kernel variant '{name}': {nearest(name, VARIANTS)}")
    return VARIANTS[full_name(name)]


def choose(case: Case, gpu: Gpu) -> Variant:
    """The best variant that can run a case on a GPU: that of the fewest readings of the weights, by the model.

    Raises:
        LutlabError: none can; with each one's reason.
    """
    reasons = {name: VARIANTS[name].why_not(case, gpu) for name in PREFERENCE}
    takes = [VARIANTS[name] for name, why in reasons.items() if why is None]
    if not takes:
        raise LutlabError(
            "no kernel takes this product. "
            + "; ".join(f"{n}: {why}" for n, why in reasons.items())
        )
    return min(takes, key=lambda one: one.readings(case))
