"""BCQ planes as the binary tensor cores of a GPU read them: a lane's four words of 32 rows x 128 columns side by side.

    W[n, k] ~ sum_b alpha_b[group of k, n] * B_b[n, k] + offset[group of k, n],  B_b in {-1, +1}      LUT-GEMM Eq. 2

The matrix is cut into tiles of 32 rows and blocks of 128 columns. Lane 4 r + w of a warp holds word w of the block
(columns 32 w .. 32 w + 31, bit k % 32; 1 is +alpha, 0 is -alpha) of rows r, r + 8, r + 16, r + 24: one load of 16 bytes
is A of two m16n8k128 products (PTX ISA, "Matrix Fragments for mma.m16n8k128"):

    planes[tile, block, b]     lane 0                           lane 1                      ...  lane 31
                               row 0   8      16     24         row 0   8      16     24         row 7   15  23  31
                               word 0  word 0 word 0 word 0     word 1  word 1 word 1 word 1     word 3  ...
    alpha[tile, group, b]      rows 0 8 16 24 | 1 9 17 25 | ... | 7 15 23 31: four neighbours are the rows of a lane

    planes [T, C, q, 32, 4] int32, T = ceil(N / 32);  alpha [T, G', q, 32], offset [T, G', 32] or None

No block has parts of two groups but of 4 groups of 32 or 2 of 64, which share one (G' is G rounded up to these). Every
other group begins a block and takes ceil(g / 128) of them, so g = 96 stores a third more. Padding holds zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lutlab.base.errors import LutlabError
from lutlab.base.groups import group_count, group_length
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.code_words import in_order
from lutlab.kernels.gpu.lut_gemv.variant import Weight, of_planes, with_planes

ROWS, COLUMNS = 32, 128
WORDS = COLUMNS // 32


@dataclass(frozen=True)
class Cut:
    """A cut of K columns into blocks: parts groups in a block, or run blocks for a group; blocks C, groups G'."""

    parts: int
    run: int
    blocks: int
    groups: int


def cut(group_size: int, columns: int) -> Cut:
    """The blocks of a row.

    >>> cut(32, 200), cut(160, 200)
    (Cut(parts=4, run=1, blocks=2, groups=8), Cut(parts=1, run=2, blocks=3, groups=2))
    """
    length, groups = group_length(group_size, columns), group_count(group_size, columns)
    parts = {32: 4, 64: 2}.get(length, 1)
    if parts > 1:
        blocks = -(-groups // parts)
        return Cut(parts, 1, blocks, blocks * parts)
    run = -(-length // COLUMNS)
    last = columns - (groups - 1) * length
    return Cut(1, run, (groups - 1) * run + -(-last // COLUMNS), groups)


def pack(packed: PackedBCQ) -> Weight:
    """From rows of words.

    Raises:
        LutlabError: groups are no whole words of 32 columns.
    """
    length = group_length(packed.group_size, packed.shape[1])
    if length % 32 and length != packed.shape[1]:
        raise LutlabError(
            f"g={packed.group_size}: tiles for binary tensor cores take groups that are multiples of 32, or one group"
        )
    q, rows, count = packed.planes.shape
    layout = cut(packed.group_size, packed.shape[1])
    of_group = _words_of_group(packed, layout)
    runs = -(-count // of_group)
    words = _padded(packed.planes, 2, runs * of_group).view(q, rows, runs, of_group)
    words = _padded(words, 3, layout.run * WORDS).reshape(q, rows, -1, WORDS)[:, :, : layout.blocks]
    words = _padded(words, 1, ROWS).view(q, -1, 4, 8, layout.blocks, WORDS)
    words = in_order(words.permute(1, 4, 0, 3, 5, 2)).view(-1, layout.blocks, q, 32, 4)

    def place(scales: torch.Tensor) -> torch.Tensor:
        """[b, N, G] -> [T, G', b, 32]."""
        tiled = _padded(_padded(scales, 1, ROWS), 2, layout.groups)
        tiled = tiled.reshape(len(scales), -1, 4, 8, layout.groups).permute(1, 4, 0, 3, 2)
        return in_order(tiled).view(-1, layout.groups, len(scales), ROWS)

    return with_planes(packed, words, place, 2)


def unpack(weight: Weight) -> PackedBCQ:
    """The inverse of pack, bit for bit where the offset is not float64."""
    (rows, columns), words = weight.shape, weight.buffer("planes")
    layout = cut(weight.group_size, columns)
    tiles, blocks, q = words.shape[:3]
    words = words.view(tiles, blocks, q, 8, WORDS, 4).permute(2, 0, 5, 3, 1, 4)
    words = _padded(words.reshape(q, tiles * ROWS, blocks, WORDS)[:, :rows], 2, layout.run)
    runs = words.reshape(q, rows, -1, layout.run * WORDS)[..., : _words_of_group(weight, layout)]

    def back(scales: torch.Tensor) -> torch.Tensor:
        """[T, G', b, 32] -> [b, N, G]."""
        _, groups, b, _ = scales.shape
        by_row = scales.view(tiles, groups, b, 8, 4).permute(2, 0, 4, 3, 1)
        by_row = by_row.reshape(b, tiles * ROWS, groups)[:, :rows]
        return by_row[..., : group_count(weight.group_size, columns)]

    return of_planes(weight, runs.reshape(q, rows, -1)[..., : -(-columns // 32)], back, 2)


def _words_of_group(weight: PackedBCQ | Weight, layout: Cut) -> int:
    """Words that lie together in a run of blocks: a group's, or a block's where groups share it."""
    if layout.parts > 1:
        return WORDS
    return -(-group_length(weight.group_size, weight.shape[1]) // 32)


def _padded(values: torch.Tensor, axis: int, multiple: int) -> torch.Tensor:
    """Zeros behind the end of an axis, up to a multiple."""
    missing = -values.shape[axis] % multiple
    shape = list(values.shape)
    shape[axis] += missing
    out = values.new_zeros(shape)
    out.narrow(axis, 0, values.shape[axis]).copy_(values)
    return out
