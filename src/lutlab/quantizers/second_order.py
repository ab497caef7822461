"""First- and second-order grids of groups: codes of 2 to 4 bits, whose scales are codes of 3 or 4 bits themselves.

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

from dataclasses import dataclass

from lutlab.errors import LutlabError
from lutlab.lazy import torch

SCALE_ZERO_TOP = 15
SHRINK = tuple(1 - 0.05 * i for i in range(13))
SMALLEST_STEP = 2.0**-24  # float16's smallest number


@dataclass(frozen=True)
class Grids:
    """Grids of groups: scale as decoded, exact, and zero, [..., N] float32.

    scale_code: [..., N]; scale_zero, scale_step: [..., B], B = ceil(N / scale_group); all float32, step a float16's.
    """

    scale: torch.Tensor
    zero: torch.Tensor
    scale_code: torch.Tensor
    scale_zero: torch.Tensor
    scale_step: torch.Tensor


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
) -> Grids:
    """Grids of ranges [..., N] with second-order scales.

    Args:
        low: least weight of each range [..., N], at most 0.
        high: largest weight of each range [..., N], at least 0.
        bits: bits of a code.
        scale_bits: bits of a scale's code.
        scale_group: rows whose scales share a step and a zero.

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
    return Grids(decoded, _zero(low, decoded, bits), code, zero, step)


def fit_group(
    values: torch.Tensor, bits: int, scale_bits: int, scale_group: int, *, search: bool
) -> Grids:
    """Grids of the weights [..., g, N] of groups; search: of least squared error instead of min-max ranges.

    Raises:
        LutlabError: a step is beyond float16.
    """
    if not search:
        return fit(*low_high(values), bits, scale_bits, scale_group)
    grids = fit(*searched(values, bits), bits, scale_bits, scale_group)
    return _refined(values, grids, bits, scale_bits, scale_group)


def _refined(
    values: torch.Tensor, grids: Grids, bits: int, scale_bits: int, scale_group: int
) -> Grids:
    """The scale code and zero point of each row, under the steps of `grids`, that err least."""
    rows, top = values.shape[-1], 2**bits - 1
    step = _by_row(grids.scale_step, scale_group, rows)
    least = _by_row(grids.scale_zero, scale_group, rows)
    low, high = low_high(values)
    best = torch.full_like(low, torch.inf)
    found = (grids.scale, grids.zero, grids.scale_code)
    for code in range(2**scale_bits):
        scale = step * (code + least)
        # the grid's middle on that of the range, and its neighbours
        middle = ((top - (low + high) / torch.where(scale > 0, scale, torch.inf)) / 2).round_()
        for shift in (-1, 0, 1):
            zero = (middle + shift).clamp_(0, top)
            error = (values - _nearest(values, scale, zero, bits)).square().sum(dim=-2)
            better = error < best
            best = torch.where(better, error, best)
            tried = (scale, zero, torch.full_like(scale, code))
            found = tuple(
                torch.where(better, new, old) for new, old in zip(tried, found, strict=True)
            )
    return Grids(*found, grids.scale_zero, grids.scale_step)


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


def levels(values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, top: int) -> torch.Tensor:
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
