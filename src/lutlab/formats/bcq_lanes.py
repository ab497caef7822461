"""BCQ planes as lane_tables.cu reads them: a lane of a warp has 32 columns, a warp reads one stream from front to back.

    W[n, k] ~ sum_b alpha_b[group of k, n] * B_b[n, k] + offset[group of k, n],  B_b in {-1, +1}      LUT-GEMM Eq. 2

K is cut into the fewest slices of at most 32 words, all of C words: word c of a slice belongs to lane c. Four rows are
side by side, so that a lane reads 16 bytes; quads of rows and planes follow each other (slice 0, q = 2):

    quad 0   plane 0:  [word 0: rows 0 1 2 3] [word 1: rows 0 1 2 3] ... [word C-1: rows 0 1 2 3]
             plane 1:  [word 0: rows 0 1 2 3] ...
    quad 1   plane 0:  [word 0: rows 4 5 6 7] ...

    planes [S, Q, q, C, 4] int32, S = slices, Q = N / 4 for N rounded up to 32
    alpha [S, Q, q, A, 4], offset [S, Q, A, 4] or None: the A groups from the first that the slice touches on; a group
    that lies in two slices is stored twice

Bit k % 32 of a word is 1 for +alpha. Words and rows of padding hold zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lutlab.formats.bcq import WORD, PackedBCQ
from lutlab.formats.plane_buffers import PlaneBuffers
from lutlab.groups import group_length

if TYPE_CHECKING:
    import torch

LANES = 32
QUAD = 4  # rows side by side
ALIGNED_ROWS = 32  # the most rows that a warp sums at a time


@dataclass(frozen=True)
class PackedBCQLanes(PlaneBuffers):
    """planes [S, Q, q, C, 4] int32, alpha [S, Q, q, A, 4], offset [S, Q, A, 4] or None; shape (N, K)."""

    @property
    def bits(self) -> int:
        """Planes, q."""
        return self.planes.shape[2]

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32, as the plain layout has it."""
        return unpack(self).dequantize()


def stride(rows: int) -> int:
    """N with its padding.

    >>> stride(1), stride(9)
    (32, 32)
    """
    return -(-rows // ALIGNED_ROWS) * ALIGNED_ROWS


def cut(columns: int) -> tuple[int, int]:
    """S and C: slices, and words of a slice. Only the last slice has padding, of less than S words.

    >>> cut(12288), cut(1056), cut(40)
    ((12, 32), (2, 17), (1, 2))
    """
    words = -(-columns // WORD)
    slices = -(-words // LANES)
    return slices, -(-words // slices)


def first_groups(columns: int, group_size: int) -> tuple[list[int], int]:
    """The first group that each slice touches, and A: the most groups that one touches.

    >>> first_groups(2048, 128), first_groups(2048, -1), first_groups(2048, 96)
    (([0, 8], 8), ([0, 0], 1), ([0, 10], 12))
    """
    slices, words = cut(columns)
    length = group_length(group_size, columns)
    edges = [min(s * words * WORD, columns) for s in range(slices + 1)]
    first = [edge // length for edge in edges[:-1]]
    last = [(edge - 1) // length for edge in edges[1:]]
    return first, max(b - a for a, b in zip(first, last, strict=True)) + 1


def pack(packed: PackedBCQ) -> PackedBCQLanes:
    """From rows of words. An offset in float64 is stored in float32."""
    import torch

    slices, words = cut(packed.shape[1])
    missing = slices * words - packed.planes.shape[2]
    planes = torch.nn.functional.pad(packed.planes, (0, missing)).unflatten(2, (slices, words))
    offset = packed.offset
    if offset is not None:
        offset = offset.float() if offset.dtype == torch.float64 else offset
        offset = _quads(_of_slices(offset.unsqueeze(0), packed)).squeeze(2)
    return PackedBCQLanes(
        planes=_quads(planes),
        alpha=_quads(_of_slices(packed.alpha, packed)),
        offset=offset,
        shape=packed.shape,
        group_size=packed.group_size,
        order=packed.order,
    )


def unpack(packed: PackedBCQLanes) -> PackedBCQ:
    """The inverse of pack, bit for bit where the offset is not float64."""
    rows, columns = packed.shape
    planes = _rows(packed.planes, rows).flatten(2)[..., : -(-columns // WORD)]
    offset = packed.offset
    if offset is not None:
        offset = _plain(_of_groups(_rows(offset.unsqueeze(2), rows), packed)[0])
    return PackedBCQ(
        planes=_plain(planes),
        alpha=_plain(_of_groups(_rows(packed.alpha, rows), packed)),
        offset=offset,
        shape=packed.shape,
        group_size=packed.group_size,
        order=packed.order,
    )


def _quads(values: torch.Tensor) -> torch.Tensor:
    """[q, N, S, X] -> [S, Q, q, X, 4]."""
    import torch

    rows = values.shape[1]
    padded = torch.nn.functional.pad(values, (0, 0, 0, 0, 0, stride(rows) - rows))
    return _plain(padded.unflatten(1, (-1, QUAD)).permute(3, 1, 0, 4, 2))


def _rows(values: torch.Tensor, rows: int) -> torch.Tensor:
    """The inverse of _quads: [S, Q, q, X, 4] -> [q, N, S, X]."""
    return values.permute(2, 1, 4, 0, 3).flatten(1, 2)[:, :rows]


def _of_slices(scales: torch.Tensor, packed: PackedBCQ) -> torch.Tensor:
    """[q, N, G] -> [q, N, S, A]; behind the last group it is repeated, and nobody reads it."""
    groups = _stored_groups(packed).clamp(max=scales.shape[2] - 1)
    return scales[:, :, groups.flatten()].unflatten(2, groups.shape)


def _of_groups(scales: torch.Tensor, packed: PackedBCQLanes) -> torch.Tensor:
    """The inverse of _of_slices: [q, N, S, A] -> [q, N, G]."""
    import torch

    groups = _stored_groups(packed).flatten()
    count = -(-packed.shape[1] // group_length(packed.group_size, packed.shape[1]))
    place = torch.empty(count, dtype=torch.int64)
    there = groups < count
    place[groups[there]] = torch.arange(len(groups))[there]
    return scales.flatten(2)[:, :, place]


def _stored_groups(packed: PackedBCQ | PackedBCQLanes) -> torch.Tensor:
    """[S, A] int64: the group of each place."""
    import torch

    first, most = first_groups(packed.shape[1], packed.group_size)
    return torch.tensor(first).unsqueeze(1) + torch.arange(most)


def _plain(values: torch.Tensor) -> torch.Tensor:
    """Clone, not contiguous: that keeps odd strides where a dimension is 1, and then no bytes can be viewed."""
    import torch

    return values.clone(memory_format=torch.contiguous_format)
