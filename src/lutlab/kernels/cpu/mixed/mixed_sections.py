"""Places of mixed groups in the stream that the kernel reads; mixed_rows.py draws it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from lutlab.kernels.cpu.mixed.mixed_row_words import OCTET
from lutlab.kernels.cpu.rows.row_blocks import ROWS, blocks_of
from lutlab.tensors import MIXED_WIDTHS

LONGEST_GROUP = 128
BAND = 16  # rows that share steps, or parts of those that do
ROW_BYTES = 3 * ROWS  # of a block's scales of rows
MAX_COLUMNS = 2**16
ORDER = tuple(reversed(MIXED_WIDTHS))  # of the sections


@dataclass(frozen=True)
class MixedGeometry:
    """Places in the stream of a weight of so many groups of 2, 3 and 4 bits."""

    shape: tuple[int, int]
    group_size: int
    of_width: tuple[int, int, int]
    row_scale: bool
    outliers: int | None
    panel_units: int

    @property
    def columns(self) -> int:
        """Number of stored columns, padding included."""
        return sum(self.of_width) * self.group_size

    @property
    def blocks(self) -> int:
        """Number of blocks of 32 rows."""
        return blocks_of(self.shape[0])

    def units(self, width: int) -> int:
        """Number of groups of a width."""
        return self.of_width[MIXED_WIDTHS.index(width)]

    @property
    def octets(self) -> int:
        """Octets of columns of a group."""
        return self.group_size // OCTET

    def scales(self, width: int) -> bool:
        """Whether groups of a width have scales of their own."""
        return not (self.row_scale and width == 4)

    def unit_bytes(self, width: int) -> tuple[int, int, int]:
        """Bytes of a group in a block: words, metadata, steps."""
        words = self.group_size * width * ROWS // 8
        return (words, 24 if width == 2 else 32, 8) if self.scales(width) else (words, 0, 0)

    def sections(self) -> dict[int, slice]:
        """Width -> bytes of its section."""
        found, at = {}, 0
        for width in ORDER:
            size = self.blocks * self.units(width) * sum(self.unit_bytes(width))
            found[width], at = slice(at, at + size), at + size
        return found

    @property
    def rows_at(self) -> int:
        """First byte of the scales of rows."""
        return self.sections()[ORDER[-1]].stop

    @property
    def outliers_at(self) -> int:
        """First byte of the outliers."""
        return self.rows_at + (ROW_BYTES * self.blocks if self.row_scale else 0)

    @property
    def outlier_room(self) -> int:
        """Entries of columns and of values: a vector more than there are."""
        return (self.outliers + 31) // 16 * 16

    @property
    def size(self) -> int:
        """Bytes of the stream."""
        if self.outliers is None:
            return self.outliers_at
        return self.outliers_at + 4 * (self.blocks * ROWS + 2) + 4 * self.outlier_room

    def fields(self) -> tuple[int, ...]:
        """The C struct sections of kernels/cpu/mixed/units.h."""
        outliers = -1 if self.outliers is None else self.outliers
        return (self.shape[1], self.panel_units, 0, 0, *self.of_width, outliers)


def why_not(columns: int, group_size: int, scale_group: int) -> str:
    """Reason for there being no such layout of a weight of K columns; empty where there is one."""
    if group_size % OCTET or group_size > LONGEST_GROUP:
        return f"g={group_size}: the CPU kernel takes multiples of {OCTET} up to {LONGEST_GROUP}"
    if scale_group % BAND:
        return f"scale_group={scale_group}: the CPU kernel takes multiples of {BAND}"
    if -(-columns // group_size) * group_size > MAX_COLUMNS:
        return f"K={columns}: 16 bits of an outlier name at most {MAX_COLUMNS} columns"
    return ""


def _panels(
    section: torch.Tensor, geo: MixedGeometry, width: int
) -> Iterator[tuple[slice, list[torch.Tensor]]]:
    """(groups of a panel, for each part of these its bytes [blocks, groups, bytes])."""
    sizes, units, at = geo.unit_bytes(width), geo.units(width), 0
    for first in range(0, units, geo.panel_units):
        count = min(geo.panel_units, units - first)
        end = at + geo.blocks * count * sum(sizes)
        parts = section[at:end].view(geo.blocks, -1).split([count * size for size in sizes], dim=1)
        yield (
            slice(first, first + count),
            [part.unflatten(1, (count, -1)) for part in parts if part.shape[1]],
        )
        at = end


def write(section: torch.Tensor, geo: MixedGeometry, width: int, parts: list[torch.Tensor]) -> None:
    """Parts [blocks, groups, ...] of a section into its bytes."""
    for panel, there in _panels(section, geo, width):
        for part, region in zip(parts, there, strict=True):
            region.copy_(part[:, panel].flatten(2))


def read(section: torch.Tensor, geo: MixedGeometry, width: int) -> list[torch.Tensor]:
    """The inverse of write: each part [blocks, groups, bytes]; no bytes where there are no scales."""
    shape = geo.blocks, geo.units(width)
    parts = [torch.empty(*shape, size, dtype=torch.uint8) for size in geo.unit_bytes(width)]
    for panel, there in _panels(section, geo, width):
        for part, region in zip(parts, there, strict=False):
            part[:, panel] = region
    return parts
