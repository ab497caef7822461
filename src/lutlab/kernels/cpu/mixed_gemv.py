"""y[M, N] = x[M, K] W[N, K]^T on the CPU, W of mixed groups with its outliers.

    y[m, n] = sum_groups scale ( sum_k codes[n, k] x[m, k]  -  zero_point sum_k x[m, k] )  +  sum_outliers value x[m, k]

fp32 throughout, or integers of 24 bits with exact sums (AVX2), as bcq_gemv has them. A row of W is summed by one thread
in a fixed order, so that y does not depend on the number of threads.

The layout: blocks of 32 rows, a section for each width, one stream of bytes.

    stream  = [groups of 4 bits] [of 3] [of 2] [scales of rows] [outliers]
    section = for each panel of some 512 columns, for each block of 32 rows:
              [words of all groups of the panel] [metadata of all] [steps of all]

    words of 8 columns      32 rows at a time, first all rows of columns 0-7 of a group, then of columns 8-15, ...
        4 bits   32 words, one a row; column j is in bits 4 j .. 4 j + 3
        2 bits   32 halves, one a row, rows r and 16 + r side by side: bit j is plane 0 of column j, bit 8 + j plane 1
        3 bits   the same, then 16 halves: bit j is plane 2 of column j of row r, bit 8 + j of row 16 + r
    metadata of a group     8 words (3 bytes each at 2 bits, else 4), of rows r, 8 + r, 16 + r, 24 + r for r = 0..7; the
                            field of a row, 6 bits (8), is its scale code and, from bit 4 on, its zero point
    steps of a group        float16: scale_step of rows 0-15 and 16-31, then scale_zero of these; 8 bytes
    scales of rows          for each block, where groups of 4 bits have them and no metadata: 32 float16, 32 zero points
    outliers                [rows + 2] int32, where a row begins; uint16, stored columns; float16, values

With AVX2 16 rows of halves lie together, as pairs of them are widened (kernels/cpu/simd/avx2_digits.h): of these, row
8 i + 4 j + l is at place 8 j + 4 i + l. Groups of one width keep their order. Padding of K multiplies activations of 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch

from lutlab.base.errors import LutlabError
from lutlab.base.registry import register
from lutlab.base.tensors import MIXED_WIDTHS, MixedTensor
from lutlab.formats.code_words import in_order
from lutlab.formats.mixed import PackedMixed, by_channel, by_width, outliers_of, row_scales
from lutlab.kernels.codegen import templates
from lutlab.kernels.codegen.isa import Isa, detect
from lutlab.kernels.cpu import VERSIONS
from lutlab.kernels.cpu.rows.linear import RowsOp
from lutlab.kernels.cpu.rows.row_blocks import ROWS, blocks_of, check_finite, lanes
from lutlab.kernels.cpu.rows.rows_gemv import EXACT, PREFETCH_BYTES, RowsWeight
from lutlab.kernels.cpu.rows.tiles import tiles

INTEGERS, FLOATS = "mixed int24", "mixed"
# Rows of x from which on weights become floats in L1 once for all of them.
TILE_FROM = {"avx512": 14, "avx2": 20, "portable": 2}
LONGEST_GROUP = 128
BAND = 16  # rows that share steps, or parts of those that do
ROW_BYTES = 3 * ROWS  # of a block's scales of rows
MAX_COLUMNS = 2**16
ORDER = tuple(reversed(MIXED_WIDTHS))  # of the sections
OCTET = 8
# Codes packed at a time, so that what is made of them stays in the cache.
CHUNK_CODES = 2**19
_LOWEST = 0x0101010101010101  # bits of 8 bytes
_GATHER = 0x0102040810204080  # times these, bit 8 i goes to bit 56 + i
_SPREAD = -0x7FBFDFEFF7FBFDFF  # 0x8040201008040201: bit i of byte i


@register("kernel", "mixed_gemv")
class MixedGemv(RowsOp[PackedMixed]):
    """Column groups of 2, 3 and 4 bits and outliers in one call; panels and prefetch distance are not tuned."""

    version: ClassVar[int] = VERSIONS["mixed_gemv"]
    name: ClassVar[str] = "mixed_gemv"
    multiplies: ClassVar[str] = "format mixed"
    formats: ClassVar[tuple[type, ...]] = (PackedMixed,)
    tuned: ClassVar[bool] = False

    def empty(self, packed: PackedMixed, tables: str) -> PackedMixedRows:
        """The layout in sections; there are no tables."""
        return empty(packed)


@dataclass(frozen=True, kw_only=True)
class PackedMixedRows(RowsWeight[PackedMixed]):
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
    prefetch_bytes: ClassVar[dict[str, int]] = PREFETCH_BYTES | {"avx512": 16384}

    # ---- places ----

    @property
    def columns(self) -> int:
        """Columns of all groups, what the last one lacks included."""
        return sum(self.of_width) * self.group_size

    @property
    def places(self) -> tuple[int, ...]:
        """The C struct sections of kernels/cpu/mixed/units.h."""
        outliers = -1 if self.outliers is None else self.outliers
        return (self.shape[1], self.panel_units, 0, 0, *self.of_width, outliers)

    @property
    def panel_units(self) -> int:
        """Groups of a panel."""
        return max(1, self.panel_columns // self.group_size)

    @property
    def blocks(self) -> int:
        """Number of blocks of 32 rows."""
        return blocks_of(self.shape[0])

    @property
    def octets(self) -> int:
        """Octets of columns of a group."""
        return self.group_size // OCTET

    def units(self, width: int) -> int:
        """Number of groups of a width."""
        return self.of_width[MIXED_WIDTHS.index(width)]

    def scales(self, width: int) -> bool:
        """Whether groups of a width have scales of their own."""
        return not (self.row_scale and width == 4)

    def unit_bytes(self, width: int) -> tuple[int, int, int]:
        """Bytes of a group in a block: words, metadata, steps."""
        words = self.group_size * width * ROWS // 8
        return (words, 24 if width == 2 else 32, 8) if self.scales(width) else (words, 0, 0)

    @cached_property
    def sections(self) -> dict[int, slice]:
        """Width -> bytes of its section, of widths that there are."""
        sections, at = {}, 0
        for width in ORDER:
            size = self.blocks * self.units(width) * sum(self.unit_bytes(width))
            if size:
                sections[width] = slice(at, at + size)
            at += size
        return sections

    @property
    def rows_at(self) -> int:
        """First byte of the scales of rows."""
        return max(section.stop for section in self.sections.values())

    @property
    def outliers_at(self) -> int:
        """First byte of the outliers."""
        return self.rows_at + (ROW_BYTES * self.blocks if self.row_scale else 0)

    @property
    def outlier_room(self) -> int:
        """Entries of columns and of values: a vector more than there are; 0 where there is no such part."""
        return 0 if self.outliers is None else (self.outliers + 31) // 16 * 16

    @property
    def size(self) -> int:
        """Bytes of the stream."""
        if self.outliers is None:
            return self.outliers_at
        return self.outliers_at + 4 * (self.blocks * ROWS + 2) + 4 * self.outlier_room

    @property
    def group_order(self) -> torch.Tensor:
        """`order` of a record with a weight."""
        assert self.order is not None  # filled() sets it
        return self.order

    @cached_property
    def channels(self) -> torch.Tensor:
        """[columns] int32: the input channel of each stored column, -1 for padding."""
        column = torch.arange(self.group_size, dtype=torch.int32)
        channel = (self.group_order[:, None] * self.group_size + column).flatten()
        return torch.where(channel < self.shape[1], channel, -1)

    @cached_property
    def widths(self) -> torch.Tensor:
        """[G] uint8, as in MixedTensor."""
        stored = torch.tensor(ORDER, dtype=torch.uint8)
        stored = stored.repeat_interleave(torch.tensor([self.units(w) for w in ORDER]))
        return torch.empty_like(stored).index_copy_(0, self.group_order.long(), stored)

    def source(self, isa: Isa, tables: str = EXACT) -> tuple[str, str, str]:
        """The kernel for groups of the widths that there are; there is no other for other tables."""
        widths = tuple(sorted(self.sections))
        text = source(isa, widths=widths, group_size=self.group_size, row_scale=self.row_scale)
        name = f"mixed-{''.join(map(str, widths))}-g{self.group_size}"
        return text, name, INTEGERS if interleaved(isa) else FLOATS

    def filled(self, stored: PackedMixed) -> PackedMixedRows:
        """Sections, scales of rows and outliers, with the order of the groups."""
        tensor = stored.unpack()
        check_finite(tensor.scale_step, tensor.row_scale, tensor.outlier_value)
        order = torch.cat([(tensor.widths == w).nonzero().flatten() for w in ORDER]).int()
        out = replace(self, order=order)
        stream = torch.zeros(out.size, dtype=torch.uint8)
        codes = by_width(tensor)
        for width, section in out.sections.items():
            groups = tensor.widths == width
            words = pack_words(codes[width], width, self.interleaved)
            parts = [words.unflatten(1, (-1, out.octets))]
            if out.scales(width):
                parts += [
                    pack_meta(tensor.scale_code[:, groups], tensor.zero_point[:, groups], width),
                    _pack_steps(tensor, groups),
                ]
            for panel, regions in _panels(stream[section], out, width):
                for part, region in zip(parts, regions, strict=True):
                    region.copy_(part[:, panel].flatten(2))
        _write_rows(stream[out.rows_at : out.outliers_at], tensor)
        _write_outliers(stream[out.outliers_at :], tensor, out)
        return replace(out, stream=stream)

    def stored(self) -> PackedMixed:
        """The sections' codes and scales, packed again."""
        (rows, columns), g = self.shape, self.group_size
        count, bands = sum(self.of_width), -(-rows // self.scale_group)
        codes = {w: torch.empty(rows, 0, dtype=torch.uint8) for w in MIXED_WIDTHS}
        zero_point, scale_code = (torch.zeros(rows, count, dtype=torch.uint8) for _ in range(2))
        scale_zero = torch.zeros(bands, count, dtype=torch.uint8)
        scale_step = torch.zeros(bands, count, dtype=torch.float16)
        for width, section in self.sections.items():
            panels = [regions for _, regions in _panels(self.stream[section], self, width)]
            words, *scales = (torch.cat(parts, dim=1) for parts in zip(*panels, strict=True))
            words = words.unflatten(2, (self.octets, -1)).flatten(1, 2)
            codes[width] = unpack_words(words, width, self.interleaved, rows)
            if scales:
                (meta, steps), groups = scales, self.widths == width
                scale_code[:, groups], zero_point[:, groups] = unpack_meta(meta, width, rows)
                # [blocks, U, step or zero, half] of the first row of each band
                halves = steps.view(torch.float16).unflatten(2, (2, 2)).permute(0, 3, 2, 1)
                first = halves.flatten(0, 1)[:: self.scale_group // BAND][:bands]
                scale_step[:, groups] = first[:, 0]
                scale_zero[:, groups] = first[:, 1].to(torch.uint8)
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
    columns, g = packed.shape[1], packed.group_size
    if g % OCTET or g > LONGEST_GROUP:
        raise LutlabError(f"g={g}: the CPU kernel takes multiples of {OCTET} up to {LONGEST_GROUP}")
    if packed.scale_group % BAND:
        raise LutlabError(
            f"scale_group={packed.scale_group}: the CPU kernel takes multiples of {BAND}"
        )
    if -(-columns // g) * g > MAX_COLUMNS:
        raise LutlabError(f"K={columns}: 16 bits of an outlier name at most {MAX_COLUMNS} columns")
    return PackedMixedRows(
        shape=packed.shape,
        bits=max(w for w, units in zip(MIXED_WIDTHS, packed.of_width, strict=True) if units),
        group_size=g,
        scale_group=packed.scale_group,
        of_width=packed.of_width,
        row_scale=packed.row_scale is not None,
        outliers=None if packed.outlier_value is None else len(packed.outlier_value),
        aligned=packed.aligned,
        interleaved=interleaved(isa or detect()),
    )


def interleaved(isa: Isa) -> bool:
    """The order of rows that an instruction set reads."""
    return isa.name == "avx2"


@templates.cached
def source(isa: Isa, *, widths: tuple[int, ...], group_size: int, row_scale: bool) -> str:
    """C source of the product, in AVX-512's or AVX2's instructions, or none in particular.

    widths: bits that groups have, ascending; group_size: a multiple of 8; row_scale: whether groups of 4 bits share a
    scale a row.
    """
    return templates.render(
        "mixed/gemv.c",
        simd=isa.name if isa.name in ("avx2", "avx512") else "portable",
        widths=widths,
        g=group_size,
        row_scale=row_scale,
        **tiles(isa, TILE_FROM),
    )


def _panels(
    section: torch.Tensor, weight: PackedMixedRows, width: int
) -> Iterator[tuple[slice, list[torch.Tensor]]]:
    """(groups of a panel, for each part that these have its bytes [blocks, groups, bytes])."""
    sizes, units, at = weight.unit_bytes(width), weight.units(width), 0
    for first in range(0, units, weight.panel_units):
        count = min(weight.panel_units, units - first)
        end = at + weight.blocks * count * sum(sizes)
        octets = section[at:end].view(weight.blocks, -1)
        parts = octets.split([count * size for size in sizes if size], dim=1)
        yield slice(first, first + count), [part.unflatten(1, (count, -1)) for part in parts]
        at = end


def _pack_steps(tensor: MixedTensor, groups: torch.Tensor) -> torch.Tensor:
    """Steps and zeros [blocks, those of the groups ([G] bool), 8 bytes] uint8."""
    rows = len(tensor.codes)
    band = torch.arange(0, rows, BAND) // tensor.scale_group
    both = torch.stack((tensor.scale_step[:, groups], tensor.scale_zero[:, groups].half()), dim=1)
    both = torch.nn.functional.pad(both[band].float(), (0, 0, 0, 0, 0, len(band) % 2)).half()
    # [halves, step or zero, U] -> [blocks, U, step or zero, half]
    by_unit = both.unflatten(0, (-1, 2)).permute(0, 3, 2, 1)
    return in_order(by_unit).view(torch.uint8).flatten(2)


def _write_rows(region: torch.Tensor, tensor: MixedTensor) -> None:
    """Scales and zero points of rows into their bytes; nothing where there are none."""
    if of_rows := row_scales(tensor):
        scale, zero = (lanes(values, len(values)) for values in of_rows)
        region.copy_(torch.cat((in_order(scale).view(torch.uint8), zero), dim=1).flatten())


def _read_rows(packed: PackedMixedRows) -> dict[str, torch.Tensor]:
    """The inverse of _write_rows, as fields of a MixedTensor."""
    rows = packed.shape[0]
    if not packed.row_scale:
        return {}
    octets = packed.stream[packed.rows_at : packed.outliers_at].view(packed.blocks, ROW_BYTES)
    scale = in_order(octets[:, : 2 * ROWS]).view(torch.float16)
    return {
        "row_scale": scale.flatten()[:rows].contiguous(),
        "row_zero": octets[:, 2 * ROWS :].flatten()[:rows].contiguous(),
    }


def _write_outliers(region: torch.Tensor, tensor: MixedTensor, out: PackedMixedRows) -> None:
    """Starts of rows, stored columns and values into their bytes; nothing where there is no such part."""
    outliers = outliers_of(tensor)
    if outliers is None:
        return
    count, column, value = outliers
    starts = torch.zeros(out.blocks * ROWS + 2, dtype=torch.int32)
    counts = torch.nn.functional.pad(count, (0, len(starts) - 1 - len(count)))
    torch.cumsum(counts, 0, out=starts[1:])
    channels = out.channels.long()
    stored = torch.empty(out.shape[1], dtype=torch.int64)
    stored[channels[channels >= 0]] = torch.arange(len(channels))[channels >= 0]
    columns = stored[column.long()].to(torch.int16)
    region[: starts.nbytes] = starts.view(torch.uint8)
    for at, values in ((0, columns), (2 * out.outlier_room, value)):
        octets = in_order(values).view(torch.uint8)
        region[starts.nbytes + at :][: len(octets)] = octets


def _read_outliers(packed: PackedMixedRows) -> dict[str, torch.Tensor]:
    """The inverse of _write_outliers, as fields of a MixedTensor."""
    if packed.outliers is None:
        return {}
    octets, length = packed.stream[packed.outliers_at :], 2 * packed.outliers
    size = 4 * (packed.blocks * ROWS + 2)
    starts = octets[:size].clone().view(torch.int32)[: packed.shape[0] + 1]
    columns, values = (
        octets[at : at + length].clone() for at in (size, size + 2 * packed.outlier_room)
    )
    stored = columns.view(torch.int16).long() & MAX_COLUMNS - 1
    return {
        "outlier_count": starts.diff(),
        "outlier_column": packed.channels[stored],
        "outlier_value": values.view(torch.float16),
    }


# ---- words and metadata, each way; rows are padded to whole blocks by zeros, U groups of one width have g columns ----


def pack_words(codes: torch.Tensor, width: int, interleaved: bool) -> torch.Tensor:
    """Codes [N, octets * 8] uint8 -> words [blocks, octets, 32 * width] uint8."""
    rows, columns = codes.shape
    out = torch.empty(-(-rows // ROWS), columns // OCTET, ROWS * width, dtype=torch.uint8)
    step = max(1, CHUNK_CODES // (columns * ROWS))
    for first in range(0, len(out), step):
        some = in_order(codes[first * ROWS : (first + step) * ROWS])
        out[first : first + step] = (
            _pack_fields(some) if width == 4 else _pack_planes(some, width, interleaved)
        )
    return out


def unpack_words(words: torch.Tensor, width: int, interleaved: bool, rows: int) -> torch.Tensor:
    """The inverse of pack_words: [N, octets * 8] uint8."""
    blocks, octets, _ = words.shape
    out = torch.empty(blocks * ROWS, octets * OCTET, dtype=torch.uint8)
    step = max(1, CHUNK_CODES // (octets * OCTET * ROWS))
    for first in range(0, blocks, step):
        some = in_order(words[first : first + step])
        out[first * ROWS : (first + step) * ROWS] = (
            _unpack_fields(some) if width == 4 else _unpack_planes(some, width, interleaved)
        )
    return out[:rows]


def _pack_fields(codes: torch.Tensor) -> torch.Tensor:
    # Two bytes of one code each, read as int16, are code 0 + 256 code 1: shifted by 4, the byte holds both.
    pairs = codes.view(torch.int16)
    words = lanes((pairs | pairs >> 4).to(torch.uint8).view(torch.int32), len(codes))
    return in_order(words.transpose(1, 2)).view(torch.uint8)


def _unpack_fields(words: torch.Tensor) -> torch.Tensor:
    bytes_ = in_order(words.view(torch.int32).transpose(1, 2)).view(torch.uint8)
    codes = torch.stack((bytes_ & 15, bytes_ >> 4), dim=3)
    return codes.flatten(2).flatten(0, 1)


def _pack_planes(codes: torch.Tensor, width: int, interleaved: bool) -> torch.Tensor:
    eight = codes.view(torch.int64)
    planes = [((eight >> b & _LOWEST) * _GATHER >> 56).to(torch.uint8) for b in range(width)]
    # [N, octets] -> [blocks, octets, half, place]
    planes = [_placed(lanes(p, len(codes)).transpose(1, 2), interleaved) for p in planes]
    pairs = torch.stack(planes[:2], dim=4)
    words = (pairs if interleaved else pairs.transpose(2, 3)).flatten(2)
    return words if width == 2 else torch.cat((words, planes[2].transpose(2, 3).flatten(2)), dim=2)


def _unpack_planes(words: torch.Tensor, width: int, interleaved: bool) -> torch.Tensor:
    sizes = (2, ROWS // 2, 2) if interleaved else (ROWS // 2, 2, 2)
    pairs = words[..., : 2 * ROWS].unflatten(2, sizes)
    planes = list((pairs if interleaved else pairs.transpose(2, 3)).unbind(4))
    if width == 3:
        planes.append(words[..., 2 * ROWS :].unflatten(2, (ROWS // 2, 2)).transpose(2, 3))
    codes = torch.zeros((), dtype=torch.uint8)
    for b, plane in enumerate(planes):
        by_row = _placed(plane.flatten(2), interleaved).flatten(2).transpose(1, 2).flatten(0, 1)
        bits = in_order(by_row.long() * _LOWEST & _SPREAD).view(torch.uint8).ne(0)
        codes = codes + (bits.to(torch.uint8) << b)
    return codes


def _placed(by_row: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """[..., 32 rows] -> [..., half, place], which is its own inverse."""
    halves = by_row.unflatten(-1, (2, ROWS // 2))
    if not interleaved:
        return halves
    return halves.unflatten(-1, (2, 2, 4)).transpose(-3, -2).flatten(-3)


def pack_meta(scale_code: torch.Tensor, zero_point: torch.Tensor, width: int) -> torch.Tensor:
    """Scale codes and zero points [N, U] uint8 -> [blocks, U, bytes] uint8."""
    bits, size = _field(width)
    fields = lanes(scale_code | zero_point << 4, len(scale_code)).long().unflatten(1, (4, 8))
    words = sum(fields[:, v] << bits * v for v in range(4))  # of two's complement in 32 bits
    words = in_order(words.transpose(1, 2)).view(torch.uint8).unflatten(2, (8, 8))
    return words[..., :size].flatten(2)


def unpack_meta(meta: torch.Tensor, width: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse of pack_meta."""
    bits, size = _field(width)
    words = torch.nn.functional.pad(meta.unflatten(2, (8, size)), (0, 8 - size))
    words = in_order(words).view(torch.int64).squeeze(3).transpose(1, 2)
    fields = torch.stack([words >> bits * v & 2**bits - 1 for v in range(4)], dim=1)
    fields = fields.flatten(1, 2).flatten(0, 1)[:rows].to(torch.uint8)
    return fields & 15, fields >> 4


def _field(width: int) -> tuple[int, int]:
    """Bits of a row's field, bytes of four of them."""
    return (6, 3) if width == 2 else (8, 4)
