"""Binary-coding quantization (BCQ), non-uniform: every group has its own q coefficients.

    W ~ sum_b alpha_b B_b (+ z),  B_b in {-1, +1}     LUT-GEMM Eq. 1-2 (section 3.1); nuQmm section III

    greedy        alpha_b = mean |r|, B_b = sign(r), r -= alpha_b B_b, sign(0) = +1; one pass (Xu et al. section 2)
    alternating   from there, least squares and nearest codes in turn, to the fixed point (Xu et al. section 3), as
                  starts=greedy leaves it; by default so from a uniform grid as well, which is not the papers': a group
                  keeps the better end, and binary codes err no more than the uniform ones that they contain
                  (alternating.py says it exactly)

With alpha_bits=4 a coefficient is stored in 4 bits, on a grid a row and plane (base/second_order.py), in place of 16:
in the end coefficients move to grids of their own, and weights take the nearest codes of those.

W [N, K] -> codes [N, K] uint8 (bit b: B_b = +1), alpha [q, N, G], z [N, G] or None.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from lutlab.base import second_order
from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits, check_bits, check_group_size
from lutlab.base.lazy import torch
from lutlab.base.limits import Count
from lutlab.base.registry import register
from lutlab.base.tensors import BCQTensor, SecondOrderTensor
from lutlab.quantizers import alternating
from lutlab.quantizers.coefficient_grids import CodeBits, Grids, on_grids, take_bits
from lutlab.quantizers.contract import Method, finite
from lutlab.quantizers.grid import ScaleDtype


@register("method", "bcq")
@dataclass(frozen=True)
class BCQ(Method):
    """Binary-coding quantization; the options are the solver's.

    Attributes:
        solver: solver of codes and coefficients: greedy, bit by bit; alternating, refined in rounds.
        starts: starting points of alternating: greedy, the papers'; best, a uniform grid as well.
        offset: true: each group has an offset beside its q coefficients.
        rounds: largest number of rounds of the solver; a group stops earlier when a round changes nothing.
        alpha_dtype: dtype of stored coefficients and offsets.
        alpha_bits: bits of a stored coefficient; below 16 integers on a grid a row and plane, whose 24 bits count too.
    """

    version: ClassVar[int] = 2
    format: ClassVar[str] = "bcq"

    solver: Literal["greedy", "alternating"] = "alternating"
    starts: alternating.Starts = "best"
    offset: bool = False
    rounds: Count = 100
    alpha_dtype: ScaleDtype = "fp16"
    alpha_bits: CodeBits = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        take_bits(self, self.alpha_bits, self.alpha_dtype, "alpha")
        if self.solver == "greedy" and self.offset:
            raise LutlabError(
                "method bcq: greedy has no offset in the papers; use solver=alternating with offset=true"
            )

    def quantize(self, weight: torch.Tensor, q: Bits, g: int) -> BCQTensor | SecondOrderTensor:
        """[N, K] float -> codes and coefficients of G = ceil(K / g) groups a row; codes fit coefficients as stored."""
        q, g = check_bits(q), check_group_size(g)
        weight = finite(weight, "method bcq fits every weight").contiguous()
        dtype = torch.float16 if self.alpha_dtype == "fp16" else torch.float32
        if self.solver == "greedy":
            codes, alpha = alternating.greedy(weight, q, g, dtype=dtype)
            offset = None
        else:
            codes, alpha, offset = alternating.solve(
                weight,
                q,
                g,
                rounds=self.rounds,
                offset=self.offset,
                dtype=dtype,
                starts=self.starts,
            )
        for coefficient in (alpha,) if offset is None else (alpha, offset):
            if not torch.isfinite(coefficient).all():
                raise LutlabError(
                    f"method bcq: weights up to {float(weight.abs().max()):.3g} need coefficients beyond "
                    f"{self.alpha_dtype}: use alpha_dtype=fp32 or rescale the weights"
                )
        free = BCQTensor(codes, alpha, offset, q, g)
        if self.alpha_bits == 16:
            return free
        grids = Grids(second_order.coefficients(alpha, offset), self.alpha_bits)
        few = on_grids(free, grids)
        moved = few.binary()
        return replace(few, codes=alternating.nearest(weight, g, moved.alpha, moved.offset))
