"""Groups of weights along K (input channels): which share one scale, and how a ragged last group is treated.

Group j of a row holds columns j*g .. min((j+1)*g, K)-1; g = -1 is one group of all K (row-wise).
"""

from __future__ import annotations

from collections.abc import Iterator

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch

Bits = float | int  # a fraction is the mean width of groups that differ in it
Width = tuple[Bits, int]  # (q, g)
# What a budget chooses from for each layer, unless it is told: every q with every g.
CANDIDATE_BITS = (2, 3, 4, 5)
CANDIDATE_GROUP_SIZES = (32, 64, 128, -1)


def check_bits(q: Bits) -> int:
    """Return q. Raises LutlabError unless it is an integer of 1-8."""
    if isinstance(q, bool) or not isinstance(q, int) or not 1 <= q <= 8:
        raise LutlabError(
            f"q={q!r} is not a number of bits lutlab can store: give an integer from 1 to 8 (a fraction is the mean of "
            "groups of several widths, of method=mixed_2_4_16)"
        )
    return q


def whole(q: Bits) -> Bits:
    """The same number, an int where it is whole: 3.0 is 3, so that both are one row.

    Examples:
        >>> whole(3.0), whole(2.5)
        (3, 2.5)
    """
    return int(q) if float(q).is_integer() else q


def check_group_size(g: int) -> int:
    """Return g. Raises LutlabError unless it is -1 (row-wise) or an integer >= 8."""
    if isinstance(g, bool) or not isinstance(g, int) or (g != -1 and g < 8):
        raise LutlabError(
            f"g={g!r} is not a group size: give the number of weights along K that share a scale, at least 8, "
            "or -1 for one scale a row"
        )
    return g


def group_length(group_size: int, in_features: int) -> int:
    """Weights in a full group: g, or K where g is -1 or larger than K."""
    return in_features if group_size == -1 else min(check_group_size(group_size), in_features)


def group_count(group_size: int, in_features: int) -> int:
    """G = ceil(K / g)."""
    return -(-in_features // group_length(group_size, in_features))


def blocks(values: torch.Tensor, group_size: int) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Cut [N, K] into rectangles of equal groups: the full groups, then the ragged last one if there is one.

    Yields:
        (columns of K, columns of G, a view [N, groups, length]).
    """
    rows, in_features = values.shape
    length = group_length(group_size, in_features)
    full = in_features // length
    if full:
        yield (
            slice(0, full * length),
            slice(0, full),
            values[:, : full * length].reshape(rows, full, length),
        )
    if full * length < in_features:
        yield (
            slice(full * length, in_features),
            slice(full, full + 1),
            values[:, full * length :].unsqueeze(1),
        )


def expand(per_group: torch.Tensor, group_size: int, in_features: int) -> torch.Tensor:
    """Repeat [..., G] along the last axis to [..., K]."""
    length = group_length(group_size, in_features)
    return per_group.repeat_interleave(length, dim=-1)[..., :in_features]
