"""Hessian BCQ: the binary codes of GPTQ, whose codes and coefficients are then refined for the layer's outputs.

    minimise tr((W - W_hat) H (W - W_hat)^T),  W_hat = sum_b alpha_b B_b (+ z),  H = X^T X / M

Inside GPTQ (gptq_bcq.py) a group's coefficients are fitted once, to the weights alone, before its codes are known.
From there on refinement.py goes over the groups a few times, and a row of outputs never errs more than before. The
stored form is that of gptq_bcq: the same planes, the same bits, the same kernels. Layers of opt-embedded-s at q = 2,
g = 128 err 12 to 27 % less after two sweeps, another 1 to 2 % with a third.

Where the sweeps end depends on where they start. Coefficients that are fitted to weights alone clip the largest ones,
and a row whose outputs rest on these ends far above the uniform codes that binary ones contain (LUT-GEMM Eq. 5). So
there is a second start, from GPTQ's grid, and each row keeps the end that errs less. Few rows do the harm, and are
hardly seen in the error of their layer: above all some of keys, which scores multiply by queries.

With alpha_bits=4 a coefficient is stored in 4 bits of a grid a row (base/second_order.py) in place of 16. The grids are
fitted to the coefficients at the end, and one more sweep moves codes and coefficients, which then know the grids: those
of a group are rounded one after the other, and the later ones make up for what the earlier lose.

W [N, K] -> codes [N, K] uint8, alpha [q, N, G] >= 0 and descending, z [N, G] or None; with act_order also order [K]. On
grids alphas are of any order, since a grid is of a plane.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lutlab.base import second_order
from lutlab.base.groups import Bits, group_length
from lutlab.base.lazy import torch
from lutlab.base.limits import CountFrom0
from lutlab.base.registry import register
from lutlab.base.tensors import BCQTensor, SecondOrderTensor, UniformTensor
from lutlab.quantizers.coefficient_grids import Grids, on_grids
from lutlab.quantizers.compensation import Compensated, Damp, Factored
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.gptq_bcq import GPTQBCQ, Codewords
from lutlab.quantizers.refinement import refined, solved


@register("method", "hessian_bcq")
@dataclass(frozen=True)
class HessianBCQ(GPTQBCQ):
    """Options of the refinement; the others are in gptq_bcq.py and compensation.py.

    It makes up for the errors of the layers before by default (compress/target.py): of four embedded models at q=2,
    g=128 that removes twice what the refinement does. With target=weights a layer comes near to its own weight, as
    under gptq_bcq. And it counts the first token of a window 50 times where keys and values are made of it: of 10, 50
    and 200 the best in a trial without records (docs/methods.md).

    Attributes:
        sweeps: passes over all groups; each fits coefficients and codes to the layer's outputs. Two passes bring most
            of the gain.
        sweep_damp: damping of the Hessian in the sweeps, as damp is before them; 0: they lower the outputs' own error.
        starts: starting points of the sweeps: fitted, coefficients fitted to the weights; best, GPTQ's grid as well,
            in twice the time. Without an offset binary codes hold no such grid, and there is one start.
        joint: true: all coefficients of a row are fitted together at the end; it helps small groups.
    """

    version: ClassVar[int] = 3
    format: ClassVar[str] = "bcq"

    true_sequential: bool = True
    target: Literal["weights", "outputs", "stream"] = "stream"
    first_token: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 50.0
    sweeps: CountFrom0 = 2
    sweep_damp: Damp = 0.0
    starts: Literal["fitted", "best"] = "best"
    joint: bool = False

    def quantize(
        self, weight: torch.Tensor, q: Bits, g: int, prepared: Factored
    ) -> BCQTensor | SecondOrderTensor:
        """The tensor of gptq_bcq.py, refined; below 16 bits of a coefficient then moved to grids, and refined there."""
        end = self._better(weight, q, g, prepared)
        if self.alpha_bits == 16:
            return end
        grids = Grids(second_order.coefficients(end.alpha, end.offset), self.alpha_bits)
        start = on_grids(end, grids).binary()
        return on_grids(self._refined(weight, start, prepared, grids=grids), grids)

    def _better(self, weight: torch.Tensor, q: Bits, g: int, prepared: Factored) -> BCQTensor:
        """The refined tensor; with two starts the better row of each."""
        start = self.binary(weight, q, g, prepared)
        if self.starts == "fitted" or start.offset is None:
            return self._refined(weight, start, prepared)
        errors, others = (weight.new_empty(len(weight), dtype=torch.float64) for _ in range(2))
        end = self._refined(weight, start, prepared, errors)
        grid = GPTQ(**{field.name: getattr(self, field.name) for field in fields(Compensated)})
        uniform = grid.quantize(weight, q, g, prepared)
        assert isinstance(uniform, UniformTensor)  # with scale_bits=16
        start = _in_binary(uniform, start.alpha.dtype)
        other = self._refined(weight, start, prepared, others)
        better = (others < errors)[:, None]  # nan, of a coefficient beyond its dtype, is not
        for values, those in zip(_parts(end), _parts(other), strict=True):
            values.copy_(torch.where(better, those, values))
        return end

    def _refined(
        self,
        weight: torch.Tensor,
        start: BCQTensor,
        prepared: Factored,
        errors: torch.Tensor | None = None,
        grids: Grids | None = None,
    ) -> BCQTensor:
        """The sweeps, or one on grids, from a start whose coefficients they change in place; errors as of `refined`."""
        alpha, offset, g = start.alpha, start.offset, start.group_size

        def books(rows: slice) -> _Books:
            some = None if grids is None else grids.rows(rows)
            return _Books(alpha[:, rows], None if offset is None else offset[rows], grids=some)

        sweeps, joint = (self.sweeps, self.joint) if grids is None else (1, False)
        codes = refined(
            *(weight, start.codes, start.order, books, prepared, g, sweeps, joint, errors),
            damp=self.sweep_damp,
        )
        return replace(start, codes=codes if grids else _canonical(codes, alpha, g))


def _parts(tensor: BCQTensor) -> list[torch.Tensor]:
    """Codes, alpha and offset, whose last axis but one is the rows."""
    return [part for part in (tensor.codes, tensor.alpha, tensor.offset) if part is not None]


def _in_binary(tensor: UniformTensor, dtype: torch.dtype) -> BCQTensor:
    """Uniform codes with zero points by LUT-GEMM Eq. 5, rounded to a dtype."""
    assert tensor.zero_point is not None  # as of GPTQ's
    scale, q = tensor.scale.double(), tensor.bits
    alpha = torch.stack([scale * 2.0 ** (b - 1) for b in range(q)]).to(dtype)
    offset = (scale * ((2**q - 1) / 2 - tensor.zero_point.double())).to(dtype)
    return BCQTensor(tensor.codes, alpha, offset, q, tensor.group_size, tensor.order)


def _canonical(codes: torch.Tensor, alpha: torch.Tensor, g: int) -> torch.Tensor:
    """Codes [N, K] of the same values once alpha [q, N, G] is >= 0 and descending, as which it is written back."""
    length = group_length(g, codes.shape[1])

    def spread(of_groups: torch.Tensor) -> torch.Tensor:
        return of_groups.repeat_interleave(length, dim=1)[:, : codes.shape[1]]

    falling, plane = alpha.abs().sort(dim=0, descending=True, stable=True)
    flipped = (alpha < 0).to(torch.uint8).gather(0, plane)
    out = torch.zeros_like(codes)
    for bit, (source, flip) in enumerate(zip(plane.to(torch.uint8), flipped, strict=True)):
        out |= ((codes >> spread(source)) & 1 ^ spread(flip)) << bit
    alpha.copy_(falling)
    return out


class _Books(Codewords):
    """Codewords whose coefficients are there: alpha [q, N, G], offset [N, G] or None, changed in place."""

    def planes(self, codes: torch.Tensor) -> list[torch.Tensor]:
        planes = [((codes >> b) & 1).float().mul_(2.0).sub_(1.0) for b in range(self.q)]
        return planes if self.offset is None else [*planes, planes[0].new_ones(len(codes), 1)]

    def coefficients(self, group: int) -> torch.Tensor:
        alpha = self.alpha[:, :, group].double()
        if self.offset is None:
            return alpha
        return torch.cat((alpha, self.offset[:, group].double().unsqueeze(0)))

    def fitted(self, before: torch.Tensor, gram: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
        a = before + solved(gram, rhs)
        if self.grids is None:
            return self.rounded(a)
        # One after the other; those that are not on their grids yet make up for what it loses.
        for p in range(len(a)):
            rest, point = slice(p + 1, None), self.grids.nearest(a[p : p + 1], p)[0]
            if p + 1 < len(a):
                a[rest] += solved(gram[rest, rest], gram[rest, p] * (a[p] - point))
            a[p] = point
        return a

    def rounded(self, coefficients: torch.Tensor) -> torch.Tensor:
        return coefficients.to(self.alpha.dtype).double()

    def store(self, group: int, coefficients: torch.Tensor) -> None:
        for fitted in (self.words, self.cuts, self.code_of):
            fitted.clear()  # of the group before: at q = 8 all of them would outweigh the layer
        offset = None if self.offset is None else coefficients[self.q].to(self.offset.dtype)
        self.take(group, coefficients[: self.q].to(self.alpha.dtype), offset)
