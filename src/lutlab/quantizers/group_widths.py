"""Widths by group: 2, 3 or 4 bits for each group of input channels, where they lower the outputs' error most (ours).

The idea of the 2/4/16-bit paper (mixed_2_4_16.py) with a ladder of three widths and the error itself in the place of a
sensitivity. q is the mean width of codes, which is never exceeded; each bit goes where it buys most:

    cost of group i at w bits      c_i(w) = sum over its columns j of H_jj sum over rows of (W - W_hat(w))^2

with W_hat the nearest values on the grids of mixed_books.py. Steps of the convex hull of c_i over w are taken by
falling gain a bit. Groups go by rising width, the widest last (`wide_last`), ranges are searched, and all groups
have second-order scales unless wide_scale=row.

by_group=false gives all groups of a layer one width, q of 2, 3 or 4: the paper's second-order format without its
groups of 4 bits (Eq. 6), the control for what widths by group are worth beside widths by layer.

With `budget` and `candidates.q` the means of all layers are chosen together, under a hard budget of stored bits
(compress/search.py): `method=group_widths budget=3 candidates.q=[2,2.5,3,3.5,4] candidates.g=[16]`.

W [N, K], g -> MixedTensor; mixed.py has the sweep and its options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits, Width
from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.base.tensors import MIXED_WIDTHS, SCALE_BITS
from lutlab.quantizers.compensation import Factored
from lutlab.quantizers.mixed import Mixed
from lutlab.quantizers.mixed_books import NARROW, WIDE, fit_group, levels


@register("method", "group_widths")
@dataclass(frozen=True)
class GroupWidths(Mixed):
    """Options beside those of mixed.py, which have defaults of their own here.

    Attributes:
        by_group: true: each group has a width of its own; false: all groups of a layer have q bits, 2, 3 or 4.
    """

    version: ClassVar[int] = 1

    wide_last: bool = True
    search_ranges: bool = True
    wide_scale: Literal["row", "group"] = "group"
    by_group: bool = True

    def check_width(self, q: Bits, g: int) -> Width:
        """(q, g) of mixed.py; without by_group q is whole."""
        q, g = super().check_width(q, g)
        if not self.by_group and q not in MIXED_WIDTHS:
            raise LutlabError(
                f"q={q}: with by_group=false all groups have one width, 2, 3 or 4 bits"
            )
        return q, g

    def choose(self, weight: torch.Tensor, q: Bits, g: int, inputs: Factored) -> torch.Tensor:
        """Widths of 2, 3 and 4 bits, of mean at most q, by falling gain a bit."""
        if not self.by_group:
            groups = weight.shape[1] // g
            return torch.full((groups,), q, dtype=torch.uint8, device=weight.device)
        matters = inputs.hessian.diagonal().view(-1, g, 1)
        values = weight.t().reshape(len(matters), g, len(weight))
        cost = torch.stack([self._error(values, matters, w) for w in MIXED_WIDTHS]).double()
        gain = (cost[:-1] - cost[1:]).t()  # [G, 2]: of the third bit, of the fourth
        # Where the fourth bit gains more than the third, the two are one step of two equal halves: the convex hull.
        rising = gain[:, 1] > gain[:, 0]
        gain[rising] = gain[rising].mean(dim=1, keepdim=True)
        groups = len(values)
        steps = torch.sort(gain.flatten(), descending=True, stable=True).indices
        taken = steps[: self._steps(groups, q)]
        widths = torch.full((groups,), NARROW, dtype=torch.int64, device=weight.device)
        widths.index_add_(0, taken // (WIDE - NARROW), torch.ones_like(taken))
        return widths.to(torch.uint8)

    def count(self, groups: int, q: Bits) -> tuple[int, int]:
        """All of q bits; by group, the fewest of 4 bits that the bits beyond 2 leave."""
        if not self.by_group:
            return groups * (q == 3), groups * (q == WIDE)
        steps = self._steps(groups, q)
        wide = max(0, steps - groups)
        return steps - 2 * wide, wide

    def _steps(self, groups: int, q: Bits) -> int:
        """Bits that groups have beyond 2, together."""
        return int(groups * (q - NARROW) + 1e-9)

    def _error(self, values: torch.Tensor, matters: torch.Tensor, bits: int) -> torch.Tensor:
        """Cost [G] of groups of values [G, g, N] at so many bits."""
        grids = fit_group(values, bits, SCALE_BITS, self.scale_group, search=self.search_ranges)
        scale, zero = (part.unsqueeze(1) for part in grids[:2])
        nearest = levels(values, scale, zero, 2**bits - 1) * scale
        return ((nearest - values).square() * matters).sum(dim=(1, 2))
