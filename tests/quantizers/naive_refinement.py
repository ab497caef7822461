"""Refinement as its equations stand, one row and one weight at a time in float64: nothing is kept up to date."""

from __future__ import annotations

import torch


def naive_refinement(weight, hessian, codes, coefficients, words, fitted, length, sweeps):
    """Codes and coefficients of one row [K] float64.

    words: coefficients of a group -> the value of every code, [2^q].
    fitted: (codes of a group, H of the group, H E of the group and its own value, coefficients) -> better ones.
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
