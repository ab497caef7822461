"""Refinement as its equations stand, one row and one weight at a time in float64: nothing is kept up to date."""

from __future__ import annotations

from collections.abc import Callable

import torch


def naive_refinement(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    codes: list[int],
    coefficients: list[torch.Tensor],
    words: Callable[[torch.Tensor], torch.Tensor],
    fitted: Callable[[list[int], Callable[[torch.Tensor], float], torch.Tensor], torch.Tensor],
    length: int,
    sweeps: int,
) -> tuple[list[int], list[torch.Tensor]]:
    """Codes and coefficients of one row.

    Args:
        weight: [K] float64.
        hessian: [K, K] float64.
        codes: of the columns.
        coefficients: of the groups.
        words: coefficients -> the value of every code, [2^q].
        fitted: (codes of a group, H of the group, H E of the group and its own value, coefficients) -> better ones.
        length: of a group.
        sweeps: how often.
    """
    codes, coefficients = list(codes), list(coefficients)

    def value() -> torch.Tensor:
        return torch.stack([words(coefficients[j // length])[code] for j, code in enumerate(codes)])

    def error() -> float:
        left = weight - value()
        return float(left @ hessian @ left)

    for _ in range(sweeps):
        for group in range(len(coefficients)):
            at = slice(group * length, min((group + 1) * length, len(weight)))
            kept, codes_kept, least = coefficients[group], list(codes), error()
            own = hessian[at, at] @ value()[at]
            wanted = (hessian @ (weight - value()))[at] + own
            coefficients[group] = fitted(codes[at], hessian[at, at], wanted, kept)
            if not error() < least:
                coefficients[group] = kept
            for j in range(at.start, at.stop):
                now = value()
                aim = now[j] + (hessian @ (weight - now))[j] / hessian[j, j]
                codes[j] = int((words(coefficients[group]) - aim).abs().argmin())
            if not error() < least:
                coefficients[group], codes = kept, codes_kept
    return codes, coefficients
