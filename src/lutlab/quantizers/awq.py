"""AWQ: input channels that carry large activations are scaled up before rounding, then the range of a group is clipped.

    s = mean|X|^a / sqrt(max * min),  a in {0, 1/20, .., 19/20} of least  tr(D H D^T),  D = Q(W diag(s)) diag(1/s) - W
    c in {1, 0.95, .., 0.55} of a group and row of least  d H_gg d^T,  d = Q(clamp(W_g, -c max|W_g|, c max|W_g|)) - W_g

Lin et al., "AWQ: Activation-aware Weight Quantization" (2023), section 3.2 (Eq. 4, 5), and the clipping of its
repository (auto_scale.py, auto_clip.py). Q is round-to-nearest on the grid `awq` (grid.py). compress/rescale.py
divides the input by s; one that nothing before it can divide keeps s = 1, and its layers are only clipped: o_proj
where heads share a value head, the second feed-forward layer after GELU, layers after OPT-350m's norms, one weight
(quantize_tensor).

Where this parts from the repository:

    objective   outputs of the linear layers on every calibration token, by H = X^T X / M; theirs are of the attention
                or feed-forward module these belong to, and for clipping of 512 tokens
    q, k        are clipped as well; theirs are not, since their errors multiply each other

Cost: 2 N K^2 operations for each of the 20 a, 2 N K g for each of the 10 c. Memory: a few float32 copies of a weight.

W [N, K] -> s [K] float32; codes [N, K] uint8, scale [N, G], zero_point [N, G] int16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits, Width, blocks, expand, group_count
from lutlab.base.lazy import torch
from lutlab.base.limits import Count
from lutlab.base.registry import register
from lutlab.base.tensors import CalibStats, UniformTensor
from lutlab.quantizers.contract import Rescaling
from lutlab.quantizers.grid import ScaleDtype
from lutlab.quantizers.rtn import RTN

# The repository's: n_grid 20 and max_shrink 0.5 of auto_clip_layer, and the clamp of auto_scale_block.
CLIPS = tuple(1 - step / 20 for step in range(10))
SMALLEST = 1e-4


@register("method", "awq")
@dataclass(frozen=True)
class AWQ(Rescaling):
    """Options; the module says what is searched.

    Attributes:
        inputs: model whose activations the Hessian H is computed from: as quantized so far, or in full precision, as
            AWQ's own code has it.
        true_sequential: true: a layer sees the layers before it in its block quantized; needs inputs=quantized. Inputs
            that a layer of the same block makes are not scaled then.
        grid: number of exponents that are tried for the scales of input channels; AWQ tries 20, 1 tries no scale.
        clip: true: the range of each group is clipped where that lowers the error; false: no clipping.
        scale_dtype: dtype of stored scales.
    """

    version: ClassVar[int] = 1
    format: ClassVar[str] = "uniform"

    inputs: Literal["full", "quantized"] = "full"
    true_sequential: bool = False
    grid: Count = 20
    clip: bool = True
    scale_dtype: ScaleDtype = "fp16"

    def scales(
        self, weights: Sequence[torch.Tensor], widths: Sequence[Width | None], stats: CalibStats
    ) -> torch.Tensor:
        """Those of least output error, summed over the layers; ones where no scale is better than none.

        Raises:
            LutlabError: inputs or weights are inf or nan; a scale is beyond scale_dtype's range.
        """
        _check(stats)
        quantized = [
            (weight, width)
            for weight, width in zip(weights, widths, strict=True)
            if width is not None
        ]
        best, least = channel_scales(stats.mean_abs, 0.0), float("inf")
        for step in range(self.grid):
            scale = channel_scales(stats.mean_abs, step / self.grid)
            error = 0.0
            for weight, (q, g) in quantized:
                difference = self._rounded(weight * scale, q, g).div_(scale).sub_(weight)
                error += output_error(difference, stats.hessian)
            if error < least:
                best, least = scale, error
        return best

    def prepare(self, stats: CalibStats) -> CalibStats:
        """The statistics, checked; there is nothing to factor."""
        _check(stats)
        return stats

    def quantize(
        self, weight: torch.Tensor, q: Bits, g: int, prepared: CalibStats
    ) -> UniformTensor:
        """[N, K] float -> UniformTensor with G = ceil(K / g) groups a row, clipped and rounded."""
        weight = weight.detach().float()
        if self.clip:
            weight = self._clipped(weight, q, g, prepared.hessian)
        return RTN("awq", self.scale_dtype).quantize(weight, q, g)

    def _clipped(
        self, weight: torch.Tensor, q: Bits, g: int, hessian: torch.Tensor
    ) -> torch.Tensor:
        """The weight with each group limited to the c of its own; the larger c where two are equal."""
        largest = largest_of_groups(weight.abs(), g)
        limit = largest
        least = group_errors(self._rounded(weight, q, g) - weight, hessian, g)
        for clip in CLIPS[1:]:
            candidate = _limited(weight, clip * largest, g)
            error = group_errors(self._rounded(candidate, q, g) - weight, hessian, g)
            better = error < least
            least = torch.where(better, error, least)
            limit = torch.where(better, clip * largest, limit)
        return _limited(weight, limit, g)

    def _rounded(self, weight: torch.Tensor, q: Bits, g: int) -> torch.Tensor:
        """Q(W): [N, K] float32 as it will be dequantized."""
        tensor = RTN("awq", self.scale_dtype).quantize(weight, q, g)
        assert tensor.zero_point is not None  # RTN's grids have one
        in_features = weight.shape[1]
        level = tensor.codes - expand(tensor.zero_point, g, in_features)
        return level * expand(tensor.scale.float(), g, in_features)


def channel_scales(mean_abs: torch.Tensor, exponent: float) -> torch.Tensor:
    """[K] -> s [K] with sqrt(max * min) = 1: auto_scale_block of the repository."""
    scale = mean_abs.pow(exponent).clamp(min=SMALLEST)
    return scale / (scale.max() * scale.min()).sqrt()


def output_error(difference: torch.Tensor, hessian: torch.Tensor) -> float:
    """tr(D H D^T) of D [N, K]: the mean over calibration tokens of the squared norm of D x."""
    return float((difference @ hessian).mul_(difference).sum(dtype=torch.float64))


def group_errors(difference: torch.Tensor, hessian: torch.Tensor, g: int) -> torch.Tensor:
    """Error d H_gg d^T of each row and group: difference [N, K], hessian [K, K] -> [N, G] float32.

    The mean squared error of an output if only this group of its weights were rounded.
    """
    errors = difference.new_empty(len(difference), group_count(g, len(hessian)))
    for columns, groups, block in blocks(difference, g):
        count, length = block.shape[1:]
        squares = hessian[columns, columns].unflatten(1, (count, length))
        # [length, length, count]
        hessians = squares.unflatten(0, (count, length)).diagonal(dim1=0, dim2=2)
        rows = block.transpose(0, 1)  # [count, N, length]
        errors[:, groups] = (rows @ hessians.permute(2, 0, 1)).mul_(rows).sum(2).T
    return errors


def largest_of_groups(values: torch.Tensor, g: int) -> torch.Tensor:
    """Largest value of each group: [N, K] -> [N, G]."""
    largest = values.new_empty(len(values), group_count(g, values.shape[1]))
    for _, groups, block in blocks(values, g):
        largest[:, groups] = block.amax(2)
    return largest


def _limited(weight: torch.Tensor, limit: torch.Tensor, g: int) -> torch.Tensor:
    """Weight [N, K] within -limit .. limit, limit [N, G]."""
    wide = expand(limit, g, weight.shape[1])
    return weight.clamp(-wide, wide)


def _check(stats: CalibStats) -> None:
    """Raise LutlabError unless the statistics are finite."""
    if not (torch.isfinite(stats.hessian).all() and torch.isfinite(stats.mean_abs).all()):
        raise LutlabError(
            "the statistics of a layer's inputs are inf or nan: activations overflow in this dtype; use dtype=float32 "
            "or other calibration text"
        )
