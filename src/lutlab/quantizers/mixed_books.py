"""Code books of column groups of different widths: grids whose scales are codes, fitted as a sweep reaches them.


    s = (max - min) / (2^w - 1),  zero = round(-min / s),  code = clamp(round(x / s) + zero)     first order, Eq. 2-4
    s ~ step * (scale_code + scale_zero),  over `scale_group` rows of one group                    second order, Eq. 6

Li et al., "Fast and Efficient 2-bit LLM Inference on GPU" (ICCAD 2024), sections 2.2 and 3.3. Zero is forced into every
range, so that zero points fit w bits. Eq. 3 would give scales, which are positive, a negative zero point: here it is
stored negated, in 0..15, and the step is as small as that allows. Zero points and codes follow the decoded scale.

The paper's ranges are min-max. A search takes, for each group of a row, the one of SHRINK times it whose squared error
is least; and once the steps are known, the scale code and the zero point of least squared error.

Values are [..., g, N]: the weights of a group, for N rows; the axes before are groups that are fitted at once.
"""

from __future__ import annotations

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch
from lutlab.base.tensors import BLOCK_SCALE_BITS, SCALE_BITS, MixedTensor

NARROW, WIDE = 2, 4
SCALE_ZERO_TOP = 15
SHRINK = tuple(1 - 0.05 * i for i in range(13))
SMALLEST_STEP = 2.0**-24  # float16's smallest number


class MixedBooks:
    """The grids of all groups of a weight [N, G * g]. A level is code - zero; at an outlier 0.

    outliers: [N, K] bool, or None; scale_group, by_row (groups of 4 bits have a scale a row), aligned,
    search_ranges: as mixed.Mixed has them.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        widths: torch.Tensor,
        g: int,
        outliers: torch.Tensor | None,
        *,
        scale_group: int,
        by_row: bool,
        aligned: bool,
        search_ranges: bool,
    ) -> None:
        rows, groups = len(weight), len(widths)
        self.weight, self.widths, self.g = weight, widths, g
        self.scale_group, self.aligned = scale_group, aligned
        self.search = search_ranges
        self.width_of = widths.tolist()
        narrow = (widths == NARROW).cumsum(0) - 1
        turn = torch.tensor(BLOCK_SCALE_BITS, device=widths.device)[narrow % len(BLOCK_SCALE_BITS)]
        self.scale_bits = (turn if aligned else torch.full_like(turn, SCALE_BITS)).tolist()
        bands = -(-rows // scale_group)
        self.scale, self.zero, self.scale_code = (weight.new_zeros(groups, rows) for _ in range(3))
        self.scale_zero, self.scale_step = (weight.new_zeros(groups, bands) for _ in range(2))
        self.row: tuple[torch.Tensor, torch.Tensor] | None = None
        # where they are, and every value as it would be one, both [K, N]
        self.outliers: tuple[torch.Tensor, torch.Tensor] | None = None
        if outliers is not None:
            missing = weight.shape[1] - outliers.shape[1]
            places = torch.nn.functional.pad(outliers, (0, missing)).t().contiguous()
            self.outliers = places, weight.t().half()
        if by_row and WIDE in self.width_of:
            self._fit_rows()

    def _fit_rows(self) -> None:
        """One grid a row for all groups of 4 bits."""
        wide = self.widths == WIDE
        values = self.weight.view(len(self.weight), -1, self.g)[:, wide].flatten(1).t()
        self.row = fit_rows(values, WIDE, search=self.search)
        self.scale[wide], self.zero[wide] = self.row

    def begin(self, order: torch.Tensor) -> None:
        """Follow a sweep whose column j is channel order[j]."""
        self.channels = order.tolist()
        self.next = 0

    def fit(self, group: int, values: torch.Tensor) -> None:
        """Grid of the group that is the sweep's group-th, on its weights [g, N]."""
        at = self.channels[group * self.g] // self.g
        if self.row is not None and self.width_of[at] == WIDE:
            return
        if self.outliers is not None:
            places = self.outliers[0][at * self.g : (at + 1) * self.g]
            values = values.masked_fill(places, 0.0)
        self._set(at, fit_group(values, *self._bits(at), search=self.search))

    def _bits(self, group: int) -> tuple[int, int, int]:
        return self.width_of[group], self.scale_bits[group], self.scale_group

    def _set(self, at: int | torch.Tensor, grids: tuple[torch.Tensor, ...]) -> None:
        self.scale[at], self.zero[at], self.scale_code[at] = grids[:3]
        self.scale_zero[at], self.scale_step[at] = grids[3:]

    def round(self, group: int, column: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Level and value [N] of the sweep's next column [N]."""
        channel = self.channels[self.next]
        self.next += 1
        at = channel // self.g
        scale, zero = self.scale[at], self.zero[at]
        level = levels(column, scale, zero, 2 ** self.width_of[at] - 1)
        value = level * scale
        if self.outliers is not None:
            places, values = self.outliers
            values[channel] = column.half()
            level = level.masked_fill_(places[channel], 0.0)
            value = torch.where(places[channel], values[channel].float(), value)
        return level, value

    def codes(self, levels: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        """[columns, N] uint8 of levels of the sweep's groups [columns]."""
        first = torch.tensor(self.channels[:: self.g], device=groups.device) // self.g
        return (levels + self.zero.index_select(0, first[groups])).to(torch.uint8)

    def round_all(self) -> torch.Tensor:
        """Codes [N, G * g] of every weight, each group at the nearest values of its own grid."""
        values = self.weight.t().contiguous()
        if self.outliers is not None:
            values = values.masked_fill(self.outliers[0], 0.0)
        grouped = values.view(-1, self.g, values.shape[1])  # [G, g, N]
        for kind in sorted({self._bits(group) for group in range(len(self.width_of))}):
            at = [group for group in range(len(self.width_of)) if self._bits(group) == kind]
            if self.row is None or kind[0] != WIDE:
                grids = fit_group(grouped[at], *kind, search=self.search)
                self._set(torch.tensor(at, device=values.device), grids)
        top = (2.0 ** self.widths.float() - 1)[:, None, None]
        zero = self.zero[:, None]
        level = levels(grouped, self.scale[:, None], zero, top)
        return (level + zero).to(torch.uint8).flatten(0, 1).t()

    def tensor(self, codes: torch.Tensor) -> MixedTensor:
        """The weight of these codes [N, K]."""

        def of_rows(values: torch.Tensor) -> torch.Tensor:
            return values.t().to(torch.uint8).contiguous()

        parts = {
            "zero_point": of_rows(self.zero),
            "scale_code": of_rows(self.scale_code),
            "scale_zero": of_rows(self.scale_zero),
            "scale_step": self.scale_step.t().half().contiguous(),
        }
        if self.row is not None:
            scale, zero = self.row
            parts |= {"row_scale": scale.half(), "row_zero": zero.to(torch.uint8)}
            parts["zero_point"][:, self.widths == WIDE] = 0
        if self.outliers is not None:
            places, values = (part.t() for part in self.outliers)
            row, column = places[:, : codes.shape[1]].nonzero(as_tuple=True)
            parts |= {
                "outlier_count": torch.bincount(row, minlength=len(codes)).int(),
                "outlier_column": column.int(),
                "outlier_value": values[row, column],
            }
        return MixedTensor(
            codes=codes,
            widths=self.widths,
            group_size=self.g,
            scale_group=self.scale_group,
            aligned=self.aligned,
            **parts,
        )


# ---- grids of groups ----


def low_high(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Range [..., N] of values [..., g, N], with 0 in it."""
    return values.amin(dim=-2).clamp(max=0), values.amax(dim=-2).clamp(min=0)


def searched(values: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The range of SHRINK times low_high that errs least, of values [..., g, N] on a grid of so many bits."""
    low, high = low_high(values)
    best, chosen = torch.full_like(low, torch.inf), torch.ones_like(low)
    for factor in SHRINK:
        scale = factor * (high - low) / (2**bits - 1)
        zero = _zero(factor * low, scale, bits)
        error = (values - _nearest(values, scale, zero, bits)).square().sum(dim=-2)
        better = error < best
        best = torch.where(better, error, best)
        chosen = torch.where(better, factor, chosen)
    return chosen * low, chosen * high


def fit(
    low: torch.Tensor, high: torch.Tensor, bits: int, scale_bits: int, scale_group: int
) -> tuple[torch.Tensor, ...]:
    """Grids, with second-order scales, of ranges low <= 0 <= high [..., N] float32.

    Returns:
        Scale as decoded, exact, and zero, [..., N]; the scale's code [..., N]; zero and step of scales [..., B],
        B = ceil(N / scale_group); all float32, the step a float16's.

    Raises:
        LutlabError: a step is beyond float16.
    """
    rows = low.shape[-1]
    scale = (high - low) / (2**bits - 1)
    padded = torch.nn.functional.pad(scale, (0, -rows % scale_group), mode="constant", value=-1)
    bands = padded.unflatten(-1, (-1, scale_group))
    most = bands.amax(dim=-1)
    least = bands.masked_fill(bands < 0, torch.inf).amin(dim=-1)
    top = 2**scale_bits - 1
    step = torch.maximum((most - least) / top, most / (top + SCALE_ZERO_TOP)).half().float()
    if not torch.isfinite(step).all():
        raise LutlabError(
            f"the weights of a group span {float((high - low).max()):.3g}, whose scale is beyond float16: rescale the "
            "weights"
        )
    step = torch.where(most > 0, step.clamp(min=SMALLEST_STEP), step)
    divisor = torch.where(step > 0, step, 1.0)
    zero = (least / divisor).round_().clamp_(0, SCALE_ZERO_TOP)

    of_rows = (_by_row(values, scale_group, rows) for values in (step, divisor, zero))
    row_step, row_divisor, row_zero = of_rows
    code = (scale / row_divisor).round_().sub_(row_zero).clamp_(0, top)
    decoded = row_step * (code + row_zero)
    return decoded, _zero(low, decoded, bits), code, zero, step


def fit_group(
    values: torch.Tensor, bits: int, scale_bits: int, scale_group: int, *, search: bool
) -> tuple[torch.Tensor, ...]:
    """Grids, as `fit` gives them, of weights [..., g, N]; search: of least squared error, not of min-max ranges.

    Raises:
        LutlabError: a step is beyond float16.
    """
    if not search:
        return fit(*low_high(values), bits, scale_bits, scale_group)
    grids = fit(*searched(values, bits), bits, scale_bits, scale_group)
    return _refined(values, grids, bits, scale_bits, scale_group)


def _refined(
    values: torch.Tensor,
    grids: tuple[torch.Tensor, ...],
    bits: int,
    scale_bits: int,
    scale_group: int,
) -> tuple[torch.Tensor, ...]:
    """The scale code and zero point of each row, under the steps of `grids`, that err least."""
    rows, top = values.shape[-1], 2**bits - 1
    *best_grids, scale_zero, scale_step = grids
    step = _by_row(scale_step, scale_group, rows)
    least = _by_row(scale_zero, scale_group, rows)
    low, high = low_high(values)
    best = torch.full_like(low, torch.inf)
    for code in range(2**scale_bits):
        scale = step * (code + least)
        # the grid's middle on that of the range, and its neighbours
        middle = ((top - (low + high) / torch.where(scale > 0, scale, torch.inf)) / 2).round_()
        for shift in (-1, 0, 1):
            zero = (middle + shift).clamp_(0, top)
            error = (values - _nearest(values, scale, zero, bits)).square().sum(dim=-2)
            better = error < best
            best = torch.where(better, error, best)
            tried = zip((scale, zero, torch.full_like(scale, code)), best_grids, strict=True)
            best_grids = [torch.where(better, new, old) for new, old in tried]
    return *best_grids, scale_zero, scale_step


def fit_rows(values: torch.Tensor, bits: int, *, search: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale, a float16's, and zero point [..., N], float32, of weights [..., g, N]: first order only.

    Raises:
        LutlabError: a scale is beyond float16.
    """
    low, high = searched(values, bits) if search else low_high(values)
    scale = ((high - low) / (2**bits - 1)).half().float()
    if not torch.isfinite(scale).all():
        raise LutlabError(
            f"the weights of a row span {float((high - low).max()):.3g}, whose scale is beyond float16: rescale the "
            "weights"
        )
    scale = torch.where(high > low, scale.clamp(min=SMALLEST_STEP), scale)
    return scale, _zero(low, scale, bits)


def levels(
    values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, top: int | torch.Tensor
) -> torch.Tensor:
    """Nearest code - zero, float32, of values on grids 0..top of a shape that broadcasts; 0 where there is no scale."""
    divisor = torch.where(scale > 0, scale, torch.inf)
    return torch.minimum(torch.maximum((values / divisor).round_(), -zero), top - zero)


def _by_row(of_bands: torch.Tensor, scale_group: int, rows: int) -> torch.Tensor:
    """[..., B] -> [..., N]."""
    return of_bands.repeat_interleave(scale_group, dim=-1)[..., :rows]


def _zero(low: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    return (-low / torch.where(scale > 0, scale, torch.inf)).round_().clamp_(0, 2**bits - 1)


def _nearest(
    values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, bits: int
) -> torch.Tensor:
    scale, zero = scale.unsqueeze(-2), zero.unsqueeze(-2)
    return levels(values, scale, zero, 2**bits - 1) * scale
