"""Full-precision targets: the weight that a method is given, so that a layer makes up for the errors before it.

    x, x_full [K]   inputs of a layer on one token, in the model as quantized so far and in full precision
    h, h_full [N]   the residual stream that the layer's outputs are added to, in front of the sum
    means over tokens:   H = E[x x^T],   D = E[(x_full - x) x^T] [K, K],   S = E[(h_full - h) x^T] [N, K]

    outputs   y* = W x_full                   what the layer puts out in the full-precision model
    stream    y* = W x_full + h_full - h      of layers that add to a stream: what it then carries; outputs of others
    W* = W + t U,   U = argmin_U E||y* - (W + U) x||^2 + d ||U||^2 = (W D [+ S]) (H + d I)^-1,   0 <= t <= 1

A quantizer that minimises tr((W* - W^) H (W* - W^)^T) then minimises E||y* - W^ x||^2 as far as x tells of it. Layers
that read what is exact so far have D = 0, S = 0 and W* = W. d is DAMP times the mean of H's diagonal.

U also fits what is chance in these windows, the more so the fewer they are. So one window of HELD_OUT is left out of
it, and t is what lowers the error on those most, in closed form:

    t = tr(R U'^T) / tr(U' H' U'^T),   R = W D' [+ S'],   D', S', H' of the held-out tokens, U' of all others

The target of `outputs`: Li et al., "GPTAQ: Efficient Finetuning-Free Quantization for Asymmetric Calibration" (ICML
2025), Zhang et al., "Qronos: Correcting the Past by Shaping the Future... in Post-Training Quantization" (ICLR 2026);
W* in closed form, with a fixed t: Arai and Ichikawa, "Quantization Error Propagation: Revisiting Layer-Wise
Post-Training Quantization" (arXiv 2504.09629). The stream in a target: Lin and Wan, "LoaQ: Layer-wise Output
Approximation Quantization" (arXiv 2509.06297). Choosing t by windows held out is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lutlab.errors import LutlabError
from lutlab.quantizers.coefficients import exponent, times_power
from lutlab.quantizers.compensation import Factored, factor

DAMP = 0.01
HELD_OUT = 8


@dataclass(frozen=True)
class Moments:
    """Of one shared input, means over `tokens`, as in the module, float32.

    hessian: H [K, K]; inputs: D [K, K]; stream: S [N, K], None where outputs are added to none, or that is not asked.
    """

    tokens: int
    hessian: torch.Tensor
    inputs: torch.Tensor
    stream: torch.Tensor | None = None

    def lacking(self, weight: torch.Tensor, power: int) -> torch.Tensor:
        """2^-power E[(y* - W x) x^T] of W [N, K]: [N, K]."""
        found = times_power(weight, -power) @ self.inputs
        return found if self.stream is None else found.add_(times_power(self.stream, -power))


class Target:
    """Moves the weights of the layers that share an input; H is factored once for all of them."""

    def __init__(self, every: Moments, held: Moments) -> None:
        self._every, self._held = every, held
        self._factored = factor(every.hessian, DAMP)

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        """W [N, K] float32 -> W* [N, K] float32.

        Raises:
            LutlabError: W* leaves float32's range.
        """
        power = exponent(weight)  # so that squares of outputs stay in float32's range
        every = self._every.lacking(weight, power)
        step = _solved(self._factored, every)
        moved = weight + times_power(step.mul_(self._strength(weight, every, power)), power)
        if not torch.isfinite(moved).all():
            raise LutlabError(
                "the weight that makes up for the errors of the layers before leaves float32: use target=weights, or "
                "check the weights and the calibration text"
            )
        return moved

    def _strength(self, weight: torch.Tensor, every: torch.Tensor, power: int) -> float:
        """The t of the module's equation; every: E[(y* - W x) x^T] of all tokens."""
        tokens, held = self._every.tokens, self._held
        wanted = held.lacking(weight, power)
        others = (tokens * every - held.tokens * wanted).div_(tokens - held.tokens)
        step = _solved(self._factored, others)
        squares = _sum_of_products(step @ held.hessian, step)
        return min(max(_sum_of_products(wanted, step) / squares, 0.0), 1.0) if squares > 0 else 0.0


def _solved(factored: Factored, wanted: torch.Tensor) -> torch.Tensor:
    """The product of wanted [N, K] and (H + d I)^-1, by H + d I = (I + A) D (I + A)^T (compensation.py)."""
    feedback = factored.feedback  # (I + A)^T, lower triangular
    solve = torch.linalg.solve_triangular
    half = solve(feedback, wanted, upper=False, left=False, unitriangular=True)
    half /= factored.pivots
    return solve(feedback.T, half, upper=True, left=False, unitriangular=True)


def _sum_of_products(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a * b).sum(dtype=torch.float64).item()
