"""y[M, N] = x[M, K] W[N, K]^T on a GPU, W in BCQ planes, batch 1 first: one file a variant, in the order of idea.

    y[n] = sum_g ( sum_b alpha[g, b, n] sum_{k in g} B_b[n, k] x[k]  +  z[g, n] sum_{k in g} x[k] )      LUT-GEMM Eq. 2

A variant is `<name>.py` here (knobs, limits, plan) and `kernels/cuda/lut_gemv/<name>.cu`. `choose` names the one that
runs; a variant that cannot take a case says why, and nobody takes its place unasked.
"""

from __future__ import annotations

from lutlab.errors import LutlabError, nearest
from lutlab.kernels.gpu.lut_gemv import optq, r0, r1, r2, r3, r4, r5, r6
from lutlab.kernels.gpu.lut_gemv.variant import Case, Gpu, Variant

# In the order of idea; optq is a baseline, and never chosen.
VARIANTS = {module.VARIANT.name: module.VARIANT for module in (optq, r0, r1, r2, r3, r4, r5, r6)}
# What `choose` takes of those that take equally many readings, the best first.
PREFERENCE = ("r5", "r4", "r3", "r6", "r2", "r1", "r0")


def variant(name: str) -> Variant:
    """By name.

    Raises:
        LutlabError: there is none of this name.
    """
    if name not in VARIANTS:
        raise LutlabError(f"no kernel variant '{name}': {nearest(name, VARIANTS)}")
    return VARIANTS[name]


def choose(case: Case, gpu: Gpu) -> Variant:
    """The best variant that can run a case on a GPU: who takes the fewest readings of the weights, by the model.

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
