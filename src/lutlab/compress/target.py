"""Full-precision targets: the weight that a method is given, so that a layer makes up for the errors before it.

    x, x_full [K]   inputs of a layer on one token, in the model as quantized so far and in full precision
    h, h_full [N]   the residual stream that the layer's outputs are added to, in front of the sum
    means over tokens:   H = E[x x^T],   D = E[(x_full - x) x^T] [K, K],   S = E[(h_full - h) x^T] [N, K]
    of keys and values each token times its weight (calibrate.py)

    outputs   y* = W x_full                 what the layer puts out in the full-precision model
    stream    y* = W x_full + h_full - h    of layers that add to a stream, so that it is the full-precision one behind
                                            the sum; outputs of all others
    W* = W + t U + s V,   U = W D (H + d I)^-1,   V = S (H + d I)^-1 (stream),   0 <= t, s <= 1

W + U + V is the W* of least E||y* - W* x||^2 + d ||W* - W||^2, and a quantizer that minimises
tr((W* - W^) H (W* - W^)^T) then minimises E||y* - W^ x||^2 as far as x tells of it. Layers that read what is exact so
far have D = 0, S = 0 and W* = W. d is damp, the method's own, times the mean of H's diagonal.

U and V fit what is chance in these windows too, the more so the fewer they are. So one of HELD_OUT windows is left out
of them, and t and s are what lowers the error on those windows most, a quadratic of two numbers. By gptq_bcq at q = 2,
g = 128 and 32 windows opt-embedded-s and llama-embedded-s lose 3.35 (summed in another order: 3.58) and 5.58 (5.26) of
perplexity so; with t = s chosen 3.48 and 5.82, with t = s = 1 3.40 and 6.13, with t = 1 and s = 1/2 3.60 and 6.01. At
128 windows t = s = 1 is as good: 2.56 and 5.17, and 2.70 and 5.22 with t and s chosen.

The layers before are those of the same block too (true_sequential): else q, k and v and what reads their outputs make
up for the same error twice (`outputs` at 128 windows: 10.2 for 3.6, and 7.1 without a target).

The target of `outputs`: Li et al., "GPTAQ: Efficient Finetuning-Free Quantization for Asymmetric Calibration" (ICML
2025), Zhang et al., "Qronos: Correcting the Past by Shaping the Future... in Post-Training Quantization" (ICLR 2026);
U in closed form, with a fixed t: Arai and Ichikawa, "Quantization Error Propagation: Revisiting Layer-Wise
Post-Training Quantization" (arXiv 2504.09629). The stream in a target: Lin and Wan, "LoaQ: Layer-wise Output
Approximation Quantization" (arXiv 2509.06297). Choosing t and s by windows held out is ours.

The full-precision model goes beside the one that is quantized. Memory: a copy of one block, the hidden states of all
calibration windows a second time, and of the layers that are observed their cross moments and what they read in one
batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn
from transformers import PreTrainedConfig

from lutlab.base.errors import LutlabError
from lutlab.base.tensors import CalibStats
from lutlab.compress.calibrate import BlockInputs, Sums, advance, read
from lutlab.models.contract import SharedInput
from lutlab.models.families import stream_of
from lutlab.quantizers.coefficients import exponent, times_power
from lutlab.quantizers.compensation import Factored, factor

HELD_OUT = 8  # as many as tuning/ holds out
_ROUNDS = 100  # of two coordinates: a correlation of 0.9 then counts for 0.81^100


# Statistics of one shared input, with H; and D, with S behind it where there is a stream: means over tokens.
Moments = tuple[CalibStats, list[torch.Tensor]]


class Target:
    """Moves the weights of the layers that share an input; H, damped as by the method, is factored once for them."""

    def __init__(self, every: Moments, held_out: Moments, damp: float) -> None:
        self._every, self._held_out = every, held_out
        self._factored = factor(every[0].metric, damp)

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        """W [N, K] float32 -> W* [N, K] float32.

        Raises:
            LutlabError: W* leaves float32's range.
        """
        power = exponent(weight)  # so that squares of outputs stay in float32's range
        every = _lacking(self._every, weight, power)
        moved = weight
        for strength, lacking in zip(self._strengths(weight, every, power), every, strict=True):
            moved = moved + times_power(_solved(self._factored, lacking).mul_(strength), power)
        if not torch.isfinite(moved).all():
            raise LutlabError(
                "the weight that makes up for the errors of the layers before leaves float32: use target=weights, or "
                "check the weights and the calibration text"
            )
        return moved

    def _strengths(
        self, weight: torch.Tensor, every: Sequence[torch.Tensor], power: int
    ) -> list[float]:
        """The t, and s, of the module's equation; every: what is lacking by all tokens."""
        tokens, held_out = self._every[0].tokens, self._held_out[0]
        lacking = _lacking(self._held_out, weight, power)
        steps = [
            _solved(self._factored, (tokens * a - held_out.tokens * b) / (tokens - held_out.tokens))
            for a, b in zip(every, lacking, strict=True)
        ]
        total = sum(lacking[1:], lacking[0])
        gain = [_sum_of_products(total, step) for step in steps]
        pushed = [step @ held_out.metric for step in steps]
        square = [[_sum_of_products(a, b) for b in steps] for a in pushed]
        return _least_in_box(square, gain)


def _lacking(moments: Moments, weight: torch.Tensor, power: int) -> list[torch.Tensor]:
    """2^-power W D, and 2^-power S where there is one: [N, K] each, in sum E[(y* - W x) x^T]."""
    of_inputs, *of_stream = moments[1]
    of_stream = [times_power(moment, -power) for moment in of_stream]
    return [times_power(weight, -power) @ of_inputs, *of_stream]


def _least_in_box(square: Sequence[Sequence[float]], gain: Sequence[float]) -> list[float]:
    """The v in [0, 1]^n of least v^T square v - 2 gain^T v, coordinate by coordinate from 0."""
    least = [0.0] * len(gain)
    for _ in range(_ROUNDS if len(gain) > 1 else 1):
        for i, row in enumerate(square):
            others = sum(row[j] * v for j, v in enumerate(least) if j != i)
            least[i] = min(max((gain[i] - others) / row[i], 0.0), 1.0) if row[i] > 0 else 0.0
    return least


def _solved(factored: Factored, lacking: torch.Tensor) -> torch.Tensor:
    """The product of lacking [N, K] and (H + d I)^-1, by H + d I = (I + A) D (I + A)^T (compensation.py)."""
    feedback = factored.feedback  # (I + A)^T, lower triangular
    solve = torch.linalg.solve_triangular
    half = solve(feedback, lacking, upper=False, left=False, unitriangular=True)
    half /= factored.pivots
    return solve(feedback.T, half, upper=True, left=False, unitriangular=True)


def _sum_of_products(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a * b).sum(dtype=torch.float64).item()


# ---- the full-precision model beside ----


class Beside:
    """One block of the full-precision model at a time, and what it reads.

    Attributes:
        stream: whether targets are of the residual stream, where layers add to it.
        damp: damping of H, in means of its diagonal.
    """

    def __init__(
        self, config: PreTrainedConfig, inputs: BlockInputs, *, stream: bool, damp: float
    ) -> None:
        self.config, self.stream, self.damp = config, stream, damp
        self._inputs = replace(inputs, hidden=list(inputs.hidden))
        self._block: nn.Module  # between `enter` and `leave`

    def enter(self, block: nn.Module) -> None:
        """Keep a copy of a block that is still in full precision."""
        self._block = copy.deepcopy(block)

    def leave(self) -> None:
        """Go on to what the next block reads, and drop the copy."""
        advance(self._block, self._inputs)
        del self._block

    def observe(
        self, block: nn.Module, inputs: BlockInputs, shared: Sequence[SharedInput]
    ) -> tuple[dict[SharedInput, CalibStats], dict[SharedInput, Target]]:
        """Statistics of the inputs of some linear layers of a block as it is now, and the targets of their weights.

        Raises:
            LutlabError: an activation is inf or nan; or there is one window only.
        """
        streams = {s: stream_of(self.config, s) if self.stream else None for s in shared}
        paths = [path for path in streams.values() if path is not None]
        paths = list(dict.fromkeys([*paths, *(s.layers[0] for s in shared)]))
        every, held_out = _Sums(), _Sums()
        for index, rows in enumerate(_held_out(inputs)):
            now = read(block, inputs, index, paths)
            full = read(self._block, self._inputs, index, paths)
            ahead = {path: full.pop(path) - now[path] for path in paths}
            for shared_input, path in streams.items():
                layer = shared_input.layers[0]
                errors = [ahead[layer]] if path is None else [ahead[layer], ahead[path]]
                weights = inputs.weights(index, shared_input)
                every.add(shared_input, now[layer], weights, errors)
                weights = None if weights is None else weights[rows]
                errors = [error[rows] for error in errors]
                held_out.add(shared_input, now[layer][rows], weights, errors)
        of_all, of_held_out = every.moments(), held_out.moments()
        stats = {shared_input: moments[0] for shared_input, moments in of_all.items()}
        return stats, {s: Target(of_all[s], of_held_out[s], self.damp) for s in shared}


def _held_out(inputs: BlockInputs) -> Iterator[torch.Tensor]:
    """Mask [m] bool of each batch, on the CPU: the rows that belong to held-out windows."""
    windows = sum(map(len, inputs.hidden))
    if windows < 2:
        raise LutlabError(
            "target: of the calibration windows one is held out: give at least two, as calibration.samples=128"
        )
    start = 0
    for hidden, tokens in zip(inputs.hidden, inputs.tokens, strict=True):
        samples = torch.arange(start, start + len(hidden)) % HELD_OUT == 0
        start += len(hidden)
        rows = samples.repeat_interleave(hidden.shape[1])
        yield rows if tokens is None else rows[tokens.flatten().cpu()]


class _Sums:
    """Running sums of the moments of each shared input."""

    def __init__(self) -> None:
        self.inputs = Sums()
        self._products: dict[SharedInput, list[torch.Tensor]] = {}

    def add(
        self,
        shared: SharedInput,
        x: torch.Tensor,
        weights: torch.Tensor | None,
        errors: Sequence[torch.Tensor],
    ) -> None:
        """Add a batch: x [m, K]; v [m] or None; x_full - x [m, K], and where there is a stream h_full - h [m, N]."""
        self.inputs.add(shared, x, weights)
        x = x if weights is None else x * weights[:, None]
        if shared not in self._products:
            self._products[shared] = [x.new_zeros(e.shape[1], x.shape[1]) for e in errors]
        for total, error in zip(self._products[shared], errors, strict=True):
            total.addmm_(error.T, x)

    def moments(self) -> dict[SharedInput, Moments]:
        """Mean moments of each shared input, the sums over its number of tokens."""
        return {
            shared: (stats, [total / stats.tokens for total in self._products[shared]])
            for shared, stats in self.inputs.stats().items()
        }
