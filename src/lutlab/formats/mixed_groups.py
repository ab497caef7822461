"""Groups of a mixed weight by their widths: stored width by width, each in the order of its channels."""

from __future__ import annotations

from collections.abc import Mapping

from lutlab.lazy import torch
from lutlab.tensors import MIXED_WIDTHS, MixedTensor


def count_widths(widths: torch.Tensor) -> tuple[int, int, int]:
    """Groups of 2, 3 and 4 bits of widths [G]."""
    return tuple(int((widths == w).sum()) for w in MIXED_WIDTHS)


def second_order(widths: torch.Tensor, by_row: bool) -> torch.Tensor:
    """[G] bool: groups with second-order scales; by_row: those of 4 bits have a scale a row instead."""
    return widths != 4 if by_row else widths > 0


def by_width(tensor: MixedTensor) -> dict[int, torch.Tensor]:
    """Width -> codes [N, G_w * g] uint8; columns beyond K are at their zero point, so that they decode to 0."""
    rows, columns = tensor.codes.shape
    g, groups = tensor.group_size, len(tensor.widths)
    codes = tensor.codes
    if missing := groups * g - columns:
        last = tensor.first_order()[1][:, -1:]
        codes = torch.cat((codes, last.expand(rows, missing)), dim=1)
    grouped = codes.view(rows, groups, g)
    return {w: grouped[:, tensor.widths == w].reshape(rows, -1) for w in MIXED_WIDTHS}


def by_channel(codes: Mapping[int, torch.Tensor], widths: torch.Tensor, g: int) -> torch.Tensor:
    """The inverse of by_width, columns beyond K included; what blocks are filled with is dropped.

    Args:
        codes: width -> [N, at least G_w * g] uint8.
        widths: bits of each group, [G].
        g: weights of a group.

    Returns:
        [N, G * g] uint8.
    """
    some = next(iter(codes.values()))
    out = some.new_zeros(len(some), len(widths), g)
    for w, values in codes.items():
        there = widths == w
        out[:, there] = values.view(len(some), -1, g)[:, : int(there.sum())]
    return out.view(len(some), -1)


def spread(of_groups: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """[rows, at least as many as are there] -> [rows, G], 0 where a group is not there ([G] bool)."""
    out = of_groups.new_zeros(len(of_groups), len(there))
    out[:, there] = of_groups[:, : int(there.sum())]
    return out
