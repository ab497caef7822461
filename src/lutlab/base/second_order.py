"""Coefficients of second order: those of a row are integers of b bits, on a grid of the row.

    a[p, n, i] = step[p, n] * (code[p, n, i] + zero[p, n]),  code in 0 .. 2^b-1

p numbers the coefficients of a group, n the rows, i the groups of a row. A grid is 24 bits for all groups of a row.
Scales of Li et al., "Fast and Efficient 2-bit LLM Inference on GPU" (ICCAD 2024), Eq. 3, are of this form, with grids
of bands of rows.

Nothing is rounded: a step has 4 significant bits and code + zero is -128 .. 127, so that every a is a float16.
"""

from __future__ import annotations

from lutlab.base.lazy import torch

STEP_BITS = 4  # significant ones
LEAST, MOST = -128, 127  # of code + zero
# Of the range of a row's coefficients: grids that are narrower clip the outermost and are finer for the others.
WIDTHS = (1.1, 1.05, 1.0, 0.95, 0.9, 0.85, 0.8, 0.7)


def coefficients(alpha: torch.Tensor, offset: torch.Tensor | None) -> torch.Tensor:
    """[P, N, G]: alphas [q, N, G], and behind them an offset [N, G] where there is one."""
    return alpha if offset is None else torch.cat((alpha, offset.unsqueeze(0)))


def decoded(code: torch.Tensor, step: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Coefficients [P, N, G] float16, exact.

    Args:
        code: [P, N, G] integers of b bits.
        step: [P, N] float16 of few significant bits.
        zero: [P, N] integers.
    """
    return (step.float().unsqueeze(2) * (code.float() + zero.float().unsqueeze(2))).half()


def nearest(a: torch.Tensor, step: torch.Tensor, zero: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes [P, N, G] uint8 of the grid's points nearest to coefficients a [P, N, G]: the inverse of `decoded`."""
    inverse = torch.where(step > 0, step.double().reciprocal(), 0.0).unsqueeze(2)
    place = (a.double() * inverse).round_() - zero.double().unsqueeze(2)
    return place.clamp_(0, 2**bits - 1).to(torch.uint8)


def grid(a: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Grids of coefficients a [P, N, G], of each row the one of a few that errs least: step, zero as in `decoded`."""
    low, high = a.double().aminmax(dim=2)
    last = 2**bits - 1
    best = torch.full_like(low, torch.inf)
    step, zero = torch.zeros_like(low).half(), torch.zeros_like(low).to(torch.int8)
    for width in WIDTHS:
        wide, first = (high - low) * width, low + (high - low) * (1 - width) / 2
        # Steps as wide as the range in all, and so coarse that both ends are within what code + zero can be.
        least = torch.stack((wide / last, first / LEAST, (first + wide) / MOST)).amax(dim=0)
        mantissa, exponent = torch.frexp(least)
        steps = torch.ldexp((mantissa * 2**STEP_BITS).ceil() / 2**STEP_BITS, exponent).half()
        places = (first / steps).nan_to_num(0.0, 0.0, 0.0).round()
        zeros = places.clamp(LEAST, MOST - last).to(torch.int8)
        error = decoded(nearest(a, steps, zeros, bits), steps, zeros).double().sub_(a)
        error = error.square_().sum(dim=2)
        better = error < best
        best = torch.where(better, error, best)
        step, zero = torch.where(better, steps, step), torch.where(better, zeros, zero)
    return step, zero
