"""Column groups of different widths in one sweep: options that the methods of such groups share.

A method says how wide each group is (`choose`); the sweep is GPTQ's (compensation.py), group by group, with the code
books of mixed_books.py. In it

    wide_last       groups go by rising width, so that the widest are rounded when little is left to make up for errors
    search_ranges   ranges, scale codes and zero points of least squared error instead of min-max
    outliers        this share of all weights is kept in float16, the largest |w| of groups of 2 bits ("exclusive",
                    section 4.3): out of the group's range, 0 in the codes, without error but for float16's
    wide_scale      row: the groups of 4 bits of a row share a scale and a zero point, from W before the sweep, which
                    is how Eq. 10 counts them; group: second-order scales as the others
    aligned         memory-aligned blocks (formats/mixed_blocks.py) where they exist: scale codes of 4, 3, 3 bits
    compensate      false: each weight to its nearest value, the sweep left out

K that is no multiple of g is filled up with columns that no input reaches.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits, Width, check_group_size, group_length
from lutlab.base.lazy import torch
from lutlab.base.limits import Count
from lutlab.base.tensors import BLOCK_GROUP, CalibStats, MixedTensor, fill_blocks
from lutlab.quantizers.compensation import PASSED_ON, Compensating, Factored, compensate, factor
from lutlab.quantizers.contract import finite
from lutlab.quantizers.mixed_books import NARROW, WIDE, MixedBooks


@dataclass(frozen=True)
class Mixed(Compensating):
    """Options of methods whose groups differ in width; the module says what they change.

    Attributes:
        wide_last: true: groups are stored by rising width.
        search_ranges: true: a group's range is the one of least squared error; false: from its smallest to its largest
            weight.
        outliers: share of all weights that stays in float16; the paper keeps 0.002 to 0.005.
        wide_scale: reach of a scale of 4-bit weights: a row, or a group.
        scale_group: number of rows whose scales share a second-order step (the paper's g2).
        aligned: true: blocks are aligned in memory where they exist.
        compensate: true: later columns make up for errors, as in GPTQ; false: each weight takes its nearest value.
    """

    format: ClassVar[str] = "mixed"

    wide_last: bool = False
    search_ranges: bool = False
    outliers: Annotated[float, Field(ge=0, le=0.05)] = 0.0
    wide_scale: Literal["row", "group"] = "row"
    scale_group: Count = 16
    aligned: bool = True
    compensate: bool = True

    def check_width(self, q: Bits, g: int) -> Width:
        """(q, g): q is the mean width of codes, from 2 to 4."""
        return check_mean_bits(q), check_group_size(g)

    @abstractmethod
    def choose(self, weight: torch.Tensor, q: Bits, g: int, inputs: Factored) -> torch.Tensor:
        """Widths [G] uint8 of the groups of a weight [N, G * g] float32, of inputs with H [G * g, G * g]."""

    @abstractmethod
    def count(self, groups: int, q: Bits) -> tuple[int, int]:
        """Groups of 3 and of 4 bits of so many; where the weight decides, the split of fewest 4 bits."""

    def resized(
        self, layout: Mapping[str, Any], rows: int, columns: int, q: Bits, g: int
    ) -> dict[str, Any]:
        """The layout of the real size: numbers of groups and of outliers follow from the shape."""
        length = group_length(g, columns)
        groups = -(-columns // length)
        three, wide = self.count(groups, q)
        widths = torch.full((groups,), NARROW).index_fill_(0, torch.arange(wide), WIDE)
        widths[wide : wide + three] = 3
        by_row = self.wide_scale == "row" and wide
        return super().resized(layout, rows, columns, q, g) | {
            "g": length,
            "groups_3": three,
            "groups_4": wide,
            "aligned": self.is_aligned(widths, length),
            "wide_scale": "row" if by_row else "group",
            "outliers": int(self.outliers * rows * columns),
        }

    def is_aligned(self, widths: torch.Tensor, g: int) -> bool:
        """Whether groups of these widths are stored in memory-aligned blocks."""
        sizes = (g, self.scale_group) == (BLOCK_GROUP, BLOCK_GROUP)
        exists = sizes and self.wide_scale == "row" and fill_blocks(widths)
        return self.aligned and exists

    def prepare(self, stats: CalibStats) -> Factored:
        """H, factored in the order of channels."""
        return factor(stats.metric, self.damp)

    def quantize(self, weight: torch.Tensor, q: Bits, g: int, prepared: Factored) -> MixedTensor:
        """[N, K] float and the factored inputs -> MixedTensor with G = ceil(K / g) groups a row.

        Raises:
            LutlabError: q or g out of range; a weight is inf or nan; a scale or an outlier is beyond float16; there are
                too few weights of 2 bits for so many outliers.
        """
        self.check_width(q, g)
        weight, inputs, length = self._filled(weight, g, prepared)
        widths = self.choose(weight, q, length, inputs)
        return self._at_widths(weight, widths, length, prepared.hessian.shape[0], inputs)

    def round_to(self, weight: torch.Tensor, widths: torch.Tensor, g: int) -> MixedTensor:
        """Weight [N, K] rounded to the nearest in groups of known widths [G], nothing compensated.

        Raises:
            LutlabError: a scale or an outlier is beyond float16, or there are too few weights of 2 bits for so many
                outliers.
        """
        columns = weight.shape[1]
        length = group_length(g, columns)
        filled = torch.nn.functional.pad(finite(weight, PASSED_ON), (0, -columns % length))
        return self._at_widths(filled, widths, length, columns, None)

    def _filled(
        self, weight: torch.Tensor, g: int, prepared: Factored
    ) -> tuple[torch.Tensor, Factored, int]:
        """Weight and inputs with whole groups, and the length of a group."""
        weight, columns = finite(weight, PASSED_ON), weight.shape[1]
        length = group_length(g, columns)
        missing = -columns % length
        if not missing:
            return weight, prepared, length
        hessian = torch.nn.functional.pad(prepared.hessian, (0, missing, 0, missing))
        padded = torch.nn.functional.pad(weight, (0, missing))
        return padded, factor(hessian, self.damp), length

    def _at_widths(
        self,
        weight: torch.Tensor,
        widths: torch.Tensor,
        g: int,
        columns: int,
        inputs: Factored | None,
    ) -> MixedTensor:
        """The weight [N, G * g], of which `columns` are real, at these widths; inputs None: nothing is compensated."""
        outliers = self._outliers(weight[:, :columns], widths, g)
        books = MixedBooks(
            weight,
            widths,
            g,
            outliers,
            scale_group=self.scale_group,
            by_row=self.wide_scale == "row",
            aligned=self.is_aligned(widths, g),
            search_ranges=self.search_ranges,
        )
        if inputs is None or not self.compensate:
            codes = books.round_all()
        else:
            order = self._order(widths, g)
            if order is not None:
                inputs = factor(inputs.hessian, self.damp, order)
            books.begin(inputs.order)
            codes, order = compensate(weight, g, inputs, books, self.block_size)
            if order is not None:
                codes = torch.empty_like(codes).index_copy_(1, order.long(), codes)
        return books.tensor(codes[:, :columns].contiguous())

    def _order(self, widths: torch.Tensor, g: int) -> torch.Tensor | None:
        """The channel of each column of the sweep, [G * g] int64; None where it is its own."""
        if not self.wide_last:
            return None
        groups = torch.sort(widths, stable=True).indices
        return (groups[:, None] * g + torch.arange(g, device=groups.device)).flatten()

    def _outliers(self, weight: torch.Tensor, widths: torch.Tensor, g: int) -> torch.Tensor | None:
        """[N, K] bool: the largest |w| of groups of 2 bits; None where there are none."""
        count = int(self.outliers * weight.numel())
        if not count:
            return None
        narrow = (widths == NARROW).repeat_interleave(g)[: weight.shape[1]]
        room = int(narrow.sum()) * len(weight)
        if count > room:
            raise LutlabError(
                f"outliers={self.outliers}: {count} of {weight.numel()} weights, and groups of 2 bits, which alone "
                f"have outliers, hold {room}: lower outliers or q"
            )
        size = weight.abs().masked_fill(~narrow, -1.0).flatten()
        # A stable sort chooses the same of equal weights on every machine.
        chosen = torch.sort(size, descending=True, stable=True).indices[:count]
        outliers = torch.zeros_like(size, dtype=torch.bool)
        outliers[chosen] = True
        return outliers.view_as(weight)


def check_mean_bits(q: Bits) -> Bits:
    """Return q. Raises LutlabError unless it is a number from 2 to 4."""
    if isinstance(q, bool) or not isinstance(q, (int, float)) or not NARROW <= q <= WIDE:
        raise LutlabError(
            f"q={q!r} is no mean of groups of 2 to 4 bits: give a number from 2 to 4; the paper's 25 % of groups at 4 "
            "bits is q=2.5"
        )
    return q
