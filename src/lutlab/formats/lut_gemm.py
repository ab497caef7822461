"""BCQ planes in LUT-GEMM's own order: the words of neighbouring rows lie side by side, as a warp of a GPU reads them.

    W[n, k] ~ sum_b alpha_b[group of k, n] * B_b[n, k] + offset[group of k, n],  B_b in {-1, +1}      LUT-GEMM Eq. 2

planes[w, b, n] holds the signs of columns 32 w .. 32 w + 31 of row n, bit k % 32; 1 is +alpha, 0 is -alpha:

                     row 0   row 1   ...   row N-1   padding to a multiple of 32 rows
    w = 0   b = 0    word    word    ...   word      0 ...
            b = 1    word    word    ...
    w = 1   b = 0    ...

    planes [W, q, S] int32, W = ceil(K / 32), S = N rounded up to 32;  alpha [G, q, S], offset [G, S] or None

A row of words begins at a multiple of 128 bytes. Padding holds zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.plane_buffers import PlaneBuffers

if TYPE_CHECKING:
    import torch

ALIGNED_ROWS = 32


@dataclass(frozen=True)
class PackedLutGemm(PlaneBuffers):
    """planes [W, q, S] int32, alpha [G, q, S], offset [G, S] or None; shape (N, K). The module draws them."""

    @property
    def bits(self) -> int:
        """Planes, q."""
        return self.planes.shape[1]

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32, as the plain layout has it."""
        return unpack(self).dequantize()


def stride(rows: int) -> int:
    """S: rows between the words of two planes.

    >>> stride(1), stride(33)
    (32, 64)
    """
    return -(-rows // ALIGNED_ROWS) * ALIGNED_ROWS


def pack(packed: PackedBCQ) -> PackedLutGemm:
    """From rows of words. An offset in float64 is stored in float32."""
    import torch

    offset = packed.offset
    if offset is not None:
        offset = _side_by_side(offset.float() if offset.dtype == torch.float64 else offset, (1, 0))
    return PackedLutGemm(
        planes=_side_by_side(packed.planes, (2, 0, 1)),
        alpha=_side_by_side(packed.alpha, (2, 0, 1)),
        offset=offset,
        shape=packed.shape,
        group_size=packed.group_size,
        order=packed.order,
    )


def unpack(packed: PackedLutGemm) -> PackedBCQ:
    """The inverse of pack, bit for bit where the offset is not float64."""
    rows = packed.shape[0]
    offset = packed.offset
    return PackedBCQ(
        planes=_plain(packed.planes[..., :rows].permute(1, 2, 0)),
        alpha=_plain(packed.alpha[..., :rows].permute(1, 2, 0)),
        offset=None if offset is None else _plain(offset[:, :rows].t()),
        shape=packed.shape,
        group_size=packed.group_size,
        order=packed.order,
    )


def _side_by_side(values: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """Permuted so that rows come last, and padded."""
    there = values.permute(axes)
    out = there.new_zeros(*there.shape[:-1], stride(there.shape[-1]))
    out[..., : there.shape[-1]] = there
    return out


def _plain(values: torch.Tensor) -> torch.Tensor:
    """Clone, not contiguous: that keeps odd strides where a dimension is 1, and then no bytes can be viewed."""
    import torch

    return values.clone(memory_format=torch.contiguous_format)
