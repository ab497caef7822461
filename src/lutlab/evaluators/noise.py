"""Standard errors: how far a value measured on n samples may lie from that of endlessly many.

Samples (windows of a text, examples) count as drawn independently; neighbouring windows are not quite, so that the
errors are a little too small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def deviations(parts: Sequence[float], wholes: Sequence[float] | None = None) -> tuple[float, ...]:
    """Each sample's share of the deviation of sum(parts) / sum(wholes) from its expectation, to first order.

        d_i = (parts_i - ratio * wholes_i) / mean(wholes) / sqrt(n (n - 1))

    so that the root of the sum of squares is the standard error; of a difference of two ratios over the same samples it
    is that of the differences d_i - d'_i. Without `wholes`, of the mean of the parts: sqrt(variance / n).

    Raises:
        ValueError: fewer than two samples, which have no spread.
    """
    n = len(parts)
    if n < 2:
        raise ValueError(f"{n} samples have no spread")
    wholes = [1.0] * n if wholes is None else wholes
    ratio, mean = sum(parts) / sum(wholes), sum(wholes) / n
    scale = 1 / (mean * math.sqrt(n * (n - 1)))
    return tuple((p - ratio * w) * scale for p, w in zip(parts, wholes, strict=True))


def standard_error(shares: Sequence[float]) -> float:
    """The standard error that shares of a deviation add up to: the root of the sum of squares."""
    return math.hypot(*shares)


def ratio_error(parts: Sequence[float], wholes: Sequence[float]) -> float:
    """Standard error of sum(parts) / sum(wholes); inf of fewer than two samples."""
    return standard_error(deviations(parts, wholes)) if len(parts) > 1 else math.inf


def proportion_error(share: float, n: int) -> float:
    """Standard error of a share of n examples, with n - 1 as in lm-eval; inf of one example.

    Where none or all are right there is no spread to see: it is that of half an example right or wrong (Jeffreys).
    """
    if n < 2:
        return math.inf
    if share in (0, 1):
        share = 0.5 / (n + 1)
    return math.sqrt(share * (1 - share) / (n - 1))
