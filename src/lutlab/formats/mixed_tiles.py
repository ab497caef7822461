"""Memory-aligned blocks of 2/4-bit weights in tiles of 16 rows x 256 columns, as a warp of a GPU reads them.

The words of mixed_blocks.py, none changed, in another order: a warp copies a tile's chunk of four blocks as one piece,
and lane 4 r + c finds block c of rows r and r + 8 in vectors of 16, 8 and 4 bytes.

    codes  [T, C, 1280] uint8    blocks [2 halves of the tile][lane] of 16 bytes | apart [lane][2 halves] of 4
    scales [T, C, 160] uint8     meta [lane][2 halves] of 2 bytes | of each block: steps of a, b, c, second-order zeros

T = ceil(N / 16), C = ceil(K / 256); what is missing is 0, and decodes to 0. A row's outliers are

    outlier_first [N + 1] int32   places in    outliers [E] int32: float16 value << 16 | place of its column in blocks

A place is 64 t + 16 s + i in group s of block t (a, b, c or the 4-bit group), and the i-th of the group in the order in
which pairs of codes are masked out of a word: columns j and j + 8 of 2 bits, j and j + 4 of either half of 4 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lutlab.formats.mixed_blocks import NARROW
from lutlab.tensors import BLOCK_GROUP as GROUP

if TYPE_CHECKING:
    import torch

    from lutlab.formats.mixed import PackedMixed

ROWS = 16  # of a tile
CHUNK = 4  # blocks
CODE_BYTES = ROWS * CHUNK * 20
SCALE_BYTES = ROWS * CHUNK * 2 + CHUNK * 8


@dataclass(frozen=True)
class PackedMixedTiles:
    """Buffers as the module draws them; shape (N, K).

    source: [4 CHUNK C] int32, the channel group (of 16) in each group of each block, -1 where it is none.
    row_scale: [N] float16, row_zero: [ceil(N / 8)] int32, as stored. most_outliers: of a row; 0: there are none, and
    their buffers are None.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    source: torch.Tensor
    row_scale: torch.Tensor
    row_zero: torch.Tensor
    outlier_first: torch.Tensor | None
    outliers: torch.Tensor | None
    most_outliers: int
    shape: tuple[int, int]

    order = None  # x is gathered by groups inside the kernel

    @property
    def buffers(self) -> dict[str, torch.Tensor | None]:
        """Buffers that a kernel reads, by the names that plans use."""
        names = ("codes", "scales", "source", "row_scale", "row_zero", "outlier_first", "outliers")
        return {name: getattr(self, name) for name in names}

    def to(self, device: torch.device | str) -> PackedMixedTiles:
        """The same on a device."""
        there = {name: b if b is None else b.to(device) for name, b in self.buffers.items()}
        return replace(self, **there)


def chunks(columns: int) -> int:
    """Chunks of a row.

    >>> chunks(4096), chunks(11008), chunks(172)
    (16, 43, 1)
    """
    return -(-columns // ((NARROW + 1) * GROUP * CHUNK))


def pack(packed: PackedMixed) -> PackedMixedTiles:
    """From the stored form, whose codes are in memory-aligned blocks."""
    import torch

    rows, columns = packed.shape
    tiles, of_row = -(-rows // ROWS), chunks(columns)

    def tiled(words: torch.Tensor) -> torch.Tensor:
        """[N, T, bytes] -> [tiles, chunks, half, row of 8, block of 4, bytes]."""
        octets = _octets(words)
        missing = (0, 0, 0, of_row * CHUNK - octets.shape[1], 0, tiles * ROWS - rows)
        octets = torch.nn.functional.pad(octets, missing)
        return octets.view(tiles, 2, 8, of_row, CHUNK, -1).permute(0, 3, 1, 2, 4, 5)

    def flat(octets: torch.Tensor) -> torch.Tensor:
        return octets.reshape(tiles, of_row, -1)

    def by_lane(words: torch.Tensor) -> torch.Tensor:
        return flat(tiled(words.unsqueeze(2)).movedim(2, 4))

    step = packed.scale_step.view(tiles, -1, NARROW).view(torch.int16)
    second = _octets(torch.cat((step, packed.scale_zero.unsqueeze(2)), dim=2))
    second = torch.nn.functional.pad(second, (0, 0, 0, of_row * CHUNK - second.shape[1]))
    group_places = places(packed.widths)
    outliers = outlier_buffers(
        packed, lambda column: group_places[column // GROUP], packed.widths == 4
    )
    return PackedMixedTiles(
        torch.cat((flat(tiled(packed.blocks)), by_lane(packed.apart)), dim=2),
        torch.cat((by_lane(packed.meta), flat(second.view(tiles, of_row, -1))), dim=2),
        source(packed.widths, of_row),
        packed.row_scale,
        packed.row_zero,
        *outliers,
        shape=packed.shape,
    )


def places(widths: torch.Tensor) -> torch.Tensor:
    """[G] int32: 4 t + s for the channel group in group s of block t.

    Args:
        widths: [G] uint8 of 2 and 4, a quarter of them 4.
    """
    import torch

    wide = widths == 4
    narrow = (~wide).cumsum(0) - 1
    of_narrow = narrow // NARROW * (NARROW + 1) + narrow % NARROW
    return torch.where(wide, (wide.cumsum(0) - 1) * (NARROW + 1) + NARROW, of_narrow).int()


def source(widths: torch.Tensor, of_row: int) -> torch.Tensor:
    """The inverse of places, for so many chunks of a row: [4 CHUNK C] int32, -1 where there is no group."""
    import torch

    found = widths.new_full((of_row * CHUNK * (NARROW + 1),), -1, dtype=torch.int32)
    found[places(widths).long()] = torch.arange(
        len(widths), dtype=torch.int32, device=widths.device
    )
    return found


def outlier_buffers(
    packed: PackedMixed,
    place: Callable[[torch.Tensor], torch.Tensor],
    of_words: torch.Tensor | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None, int]:
    """Buffers of the outliers as the module draws them, or None twice, and the most of a row.

    Args:
        packed: with its outliers.
        place: of the 16 columns around each column, counted in sixteens.
        of_words: [G] bool, groups of 16 whose pairs are of either half, a word each; None: there are none.
    """
    import torch

    most = 0 if packed.outlier_count is None else int(packed.outlier_count.max())
    if not most:
        return None, None, 0
    count = packed.outlier_count.int()
    first = torch.nn.functional.pad(count.cumsum(0, dtype=torch.int32), (1, 0))
    column = packed.outlier_column.long() & 0xFFFF
    at = column % GROUP
    inside = at % 8 * 2 + at // 8
    if of_words is not None:
        of_half = at // 8 * 8 + at % 4 * 2 + at % 8 // 4
        inside = torch.where(of_words[column // GROUP], of_half, inside)
    bits = packed.outlier_value.view(torch.int16).int()
    return first, bits << 16 | (place(column).int() * GROUP + inside.int()), most


def _octets(words: torch.Tensor) -> torch.Tensor:
    """[..., n] of any width -> [..., bytes] uint8."""
    import torch

    words = words.contiguous()
    return words.view(torch.uint8).view(*words.shape[:-1], -1)
