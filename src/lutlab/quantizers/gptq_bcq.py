"""GPTQ to BCQ: errors are made up for as in GPTQ, and each group takes the nearest codewords of its own binary codes.

    W_hat_j = nearest of { sum_b +-alpha_b (+ z) } to W'_j,   alpha (and z) of a group fitted on its W' when it begins

LUT-GEMM section 5.1 quantizes with GPTQ and converts the uniform codes to BCQ (Eq. 5, method gptq here). Fitting the
codes non-uniformly inside GPTQ stores fewer bits and, up to q = 3 and in groups, errs less at outputs; a code book of a
whole row (g = -1) is fitted before any error is passed on, and at q = 2 W' outgrows it. compensation.py derives W' and
says what the options of GPTQ change.

The fit begins at a uniform grid: mean +- step * 2^(b-1) * deviation, with the step that errs least on Gaussian weights.
alternating.py, as method bcq uses it, solves to the end from starts that do not depend on the distribution; from here
five rounds inside GPTQ err as much at q = 3, g = 128 and with offset.

With offset by default: it costs 16 bits a group, and buys more than those bits do as smaller groups.

With alpha_bits=4 a coefficient is stored in 4 bits, on a grid a row and plane (base/second_order.py), in place of 16.
The grids are those of a first pass; in a second one a group's coefficients move to them before its columns are rounded.

W [N, K] -> codes [N, K] uint8, alpha [q, N, G], z [N, G] or None; with act_order also order [K] int32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lutlab.base import second_order
from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits, group_count
from lutlab.base.lazy import torch
from lutlab.base.limits import Count
from lutlab.base.registry import register
from lutlab.base.tensors import BCQTensor, SecondOrderTensor
from lutlab.quantizers.alternating import (
    SortedGroups,
    alternate,
    ceil32,
    sort_groups,
    uniform_planes,
)
from lutlab.quantizers.coefficient_grids import CodeBits, Grids, on_grids, take_bits
from lutlab.quantizers.compensation import Compensated, Factored, checked, compensate
from lutlab.quantizers.grid import ScaleDtype

FIT_FLOATS = 2**22  # weights of rows that are fitted at once: the solver holds some 20 bytes each
# Step of the uniform grid of 2^q levels that errs least on Gaussian weights of deviation 1 (Max 1960), for q = 1 .. 8.
GAUSSIAN_STEP = (1.596, 0.9957, 0.5860, 0.3352, 0.1881, 0.1041, 0.0569, 0.0308)


@register("method", "gptq_bcq")
@dataclass(frozen=True)
class GPTQBCQ(Compensated):
    """Options of the binary codes; the others are in compensation.py.

    Attributes:
        offset: true: each group has an offset beside its q coefficients.
        rounds: largest number of rounds of the solver.
        alpha_dtype: dtype of stored coefficients and offsets.
        alpha_bits: bits of a stored coefficient; below 16 integers on a grid a row and plane, whose 24 bits count too.
    """

    version: ClassVar[int] = 1
    format: ClassVar[str] = "bcq"

    offset: bool = True
    rounds: Count = 5
    alpha_dtype: ScaleDtype = "fp16"
    alpha_bits: CodeBits = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        take_bits(self, self.alpha_bits, self.alpha_dtype, "alpha")

    def quantize(
        self, weight: torch.Tensor, q: Bits, g: int, prepared: Factored
    ) -> BCQTensor | SecondOrderTensor:
        """[N, K] float and the factored inputs -> codes and coefficients of G = ceil(K / g) groups a row."""
        first = self.binary(weight, q, g, prepared)
        if self.alpha_bits == 16:
            return first
        grids = Grids(second_order.coefficients(first.alpha, first.offset), self.alpha_bits)
        return on_grids(self.binary(weight, q, g, prepared, grids), grids)

    def binary(
        self, weight: torch.Tensor, q: Bits, g: int, prepared: Factored, grids: Grids | None = None
    ) -> BCQTensor:
        """Codes and coefficients, which are float16 or float32, on grids where there are any."""
        weight, q = checked(weight, q, g)
        groups = group_count(g, weight.shape[1])
        dtype = torch.float16 if self.alpha_dtype == "fp16" else torch.float32
        alpha = weight.new_empty(q, len(weight), groups, dtype=dtype)
        offset = weight.new_empty(len(weight), groups, dtype=dtype) if self.offset else None
        books = Codewords(alpha, offset, self.rounds, grids)
        codes, order = compensate(weight, g, prepared, books, self.block_size, self.static_groups)
        return BCQTensor(codes, books.alpha, books.offset, q, g, order)


class Codewords:
    """The binary codes of all groups: alpha [q, N, G], offset [N, G] or None, and by group their sorted codewords.

    rounds: most rounds of `fit`; grids: where coefficients have to lie, None: anywhere.
    words: [2^q * N] float32, ascending along 2^q; cuts: [2^q - 1, N] float32, what is at or above cut j is nearer to
    word j + 1; code_of: [2^q * N] uint8. A level is the index into words and code_of: j * N + n, int32.
    """

    def __init__(
        self,
        alpha: torch.Tensor,
        offset: torch.Tensor | None,
        rounds: int = 0,
        grids: Grids | None = None,
    ) -> None:
        self.alpha, self.offset, self.rounds, self.grids = alpha, offset, rounds, grids
        self.q, rows, _ = alpha.shape
        self.words: dict[int, torch.Tensor] = {}
        self.cuts: dict[int, torch.Tensor] = {}
        self.code_of: dict[int, torch.Tensor] = {}
        self.row = torch.arange(rows, dtype=torch.int32, device=alpha.device)
        self.above = alpha.new_empty(2**self.q - 1, rows, dtype=torch.float32)

    def fit(self, group: int, values: torch.Tensor) -> None:
        """Fit the codes of a group to its weights [length, N] (compensation.CodeBooks)."""
        some = values.split(max(1, FIT_FLOATS // len(values)), dim=1)
        folded, dtype = self.offset is None, self.alpha.dtype
        parts = [
            solve_from_grid(
                rows.t().contiguous(), self.q, rounds=self.rounds, offset=not folded, dtype=dtype
            )
            for rows in some
        ]
        alpha = torch.cat([alpha for alpha, _ in parts], dim=1)
        offsets = [offset for _, offset in parts if offset is not None]
        offset = torch.cat(offsets) if offsets else None
        for coefficient in (alpha,) if offset is None else (alpha, offset):
            if not torch.isfinite(coefficient).all():
                raise LutlabError(
                    f"weights up to {float(values.abs().max()):.3g} need coefficients beyond "
                    f"{'fp16' if dtype == torch.float16 else 'fp32'}: use alpha_dtype=fp32 or rescale the weights"
                )
        self.take(group, alpha, offset)

    def take(self, group: int, alpha: torch.Tensor, offset: torch.Tensor | None) -> None:
        """Take alpha [q, N] and offset [N] or None as a group's; columns are rounded to them from now on."""
        if self.grids is not None:
            alpha = self.grids.nearest(alpha)
            offset = None if offset is None else self.grids.nearest(offset[None], self.q)[0]
        self.alpha[:, :, group] = alpha
        words = alpha.new_zeros(1, alpha.shape[1], dtype=torch.float64)
        if self.offset is not None and offset is not None:
            self.offset[:, group] = offset
            words += offset.double()
        # Bit b of a code is plane b: the words of a later plane have the higher bit.
        for step in alpha.double():
            words = torch.cat((words - step, words + step))
        words, code_of = torch.sort(words, dim=0)
        self.words[group] = words.float().view(-1)
        self.cuts[group] = ceil32((words[1:] + words[:-1]) / 2)
        self.code_of[group] = code_of.to(torch.uint8).view(-1)

    def round(self, group: int, column: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Level and nearest codeword of a column [N] (compensation.CodeBooks)."""
        # 0.0 and 1.0, and sums of them: torch compares into and adds float32 several times faster than bool.
        torch.le(self.cuts[group], column, out=self.above)
        level = self.above.sum(dim=0).int().mul_(len(column)).add_(self.row)
        return level, self.words[group].index_select(0, level)

    def codes(self, levels: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        """[columns, N] uint8 of levels [columns, N] of groups [columns] (compensation.CodeBooks)."""
        several = groups.unique().tolist()
        if len(several) == 1:
            return self.code_of[several[0]].index_select(0, levels.view(-1)).view_as(levels)
        out = torch.empty_like(levels, dtype=torch.uint8)
        for group in several:
            at = (groups == group).nonzero().squeeze(1)
            some = levels[at]
            out[at] = self.code_of[group].index_select(0, some.view(-1)).view_as(some)
        return out


def solve_from_grid(
    values: torch.Tensor, q: int, *, rounds: int, offset: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Alpha [q, n] >= 0 and descending along q, and z [n] or None, of groups [n, length] float32, from one start.

    rounds: most rounds, at least 1; offset: fit z as well; dtype: dtype to which alpha and z are rounded.
    """
    data = sort_groups(values if offset else values.abs())
    row = torch.arange(len(values), device=values.device)
    start = _gaussian_grid(data, q, offset)
    planes = alternate(data, row, start, rounds, folded=not offset)[0].to(dtype)
    return (planes[1:], planes[0]) if offset else (planes, None)


def _gaussian_grid(data: SortedGroups, q: int, offset: bool) -> torch.Tensor:
    """The best uniform grid of Gaussian weights of a group's deviation, or the min-max grid where that is narrower."""
    ascending = data.ascending.view(-1, data.length)
    high = ascending[:, -1].double()
    low = ascending[:, 0].double() if offset else -high
    centre = ascending.mean(dim=1, dtype=torch.float64) if offset else torch.zeros_like(high)
    deviation = (data.square / data.length - centre.square()).clamp(min=0).sqrt()
    scale, widest = GAUSSIAN_STEP[q - 1] * deviation, (high - low) / (2**q - 1)
    centre = torch.where(scale < widest, centre, (low + high) / 2)
    scale = torch.minimum(scale, widest)
    return uniform_planes(scale, q, centre if offset else None)
