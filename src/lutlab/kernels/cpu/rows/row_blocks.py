"""Places of a weight [N, K] in the kernels' layouts: 32 rows side by side, columns in panels, one stream of bytes.

    stream = for each panel of columns, for each block of 32 rows, for each unit of the panel:
             [scales of the unit, 32 rows wide] [words of the unit: word 0, word 1, ...]

             unit 0   unit 1   ...      each word position holds 32 rows x 32 bits, row r of the block in lane r:
    block 0  |......|......|            | row 0 | row 1 | ... | row 31 |  128 bytes, a vector register reads 16 rows
    block 1  |......|......|
                panel 0                 then panel 1: all blocks again

A unit is the columns that share scales: one group, a piece of a group longer than 32 words, or one word holding
several groups of 8 or 16. Its columns are a whole number of words: what a group lacks, and what K lacks in the last
unit, is padding that multiplies activations of 0. A panel is as many units as make 512 columns, or what the layout
says: the tables or activations of a panel stay in the L1 cache while all rows pass. The kernel reads the stream from
front to back, so one prefetch distance serves. N is padded to a multiple of 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from lutlab.base.errors import LutlabError
from lutlab.base.groups import group_length
from lutlab.base.lazy import torch

ROWS = 32
PANEL_COLUMNS = 512
# A group of more words than this is cut: its tables would not stay in L1, and sums in float32 would get long.
LONGEST_UNIT_WORDS = 32


@dataclass(frozen=True)
class Geometry:
    """Cuts of K into units and panels, for words of `word_columns` columns.

    groups_in_unit is 1, or 32 / g where a word of 32 columns holds several groups; pieces is 1, or the units that a
    long group is cut into.
    """

    in_features: int
    group_length: int
    word_columns: int
    unit_words: int
    groups_in_unit: int
    pieces: int
    panel_units: int

    @cached_property
    def units(self) -> int:
        """Number of units along K."""
        groups = -(-self.in_features // self.group_length)
        return -(-groups // self.groups_in_unit) * self.pieces

    @property
    def unit_columns(self) -> int:
        """Stored columns of a unit."""
        return self.unit_words * self.word_columns

    @property
    def columns(self) -> int:
        """Number of stored columns, padding included."""
        return self.units * self.unit_columns

    @cached_property
    def in_order(self) -> bool:
        """Whether stored column j is column j of the weight, and padding comes after all of them."""
        whole = self.group_length * self.groups_in_unit == self.unit_columns * self.pieces
        return whole or self.group_length >= self.in_features

    def panels(self) -> list[slice]:
        """Number of units of each panel."""
        return [
            slice(first, min(first + self.panel_units, self.units))
            for first in range(0, self.units, self.panel_units)
        ]

    def stored_columns(self) -> torch.Tensor:
        """[columns] int64: the weight's column in each stored one, -1 where it is padding."""
        column = torch.arange(self.columns)
        if not self.in_order:
            in_group = self.unit_columns * self.pieces // self.groups_in_unit
            group, inside = column // in_group, column % in_group
            column = torch.where(
                inside < self.group_length, group * self.group_length + inside, self.in_features
            )
        return torch.where(column < self.in_features, column, -1)

    def unit_scales(self, scales: torch.Tensor) -> torch.Tensor:
        """Scales [..., G] -> [..., units, groups_in_unit]: repeated for pieces, zeros behind the last group."""
        spread = scales.repeat_interleave(self.pieces, dim=-1)
        missing = self.units * self.groups_in_unit - spread.shape[-1]
        spread = torch.nn.functional.pad(spread, (0, missing))
        return spread.unflatten(-1, (self.units, self.groups_in_unit))

    def group_scales(self, units: torch.Tensor) -> torch.Tensor:
        """The inverse of unit_scales: [..., units, groups_in_unit] -> [..., G]."""
        groups = -(-self.in_features // self.group_length)
        return units.flatten(-2)[..., :: self.pieces][..., :groups]


def geometry(
    in_features: int, group_size: int, word_columns: int, panel_columns: int = PANEL_COLUMNS
) -> Geometry:
    """Cut of a weight with groups of `group_size`.

    Raises:
        LutlabError: the group size is neither -1, nor at least K, nor a multiple of 8.
    """
    length = group_length(group_size, in_features)
    if length < in_features and length % 8:
        raise LutlabError(
            f"g={group_size} is not a group size the CPU kernels take: give a multiple of 8, or -1 for one scale a row"
        )
    if length < in_features and length < word_columns and word_columns % length == 0:
        words, groups_in_unit, pieces = 1, word_columns // length, 1
    else:
        words, groups_in_unit = -(-length // word_columns), 1
        pieces = -(-words // LONGEST_UNIT_WORDS)
        words = -(-words // pieces)
    panel_units = max(1, panel_columns // (words * word_columns))
    return Geometry(in_features, length, word_columns, words, groups_in_unit, pieces, panel_units)


def blocks_of(rows: int) -> int:
    """Number of blocks of 32 rows."""
    return -(-rows // ROWS)


def write(geo: Geometry, rows: int, parts: list[torch.Tensor]) -> torch.Tensor:
    """Numbers [blocks, units, ...], in the order they have in a unit -> the stream [bytes] uint8."""
    sizes = [part[0, 0].numel() * part.element_size() for part in parts]
    stream = torch.empty(blocks_of(rows) * geo.units * sum(sizes), dtype=torch.uint8)
    for panel, octets in _panel_views(stream, geo, rows, sum(sizes)):
        for part, region in zip(parts, octets.split(sizes, dim=2), strict=True):
            region.view(part.dtype).unflatten(2, part.shape[2:]).copy_(part[:, panel])
    return stream


def read(stream: torch.Tensor, geo: Geometry, rows: int, widths: list[int]) -> list[torch.Tensor]:
    """The inverse of write: for each width, the part [blocks, units, width] uint8."""
    parts = [torch.empty(blocks_of(rows), geo.units, width, dtype=torch.uint8) for width in widths]
    for panel, octets in _panel_views(stream, geo, rows, sum(widths)):
        for part, region in zip(parts, octets.split(widths, dim=2), strict=True):
            part[:, panel] = region
    return parts


def _panel_views(
    stream: torch.Tensor, geo: Geometry, rows: int, width: int
) -> Iterator[tuple[slice, torch.Tensor]]:
    """(units of a panel, its bytes [blocks, units, width])."""
    blocks = blocks_of(rows)
    for panel in geo.panels():
        count = panel.stop - panel.start
        begin = blocks * panel.start * width
        yield panel, stream[begin : begin + blocks * count * width].view(blocks, count, width)


def lanes(values: torch.Tensor, rows: int) -> torch.Tensor:
    """[N, ...] of 2 or 4 byte numbers -> [blocks, 32, ...]: rows in blocks, zeros for the missing ones."""
    missing = blocks_of(rows) * ROWS - rows
    if missing:
        values = torch.cat((values, values.new_zeros(missing, *values.shape[1:])))
    return values.unflatten(0, (blocks_of(rows), ROWS))


def channels(geo: Geometry, order: torch.Tensor | None) -> torch.Tensor | None:
    """[columns] int32: the input channel in each stored column, -1 for padding; None: channel j in column j."""
    if order is None and geo.in_order:
        return None
    column = geo.stored_columns()
    if order is None:
        return column.int()
    return torch.cat((order.cpu().int(), torch.tensor([-1], dtype=torch.int32)))[column]


def check_finite(*scales: torch.Tensor | None) -> None:
    """A kernel multiplies partial sums by scales: inf there would make nan of a weight that is inf.

    Raises:
        LutlabError: a scale is inf or nan.
    """
    bad = sum(int((~torch.isfinite(s)).sum()) for s in scales if s is not None)
    if bad:
        raise LutlabError(
            f"{bad} scales are inf or nan: quantize finite weights, or keep scales beyond float16's 65504 in float32 "
            "(scale_dtype=fp32)"
        )
