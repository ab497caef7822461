"""GPTQ (OPTQ): the uniform grid of RTN, with errors made up for by the columns still to be rounded.

    code_j = clamp(round(W'_j / s) + zero, 0, 2^q - 1),  W'_j = W_j + sum_{i<j} E_i A_ij,  E_i = W_i - s (code_i - zero)

Frantar et al., "OPTQ: Accurate Quantization for Generative Pre-trained Transformers" (ICLR 2023), section 3.
compensation.py derives A and says what the options change; grid.py says how s and zero follow from a group of W'.

With scale_bits=4 a scale is stored in 4 bits, on a grid a row (base/second_order.py), in place of 16. The grids are
fitted to the scales at the end, which move to them; one more sweep then fits scales, zero points and codes again.

W [N, K] -> codes [N, K] uint8, scale [N, G], zero_point [N, G] int16; with act_order also order [K] int32.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

from lutlab.base import second_order
from lutlab.base.groups import Bits, group_count
from lutlab.base.lazy import torch
from lutlab.base.limits import CountFrom0
from lutlab.base.registry import register
from lutlab.base.tensors import UniformSecondOrderTensor, UniformTensor
from lutlab.quantizers.coefficient_grids import CodeBits, Grids, take_bits
from lutlab.quantizers.compensation import Compensated, Damp, Factored, checked, compensate
from lutlab.quantizers.grid import SMALLEST, Grid, Rule, ScaleDtype
from lutlab.quantizers.refinement import refined, solved


@register("method", "gptq")
@dataclass(frozen=True)
class GPTQ(Compensated):
    """Options of the grid; the others are in compensation.py.

    Attributes:
        variant: rule that makes a grid from a group's range.
        scale_dtype: dtype of stored scales.
        sweeps: passes after GPTQ; each fits scale, zero point and codes of all groups to the layer's outputs. 0: plain
            GPTQ.
        sweep_damp: damping of the Hessian in the sweeps, as damp is before them; 0: they lower the outputs' own error.
        symmetric: true: the zero point of every group is 2^(q-1), also after sweeps.
        scale_bits: bits of a stored scale; below 16 integers on a grid a row, whose 24 bits count too.
    """

    version: ClassVar[int] = 1
    format: ClassVar[str] = "uniform"

    variant: Rule = "gptq"
    scale_dtype: ScaleDtype = "fp16"
    sweeps: CountFrom0 = 0
    sweep_damp: Damp = 0.0
    symmetric: bool = False
    scale_bits: CodeBits = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        take_bits(self, self.scale_bits, self.scale_dtype, "scale")

    def quantize(
        self, weight: torch.Tensor, q: Bits, g: int, prepared: Factored
    ) -> UniformTensor | UniformSecondOrderTensor:
        """[N, K] float and the factored inputs -> codes, scales and zero points of G = ceil(K / g) groups a row."""
        weight, q = checked(weight, q, g)
        grids = _Grids(weight, q, g, Grid(self.variant, self.scale_dtype, self.symmetric))
        codes, order = compensate(weight, g, prepared, grids, self.block_size, self.static_groups)
        damp = self.sweep_damp
        if self.sweeps:
            codes = refined(weight, codes, order, grids.at, prepared, g, self.sweeps, damp=damp)
        if self.scale_bits == 16:
            return UniformTensor(codes, *grids.stored(), q, g, order)
        of_scales = grids.move_to_grids(self.scale_bits)
        codes = refined(weight, codes, order, grids.at, prepared, g, sweeps=1, damp=damp)
        scale, zero = grids.stored()
        code, few = of_scales.codes(scale.unsqueeze(0)), (of_scales.step, of_scales.zero)
        return UniformSecondOrderTensor(codes, code, *few, zero, q, g, self.scale_bits, order)


class _Grids:
    """The grids of all groups: step, lowest and highest level, [G, N] float32. A level is code - zero.

    As refinement.Books they have the planes codes and 1: a = (step, -step zero), changed in place.
    of_scales: where the steps of a row lie; None: anywhere.
    """

    def __init__(self, weight: torch.Tensor, q: int, g: int, grid: Grid) -> None:
        rows, in_features = weight.shape
        self.q, self.grid = q, grid
        self.of_scales: Grids | None = None
        self.step = weight.new_empty(group_count(g, in_features), rows)
        self.lowest, self.highest = self.step.clone(), self.step.clone()

    def at(self, rows: slice) -> _Grids:
        """The grids of some rows."""
        grids = copy.copy(self)
        grids.step, grids.lowest, grids.highest = (
            values[:, rows] for values in (self.step, self.lowest, self.highest)
        )
        grids.of_scales = None if self.of_scales is None else self.of_scales.rows(rows)
        return grids

    def move_to_grids(self, bits: int) -> Grids:
        """Fit a grid to the steps of each row, and move these to it."""
        self.of_scales = Grids(self.step.t().unsqueeze(0), bits)
        self.of_scales.step.clamp_(min=SMALLEST["fp16"])  # of a row of zeros, whose scales are tiny
        self.step = self.stored_as(self.step)
        return self.of_scales

    def stored_as(self, scale: torch.Tensor) -> torch.Tensor:
        """Scales [n, N] as they can be stored, above 0."""
        if self.of_scales is None:
            scale = scale.to(self.grid.dtype).to(scale.dtype)
            return scale.clamp(min=SMALLEST[self.grid.scale_dtype])
        step, zero = self.of_scales.step, self.of_scales.zero
        code = self.of_scales.codes(scale.nan_to_num(0.0).t().unsqueeze(0))
        point = second_order.decoded(code, step, zero)[0].t()
        return torch.where(point > 0, point, step * zero.clamp(min=1)).to(scale.dtype)

    def fit(self, group: int, values: torch.Tensor) -> None:
        step, zero = self.grid.fit(values.amin(dim=0), values.amax(dim=0), self.q)
        self.step[group] = step
        self.lowest[group] = -zero
        self.highest[group] = 2**self.q - 1 - zero

    def round(self, group: int, column: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        step = self.step[group]
        level = (column / step).round_().clamp_(self.lowest[group], self.highest[group])
        return level, level * step

    def codes(self, levels: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        return (levels - self.lowest.index_select(0, groups)).to(torch.uint8)

    def stored(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale [N, G] and zero point [N, G] int16."""
        scale = self.step.t().to(self.grid.dtype).contiguous()
        return scale, -self.lowest.t().to(torch.int16).contiguous()

    def planes(self, codes: torch.Tensor) -> list[torch.Tensor]:
        values = codes.float()
        return [values, values.new_ones(len(values), 1)]

    def coefficients(self, group: int) -> torch.Tensor:
        step = self.step[group].double()
        return torch.stack((step, step * self.lowest[group]))

    def fitted(self, before: torch.Tensor, gram: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
        """The best zero point among those beside the real optimum and the present one, each with its best scale.

        Of a symmetric grid, the present one.
        """
        target = (gram * before).sum(dim=1) + rhs
        free = before + solved(gram, rhs)
        near = torch.round(-free[1] / free[0]).nan_to_num(0.0, 0.0, 0.0)
        zeros = torch.stack((near - 1, near, near + 1)).clamp(0, 2**self.q - 1)
        present = torch.round(-before[1] / before[0]).unsqueeze(0)
        zeros = present if self.grid.symmetric else torch.cat((zeros, present))
        square = gram[0, 0] - zeros * (2 * gram[0, 1] - zeros * gram[1, 1])
        scale = (target[0] - zeros * target[1]) / square
        scale = self.stored_as(scale)
        tried = torch.stack((scale, -scale * zeros), dim=1)  # [candidates, 2, N]
        step = tried - before
        rises = (step * ((gram * step.unsqueeze(1)).sum(dim=2) - 2 * rhs)).sum(dim=1)
        best = rises.nan_to_num(torch.inf, torch.inf).argmin(dim=0)
        return tried.gather(0, best.expand(1, 2, -1))[0]

    def store(self, group: int, coefficients: torch.Tensor) -> None:
        step = coefficients[0]
        self.step[group] = step
        self.lowest[group] = torch.round(coefficients[1] / step)
        self.highest[group] = self.lowest[group] + (2**self.q - 1)
