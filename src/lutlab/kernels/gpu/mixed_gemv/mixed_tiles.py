"""Memory-aligned blocks of 2/4-bit weights in tiles of 16 rows x 256 columns, as a warp of a GPU reads them.

The words of mixed_blocks.py, none changed, in another order: a warp copies a tile's chunk of four blocks as one piece,
and lane 4 r + c finds block c of rows r and r + 8 in vectors of 16, 8 and 4 bytes.

    codes  [T, C, 1280] uint8    blocks [2 halves of the tile][lane] of 16 bytes | apart [lane][2 halves] of 4
    scales [T, C, 160] uint8     meta [lane][2 halves] of 2 bytes | of each block: steps of a, b, c, second-order zeros

T = ceil(N / 16), C = ceil(K / 256); what is missing is 0, and decodes to 0. `source` [4 CHUNK C] int32 has the
channel group of 16 in each group of each block, -1 where it is none. A row's outliers are

    outlier_first [N + 1] int32   places in    outliers [E] int32: float16 value << 16 | place of its column in blocks

A place is 64 t + 16 s + i in group s of block t (a, b, c or the 4-bit group), and the i-th of the group in the order in
which pairs of codes are masked out of a word: columns j and j + 8 of 2 bits, j and j + 4 of either half of 4 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from lutlab.base.tensors import BLOCK_GROUP as GROUP
from lutlab.formats.mixed import PackedMixed, outliers_of
from lutlab.formats.mixed_blocks import NARROW
from lutlab.kernels.gpu.lut_gemv.variant import Weight

ROWS = 16  # of a tile
CHUNK = 4  # blocks
CODE_BYTES = ROWS * CHUNK * 20
SCALE_BYTES = ROWS * CHUNK * 2 + CHUNK * 8


@dataclass(frozen=True)
class MixedWeight(Weight):
    """A weight of mixed groups; most_outliers: of a row, 0: there are none, and their buffers are None.

    chunks: of a tile, of 2, 3 and 4 bits (mixed_chunks.py); None of memory-aligned blocks.
    """

    most_outliers: int = 0
    chunks: tuple[int, int, int] | None = None


def chunks(columns: int) -> int:
    """Number of chunks of a row.

    >>> chunks(4096), chunks(11008), chunks(172)
    (16, 43, 1)
    """
    return -(-columns // ((NARROW + 1) * GROUP * CHUNK))


def pack(packed: PackedMixed) -> MixedWeight:
    """Pack a stored weight, whose codes are in memory-aligned blocks."""
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
    blocks, apart, meta = (packed.stored_buffers[name] for name in ("blocks", "apart", "meta"))
    buffers = {
        "codes": torch.cat((flat(tiled(blocks)), by_lane(apart)), dim=2),
        "scales": torch.cat((by_lane(meta), flat(second.view(tiles, of_row, -1))), dim=2),
        "source": source(packed.widths, of_row),
    }
    return with_outliers(
        buffers, packed, lambda column: group_places[column // GROUP], packed.widths == 4
    )


def places(widths: torch.Tensor) -> torch.Tensor:
    """[G] int32: 4 t + s for the channel group in group s of block t; widths: a quarter of them 4, the others 2."""
    wide = widths == 4
    narrow = (~wide).cumsum(0) - 1
    of_narrow = narrow // NARROW * (NARROW + 1) + narrow % NARROW
    return torch.where(wide, (wide.cumsum(0) - 1) * (NARROW + 1) + NARROW, of_narrow).int()


def source(widths: torch.Tensor, of_row: int) -> torch.Tensor:
    """The inverse of places, for so many chunks of a row: [4 CHUNK C] int32, -1 where there is no group."""
    group = widths.new_full((of_row * CHUNK * (NARROW + 1),), -1, dtype=torch.int32)
    group[places(widths).long()] = torch.arange(
        len(widths), dtype=torch.int32, device=widths.device
    )
    return group


def with_outliers(
    buffers: Mapping[str, torch.Tensor],
    packed: PackedMixed,
    place: Callable[[torch.Tensor], torch.Tensor],
    of_words: torch.Tensor | None = None,
    chunks: tuple[int, int, int] | None = None,
) -> MixedWeight:
    """A weight with scales of rows as they are stored, and its outliers as the module draws them.

    Args:
        buffers: those of its groups.
        packed: the stored form.
        place: place of the 16 columns around each column, counted in sixteens.
        of_words: [G] bool, groups of 16 whose pairs are of either half, a word each; None: there are none.
        chunks: numbers of a tile's chunks of 2, 3 and 4 bits, see MixedWeight; None of memory-aligned blocks.
    """
    first, entries, most = None, None, most_outliers(packed)
    if most and (outliers := outliers_of(packed)):
        count, column, value = outliers
        first = torch.nn.functional.pad(count.int().cumsum(0, dtype=torch.int32), (1, 0))
        column = column.long() & 0xFFFF
        at = column % GROUP
        inside = at % 8 * 2 + at // 8
        if of_words is not None:
            of_half = at // 8 * 8 + at % 4 * 2 + at % 8 // 4
            inside = torch.where(of_words[column // GROUP], of_half, inside)
        bits = value.view(torch.int16).int()
        entries = bits << 16 | (place(column).int() * GROUP + inside.int())
    of_rows = {"row_scale": packed.row_scale, "row_zero": packed.row_zero}
    everything = {**buffers, **of_rows, "outlier_first": first, "outliers": entries}
    # In pieces of 16 columns, which repeat the scales of larger groups; a code has up to 4 bits.
    return MixedWeight(everything, packed.shape, 4, GROUP, most_outliers=most, chunks=chunks)


def most_outliers(packed: PackedMixed) -> int:
    """Outliers of the row that has the most."""
    return 0 if packed.outlier_count is None else int(packed.outlier_count.max())


def _octets(words: torch.Tensor) -> torch.Tensor:
    """[..., n] of any width -> [..., bytes] uint8."""
    words = words.contiguous()
    return words.view(torch.uint8).view(*words.shape[:-1], -1)
