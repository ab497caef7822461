"""Mixed groups as the CPU kernel reads them: blocks of 32 rows, a section for each width, one stream of bytes.

    W[n, k] = scale[n, i] * (codes[n, k] - zero_point[n, i]) + outliers,   i = k // g                tensors.MixedTensor

    stream  = [groups of 4 bits] [of 3] [of 2] [scales of rows] [outliers]
    section = for each panel of some 512 columns, for each block of 32 rows:
              [words of all groups of the panel] [metadata of all] [steps of all]

    words of 8 columns      32 rows at a time, first all rows of columns 0-7 of a group, then of columns 8-15, ...
        4 bits   32 words, one a row; column j is in bits 4 j .. 4 j + 3
        2 bits   32 halves, one a row: bit j is plane 0 of column j, bit 8 + j plane 1
        3 bits   the same, then 16 halves: bit j is plane 2 of column j of row r, bit 8 + j of row 16 + r
    metadata of a group     8 words (3 bytes each at 2 bits, else 4), of rows r, 8 + r, 16 + r, 24 + r for r = 0..7; the
                            field of a row, 6 bits (8), is its scale code and, from bit 4 on, its zero point
    steps of a group        float16: scale_step of rows 0-15 and 16-31, then scale_zero of these; 8 bytes
    scales of rows          for each block, where groups of 4 bits have them and no metadata: 32 float16, 32 zero points
    outliers                [rows + 2] int32, where a row begins; uint16, stored columns; float16, values

16 rows of halves are in order, or as pairs of them are widened (kernels/cpu/simd/avx2_digits.h): row 8 i + 4 j + l is
at place 8 j + 4 i + l. Groups of one width keep their order. Padding of K multiplies activations of 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from lutlab.errors import LutlabError
from lutlab.formats.code_words import in_order
from lutlab.formats.mixed import PackedMixed, by_channel, by_width
from lutlab.kernels.codegen import templates
from lutlab.kernels.codegen.isa import Isa, detect
from lutlab.kernels.cpu.mixed.mixed_row_words import (
    pack_meta,
    pack_words,
    unpack_meta,
    unpack_words,
)
from lutlab.kernels.cpu.mixed.mixed_sections import (
    BAND,
    MAX_COLUMNS,
    ORDER,
    ROW_BYTES,
    MixedGeometry,
    read,
    why_not,
    write,
)
from lutlab.kernels.cpu.rows.row_blocks import ROWS, check_finite, lanes
from lutlab.kernels.cpu.rows.rows_gemv import EXACT, RowsWeight, Source
from lutlab.kernels.cpu.rows.tiles import tiles
from lutlab.tensors import MIXED_WIDTHS, MixedTensor

INTEGERS, FLOATS = "mixed int24", "mixed"
# Rows of x from which on weights become floats in L1 once for all of them.
TILE_FROM = {"avx2": 20, "portable": 2}


@dataclass(frozen=True, kw_only=True)
class PackedMixedRows(RowsWeight):
    """Groups of 2, 3 and 4 bits; of_width: how many of each; outliers: how many, None: no such part.

    bits: of the widest code. order: [G] int32, the group of the weight that is stored first, second, ...; None in a
    record without a weight. interleaved: whether rows of halves are as pairs of them are widened.
    """

    scale_group: int
    of_width: tuple[int, int, int]
    row_scale: bool
    outliers: int | None
    aligned: bool
    interleaved: bool

    @cached_property
    def geometry(self) -> MixedGeometry:
        """Geometry of the stream."""
        known = self.shape, self.group_size, self.of_width, self.row_scale, self.outliers
        return MixedGeometry(*known, max(1, self.panel_columns // self.group_size))

    @cached_property
    def channels(self) -> torch.Tensor:
        """[columns] int32: the input channel of each stored column, -1 for padding."""
        column = torch.arange(self.group_size, dtype=torch.int32)
        channel = (self.order[:, None] * self.group_size + column).flatten()
        return torch.where(channel < self.shape[1], channel, -1)

    @cached_property
    def widths(self) -> torch.Tensor:
        """[G] uint8, as in MixedTensor."""
        stored = torch.tensor(ORDER, dtype=torch.uint8)
        stored = stored.repeat_interleave(torch.tensor([self.geometry.units(w) for w in ORDER]))
        return torch.empty_like(stored).index_copy_(0, self.order.long(), stored)

    @staticmethod
    def instructions() -> Isa:
        """AVX2 where it runs, also under AVX-512: its integers are faster than plain C in 512 bits; else plain C."""
        return detect(without="avx512")

    def source(self, isa: Isa, tables: str = EXACT) -> Source:
        """See RowsWeight."""
        widths = tuple(w for w, units in zip(MIXED_WIDTHS, self.of_width, strict=True) if units)
        text = source(isa, widths=widths, group_size=self.group_size, row_scale=self.row_scale)
        name = f"mixed-{''.join(map(str, widths))}-g{self.group_size}"
        return Source(text, name, INTEGERS if interleaved(isa) else FLOATS)

    def filled(self, stored: PackedMixed) -> PackedMixedRows:
        """See RowsWeight."""
        tensor = stored.unpack()
        check_finite(tensor.scale_step, tensor.row_scale, tensor.outlier_value)
        order = torch.cat([(tensor.widths == w).nonzero().flatten() for w in ORDER]).int()
        out = replace(self, order=order)
        stream = torch.zeros(out.geometry.size, dtype=torch.uint8)
        codes, geo = by_width(tensor), out.geometry
        for width, section in geo.sections().items():
            if geo.units(width):
                there = tensor.widths == width
                parts = [
                    pack_words(codes[width], width, self.interleaved).unflatten(1, (-1, geo.octets))
                ]
                if geo.scales(width):
                    parts.append(
                        pack_meta(tensor.scale_code[:, there], tensor.zero_point[:, there], width)
                    )
                    parts.append(_pack_steps(tensor, there))
                write(stream[section], geo, width, parts)
        _write_rows(stream[geo.rows_at : geo.outliers_at], tensor)
        _write_outliers(stream[geo.outliers_at :], tensor, out)
        return replace(out, stream=stream)

    def stored(self) -> PackedMixed:
        """See RowsWeight."""
        geo, (rows, columns), g = self.geometry, self.shape, self.group_size
        groups, bands = sum(self.of_width), -(-rows // self.scale_group)
        codes = {w: torch.empty(rows, 0, dtype=torch.uint8) for w in MIXED_WIDTHS}
        zero_point, scale_code = (torch.zeros(rows, groups, dtype=torch.uint8) for _ in range(2))
        scale_zero = torch.zeros(bands, groups, dtype=torch.uint8)
        scale_step = torch.zeros(bands, groups, dtype=torch.float16)
        for width, section in geo.sections().items():
            if not geo.units(width):
                continue
            words, meta, steps = read(self.stream[section], geo, width)
            words = words.unflatten(2, (geo.octets, -1)).flatten(1, 2)
            codes[width] = unpack_words(words, width, self.interleaved, rows)
            if geo.scales(width):
                there = self.widths == width
                scale_code[:, there], zero_point[:, there] = unpack_meta(meta, width, rows)
                # [blocks, U, step or zero, half] of the first row of each band
                halves = (
                    steps.view(torch.float16).unflatten(2, (2, 2)).permute(0, 3, 2, 1).flatten(0, 1)
                )
                first = halves[:: self.scale_group // BAND][:bands]
                scale_step[:, there], scale_zero[:, there] = (
                    first[:, 0],
                    first[:, 1].to(torch.uint8),
                )
        return PackedMixed.pack(
            MixedTensor(
                codes=by_channel(codes, self.widths, g)[:, :columns].contiguous(),
                widths=self.widths,
                zero_point=zero_point,
                scale_code=scale_code,
                scale_zero=scale_zero,
                scale_step=scale_step,
                group_size=g,
                scale_group=self.scale_group,
                aligned=self.aligned,
                **_read_rows(self),
                **_read_outliers(self),
            )
        )


def empty(packed: PackedMixed, isa: Isa | None = None) -> PackedMixedRows:
    """The layout of a weight, without its stream; isa: that is to read it, None: the best.

    Raises:
        LutlabError: there is no such layout.
    """
    if why := why_not(packed.shape[1], packed.group_size, packed.scale_group):
        raise LutlabError(why)
    outliers = None if packed.outlier_value is None else len(packed.outlier_value)
    return PackedMixedRows(
        shape=packed.shape,
        bits=max(w for w, units in zip(MIXED_WIDTHS, packed.of_width, strict=True) if units),
        group_size=packed.group_size,
        scale_group=packed.scale_group,
        of_width=packed.of_width,
        row_scale=packed.row_scale is not None,
        outliers=outliers,
        aligned=packed.aligned,
        interleaved=interleaved(isa or PackedMixedRows.instructions()),
    )


def interleaved(isa: Isa) -> bool:
    """The order of rows that an instruction set reads."""
    return isa.name == "avx2"


@templates.kept
def source(isa: Isa, *, widths: tuple[int, ...], group_size: int, row_scale: bool) -> str:
    """C source of the product.

    Args:
        isa: the instructions to write it in, AVX2's or none in particular.
        widths: bits that groups have, ascending, of 2, 3 and 4.
        group_size: columns of a group, a multiple of 8.
        row_scale: whether groups of 4 bits share a scale a row.
    """
    return templates.render(
        "mixed/gemv.c",
        simd="avx2" if isa.name == "avx2" else "portable",
        widths=widths,
        g=group_size,
        row_scale=row_scale,
        **tiles(isa, TILE_FROM),
    )


def _pack_steps(tensor: MixedTensor, there: torch.Tensor) -> torch.Tensor:
    """Steps and zeros [blocks, groups that are there, 8 bytes] uint8."""
    rows = len(tensor.codes)
    band = torch.arange(0, rows, BAND) // tensor.scale_group
    both = torch.stack((tensor.scale_step[:, there], tensor.scale_zero[:, there].half()), dim=1)
    both = torch.nn.functional.pad(both[band].float(), (0, 0, 0, 0, 0, len(band) % 2)).half()
    # [halves, step or zero, U] -> [blocks, U, step or zero, half]
    by_unit = both.unflatten(0, (-1, 2)).permute(0, 3, 2, 1)
    return in_order(by_unit).view(torch.uint8).flatten(2)


def _write_rows(region: torch.Tensor, tensor: MixedTensor) -> None:
    """Scales and zero points of rows into their bytes; nothing where there are none."""
    if tensor.row_scale is None:
        return
    rows = len(tensor.row_scale)
    scale = in_order(lanes(tensor.row_scale, rows)).view(torch.uint8)
    region.copy_(torch.cat((scale, lanes(tensor.row_zero, rows)), dim=1).flatten())


def _read_rows(packed: PackedMixedRows) -> dict[str, torch.Tensor]:
    """The inverse of _write_rows, as fields of a MixedTensor."""
    geo, rows = packed.geometry, packed.shape[0]
    if not packed.row_scale:
        return {}
    held = packed.stream[geo.rows_at : geo.outliers_at].view(geo.blocks, ROW_BYTES)
    scale = in_order(held[:, : 2 * ROWS]).view(torch.float16)
    return {
        "row_scale": scale.flatten()[:rows].contiguous(),
        "row_zero": held[:, 2 * ROWS :].flatten()[:rows].contiguous(),
    }


def _write_outliers(region: torch.Tensor, tensor: MixedTensor, out: PackedMixedRows) -> None:
    """Starts of rows, stored columns and values into their bytes; nothing where there is no such part."""
    if tensor.outlier_count is None:
        return
    starts = torch.zeros(out.geometry.blocks * ROWS + 2, dtype=torch.int32)
    counts = torch.nn.functional.pad(tensor.outlier_count, (0, len(starts) - 1 - len(tensor.codes)))
    torch.cumsum(counts, 0, out=starts[1:])
    channels = out.channels.long()
    stored = torch.empty(out.shape[1], dtype=torch.int64)
    stored[channels[channels >= 0]] = torch.arange(len(channels))[channels >= 0]
    columns = stored[tensor.outlier_column.long()].to(torch.int16)
    room = 2 * out.geometry.outlier_room
    region[: starts.nbytes] = starts.view(torch.uint8)
    for at, values in ((0, columns), (room, tensor.outlier_value)):
        held = in_order(values).view(torch.uint8)
        region[starts.nbytes + at :][: len(held)] = held


def _read_outliers(packed: PackedMixedRows) -> dict[str, torch.Tensor]:
    """The inverse of _write_outliers, as fields of a MixedTensor."""
    if packed.outliers is None:
        return {}
    geo = packed.geometry
    held = packed.stream[geo.outliers_at :]
    size = 4 * (geo.blocks * ROWS + 2)
    starts = held[:size].clone().view(torch.int32)[: packed.shape[0] + 1]
    columns, values = (
        held[at : at + 2 * packed.outliers].clone() for at in (size, size + 2 * geo.outlier_room)
    )
    stored = columns.view(torch.int16).long() & MAX_COLUMNS - 1
    return {
        "outlier_count": starts.diff(),
        "outlier_column": packed.channels[stored],
        "outlier_value": values.view(torch.float16),
    }
