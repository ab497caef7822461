"""Layouts of BCQ planes: what paper.py, lane_tables.py and binary_tiles.py have in common.

Each says where words and scales lie; that scales are scales and an offset is one more of them, and what else a weight
has, is here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.code_words import in_order
from lutlab.kernels.gpu.lut_gemv.variant import Weight

Move = Callable[[torch.Tensor], torch.Tensor]


def packed(stored: PackedBCQ, planes: torch.Tensor, place: Move, axis: int) -> Weight:
    """A weight in a layout of planes. An offset in float64 becomes float32.

    Args:
        stored: binary codes.
        planes: int32, as the layout has them.
        place: scales [q, N, G] -> as the layout has them.
        axis: axis of the planes among these, which an offset has not.
    """
    offset = stored.offset
    if offset is not None:
        narrow = offset.float() if offset.dtype == torch.float64 else offset
        offset = place(narrow.unsqueeze(0)).squeeze(axis)
    held = {"planes": planes, "alpha": place(stored.alpha), "offset": offset}
    return Weight(held, stored.shape, stored.bits, stored.group_size, stored.order)


def stored(weight: Weight, planes: torch.Tensor, back: Move, axis: int) -> PackedBCQ:
    """The inverse of packed, bit for bit where the offset is not float64; planes: [q, N, W]; back: place's inverse."""
    offset = weight.offset
    return PackedBCQ(
        planes=in_order(planes),
        alpha=in_order(back(weight.alpha)),
        offset=None if offset is None else in_order(back(offset.unsqueeze(axis))[0]),
        shape=weight.shape,
        group_size=weight.group_size,
        order=weight.order,
    )
