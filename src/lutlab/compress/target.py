"""Full-precision targets: the weight that a method is given, so that a layer makes up for errors before it.

    x, x_full [K]   inputs of a layer on one token, in the model as quantized so far and in full precision
    h, h_full [N]   the residual stream that the layer's outputs are added to, in front of the sum
    means over tokens:   H = E[x x^T],   D = E[(x_full - x) x^T] [K, K],   S = E[(h_full - h) x^T] [N, K]

    outputs   W* = argmin_V  E||W x_full - V x||^2 + d ||V - W||^2                     =  W + W D (H + d I)^-1
    stream    W* = argmin_V  E||W x_full + s (h_full - h) - V x||^2 + d ||V - W||^2    =  W + (W D + s S) (H + d I)^-1

As a quantizer then minimises tr((W* - W^) H (W* - W^)^T), its codes come as near as they can to what the layer puts out
in full precision (outputs), or to the stream behind it (stream: of layers that add to one; outputs for all others).
What x tells nothing of is left alone, and d, DAMP times the mean of H's diagonal, keeps W* near W. Layers that read
what is exact so far have D = 0, S = 0 and W* = W.

The target of `outputs`: Li et al., "GPTAQ: Efficient Finetuning-Free Quantization for Asymmetric Calibration" (ICML
2025), Zhang et al., "Qronos: Correcting the Past by Shaping the Future... in Post-Training Quantization" (ICLR 2026);
its W* in closed form: Arai and Ichikawa, "Quantization Error Propagation: Revisiting Layer-Wise Post-Training
Quantization" (arXiv 2504.09629). The stream in a target: Lin and Wan, "LoaQ: Layer-wise Output Approximation
Quantization" (arXiv 2509.06297).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lutlab.errors import LutlabError
from lutlab.quantizers.coefficients import exponent, times_power
from lutlab.quantizers.compensation import factor

DAMP = 0.01
SHARE = 1.0


@dataclass(frozen=True)
class Moments:
    """Cross moments of one shared input, means over tokens, as in the module.

    hessian: H [K, K]; inputs: D [K, K]; stream: S [N, K], None where outputs go elsewhere; all float32.
    """

    hessian: torch.Tensor
    inputs: torch.Tensor
    stream: torch.Tensor | None = None


class Target:
    """Moves the weights of the layers that share an input; H is factored once for all of them."""

    def __init__(self, moments: Moments) -> None:
        self._moments = moments
        self._factored = factor(moments.hessian, DAMP)

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        """W [N, K] float32 -> W* [N, K] float32.

        Raises:
            LutlabError: W* leaves float32's range.
        """
        power = exponent(weight)  # so that sums of products stay in float32's range
        wanted = times_power(weight, -power) @ self._moments.inputs
        if self._moments.stream is not None:
            wanted += SHARE * times_power(self._moments.stream, -power)
        moved = weight + times_power(self._solved(wanted), power)
        if not torch.isfinite(moved).all():
            raise LutlabError(
                "the weight that makes up for the errors of the layers before leaves float32: use target=weights, or "
                "check the weights and the calibration text"
            )
        return moved

    def _solved(self, wanted: torch.Tensor) -> torch.Tensor:
        """The product of wanted [N, K] and (H + d I)^-1, by H + d I = (I + A) D (I + A)^T (compensation.py)."""
        feedback = self._factored.feedback  # (I + A)^T
        solve = torch.linalg.solve_triangular
        half = solve(feedback, wanted, upper=False, left=False, unitriangular=True)
        half /= self._factored.pivots
        return solve(feedback.T, half, upper=True, left=False, unitriangular=True)
