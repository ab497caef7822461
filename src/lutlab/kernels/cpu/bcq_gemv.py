"""y[M, N] = x[M, K] W[N, K]^T on the CPU, W in planes of bits, by lookup tables in registers.

    y[m, n] = sum_groups ( sum_b alpha_b sum_k B_b[n, k] x[m, k]  +  offset sum_k x[m, k] )        LUT-GEMM Eq. 2

Tables hold float32 sums of activations; with AVX2, where lookups of bytes are cheaper, integers of 24 bits with one
scale for the columns of a unit, whose sums are exact: both are in error by what float32 rounds at the size of the
largest activations. tables="int16" is faster, less exact and never chosen unasked: 16 bits with AVX-512, 18 with AVX2;
an outlier makes the step coarser for the columns of its unit only. Errors as recorded: kernels/README.md.

A row of W is summed by one thread in a fixed order: y does not depend on the number of threads. From `tile_from` rows
of x on weights become floats in L1 once for all of them, whatever the tables: in its last bits, and with int16 in more,
a row of y depends on the number of rows of x.

The layout: blocks of 32 rows, one stream (rows/row_blocks.py draws panels and blocks).

    unit = [alpha: groups_in_unit x q x 32 rows] [offset: groups_in_unit x 32 rows] [words]
    words = for each 32 columns, for each plane b: 32 words, one a row; bit k % 32 is 1 for +alpha, as in bcq.py

                 word 0                              word 1
    q = 2        plane 0: 32 rows  plane 1: 32 rows  plane 0: 32 rows  plane 1: 32 rows  ...

That is lane_bytes = 4. With 2 or 1 a row's word is cut: [half 0: 32 rows] [half 1: 32 rows], or [byte 0: 32 rows]
[byte 1: 32 rows] ..., rows in the order in which pairs are widened (kernels/cpu/simd/avx512_halves.h, avx2_bytes.h):

    lane_bytes = 2   row 16 h + l               is at place 2 l + h
    lane_bytes = 1   row 16 h + 8 i + 4 j + l   is at place 16 j + 8 i + 2 l + h

Of second order (formats/bcq_second_order.py) a coefficient is a byte, its code, and behind all units are the grids of
each block: for each coefficient of a group [step: 32 rows float16] [step * zero: 32 rows float16]. Scales and offsets
are filled up to whole 64 bytes, so that no load of words spans two lines of the cache.

Uniform codes s * (codes - zero_point) have the same planes and fewer scales (Eq. 5: alpha_b = 2^(b-1) s): a unit then
starts with [scale: groups_in_unit x 32 rows] [zero_point: groups_in_unit x 32 rows int16], or, of s * codes + m, with
[scale: …] [m: groups_in_unit x 32 rows]; of second order with bytes, as in uniform_gemv.

The source (kernels/cpu/bcq): a word of a plane is cut into lookups of as many bits as a table has: four with AVX-512,
whose tables have 16 entries, ten of three and one of two with AVX2. A lookup never spans two groups. As many planes are
worked on together as fit the registers; where those are few, each gets several sums, since an FMA takes four cycles and
two can start in one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, get_args

import torch

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.registry import register
from lutlab.base.second_order import coefficients
from lutlab.base.tensors import BCQTensor, UniformSecondOrderTensor
from lutlab.formats import bcq
from lutlab.formats.bcq import WORD, PackedBCQ
from lutlab.formats.bcq_second_order import PackedSecondOrder
from lutlab.formats.code_words import pack_stream
from lutlab.formats.uniform import PackedUniform
from lutlab.formats.uniform_second_order import PackedUniformSecondOrder
from lutlab.kernels.codegen import templates
from lutlab.kernels.codegen.isa import Isa, detect
from lutlab.kernels.cpu import VERSIONS
from lutlab.kernels.cpu.rows import row_blocks
from lutlab.kernels.cpu.rows.linear import RowsOp
from lutlab.kernels.cpu.rows.row_blocks import ROWS
from lutlab.kernels.cpu.rows.rows_gemv import C_NAMES, EXACT, RowsWeight
from lutlab.kernels.cpu.rows.tiles import Loop, tiles
from lutlab.kernels.cpu.uniform_gemv import dtypes

Stored = PackedBCQ | PackedSecondOrder | PackedUniform | PackedUniformSecondOrder
LINE = 64  # bytes of a line of the cache

# ---- the operation ----


@register("kernel", "bcq_gemv")
class BCQGemv(RowsOp[Stored]):
    """Planes of bits, by lookup tables in registers; those of uniform codes share a scale.

    tables: exact, or int16, which some CPUs have (kernel=int16 of a product).
    """

    version: ClassVar[int] = VERSIONS["bcq_gemv"]
    name: ClassVar[str] = "bcq_gemv"
    multiplies: ClassVar[str] = "formats bcq and uniform, of first and second order"
    formats: ClassVar[tuple[type, ...]] = get_args(Stored)
    options: ClassVar[tuple[str, ...]] = ("tables",)

    def empty(self, packed: Stored, tables: str) -> PackedBCQRows:
        """The layout that the fastest kernel of the tables reads."""
        return empty(packed, lane_bytes(detect(), packed.group_size, packed.shape[1], tables))


# ---- the layout ----


@dataclass(frozen=True, kw_only=True)
class PackedBCQRows(RowsWeight[Stored]):
    """Planes.

    scale_dtype: of alpha, or of the scales of uniform codes; uint8: codes of second order. uniform: whether the unit
    holds such scales, with their offsets, or, where offset_dtype is int16, zero points. offset_dtype: None says that
    there is no offset. lane_bytes: bytes of a row's word that lie together, 4, 2 or 1. wide_offset: [N, G] float64,
    which the stream holds in float32; None where it holds all.
    """

    scale_dtype: torch.dtype
    offset_dtype: torch.dtype | None
    uniform: bool = False
    lane_bytes: int = 4
    wide_offset: torch.Tensor | None = None

    @property
    def widths(self) -> list[int]:
        """Bytes of the parts of a unit: scales, offsets, words."""
        geo, offset = self.geometry, self.offset_dtype
        scales = 1 if self.uniform else self.bits
        sizes = self.scale_dtype.itemsize, 0 if offset is None else offset.itemsize
        of_scales = scale_bytes(geo.groups_in_unit, scales, *sizes)
        return [*of_scales, geo.unit_words * self.bits * ROWS * 4]

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """All tensors that it holds, the offset in float64 too."""
        return super().buffers + (() if self.wide_offset is None else (self.wide_offset,))

    def source(self, isa: Isa, tables: str = EXACT) -> tuple[str, str, str]:
        """The kernel for planes in this layout."""
        _, table_bits, variant = kind(isa, tables, self.lane_bytes, self.group_size, self.shape[1])
        text = source(
            isa,
            q=self.bits,
            groups_in_unit=self.geometry.groups_in_unit,
            alpha=C_NAMES[self.scale_dtype],
            offset=None if self.offset_dtype is None else C_NAMES[self.offset_dtype],
            uniform=self.uniform,
            table_bits=table_bits,
        )
        return text, f"bcq-q{self.bits}" + (f"-int{table_bits}" if table_bits else ""), variant

    def filled(self, stored: Stored) -> PackedBCQRows:
        """Planes, made of the codes where the weight is uniform, with its scales and offsets by blocks."""
        if isinstance(stored, PackedSecondOrder):
            code, q = stored.coefficient_codes, self.bits
            out = _fill(self, stored.planes, code[:q], code[q] if len(code) > q else None)
            return out.with_grids(stored.scale_step, stored.scale_zero, stored.scale_bits)
        if isinstance(stored, PackedBCQ):
            offset = stored.offset
            if offset is None or offset.dtype != torch.float64:
                return _fill(self, stored.planes, stored.alpha, offset)
            return _fill(
                replace(self, wide_offset=offset), stored.planes, stored.alpha, offset.float()
            )
        tensor, q = stored.unpack(), self.bits
        no_alpha = torch.zeros(q, len(tensor.codes), 1)
        planes = bcq.pack(BCQTensor(tensor.codes, no_alpha, None, q, -1, self.order)).planes
        if isinstance(tensor, UniformSecondOrderTensor):
            zero = tensor.zero_point.to(self.offset_dtype)
            out = _fill(self, planes, tensor.scale_code, zero)
            return out.with_grids(tensor.scale_step, tensor.scale_zero, tensor.scale_bits)
        shift = bcq.shifts(tensor.zero_point, tensor.offset)
        return _fill(self, planes, tensor.scale.unsqueeze(0), shift)

    def stored(self) -> Stored:
        """The planes, or the codes that they are the bits of."""
        planes, scales, offset = _parts(self)
        wide = offset if self.wide_offset is None else self.wide_offset
        packed = PackedBCQ(planes, scales, wide, self.shape, self.group_size, self.order)
        if self.grids is not None and not self.uniform:
            step, zero, bits = self.grids
            code = coefficients(scales, offset)
            stream = pack_stream(code, bits)
            shape, g = self.shape, self.group_size
            return PackedSecondOrder(planes, stream, step, zero, shape, g, bits, self.order)
        if not self.uniform or offset is None:  # uniform codes always have one
            return packed
        return self.stored_codes(bcq.unpack(packed).codes, scales[0], offset)


def empty(packed: Stored, lane_bytes: int = 4) -> PackedBCQRows:
    """The layout of a weight, without its stream."""
    scale: torch.dtype
    offset: torch.dtype | None
    if isinstance(packed, PackedSecondOrder):
        scale, offset = torch.uint8, torch.uint8 if packed.has_offset else None
    elif isinstance(packed, PackedUniform | PackedUniformSecondOrder):
        scale, offset = dtypes(packed)
    else:
        scale = packed.alpha.dtype
        offset = None if packed.offset is None else packed.offset.dtype
    return PackedBCQRows(
        shape=packed.shape,
        bits=packed.bits,
        group_size=packed.group_size,
        order=packed.order,
        scale_dtype=scale,
        offset_dtype=torch.float32 if offset == torch.float64 else offset,
        uniform=isinstance(packed, PackedUniform | PackedUniformSecondOrder),
        lane_bytes=lane_bytes,
    )


def scale_bytes(groups: int, scales: int, scale_size: int, offset_size: int) -> tuple[int, int]:
    """Bytes of a unit's scales and of its offsets, both together filled up to whole lines of the cache.

    Args:
        groups: number of groups in a unit.
        scales: number of scales in a group.
        scale_size: bytes of a scale.
        offset_size: bytes of an offset, 0 where there is none.
    """
    both = groups * ROWS * scales * scale_size, groups * ROWS * offset_size
    return both[0], both[1] + -sum(both) % LINE


def _fill(
    out: PackedBCQRows, planes: torch.Tensor, scales: torch.Tensor, offset: torch.Tensor | None
) -> PackedBCQRows:
    """Planes [q, N, W] int32, scales [q or 1, N, G], offset [N, G] -> the record with its stream."""
    row_blocks.check_finite(scales, offset)
    geo, (rows, in_features) = out.geometry, out.shape
    words = geo.columns // WORD
    if geo.in_order:
        planes = torch.nn.functional.pad(planes, (0, words - planes.shape[2]))
    else:
        planes = _moved(planes, geo.stored_columns(), in_features)
    # [q, N, words] -> [blocks, 32, q, units, unit_words] -> [blocks, units, unit_words, q, 32]
    by_row = row_blocks.lanes(planes.transpose(0, 1), rows).unflatten(3, (geo.units, -1))
    words_part = by_row.permute(0, 3, 4, 2, 1)
    if out.lane_bytes < 4:
        words_part = _cut(words_part, out.lane_bytes)
    # [q, N, units, groups_in_unit] -> [blocks, 32, q, units, groups_in_unit] -> [blocks, units, groups_in_unit, q, 32]
    wide = row_blocks.lanes(geo.unit_scales(scales).transpose(0, 1), rows)
    parts = [wide.permute(0, 3, 4, 2, 1)]
    if offset is not None:
        wide = row_blocks.lanes(geo.unit_scales(offset), rows)
        parts.append(wide.permute(0, 2, 3, 1))
    filler = sum(out.widths[:2]) - sum(part[0, 0].numel() * part.itemsize for part in parts)
    if filler:
        parts.append(torch.zeros(*words_part.shape[:2], filler, dtype=torch.uint8))
    return replace(out, stream=row_blocks.write(geo, rows, [*parts, words_part]))


def _parts(packed: PackedBCQRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Planes [q, N, W], scales [q or 1, N, G], offset [N, G] or None."""
    geo, (rows, in_features) = packed.geometry, packed.shape
    scales, offsets, words = row_blocks.read(packed.stream, geo, rows, packed.widths)
    if packed.lane_bytes < 4:
        words = _joined(words, packed.lane_bytes)
    planes = words.view(torch.int32).unflatten(2, (geo.unit_words, packed.bits, ROWS))
    planes = planes.permute(3, 0, 4, 1, 2).flatten(3, 4).flatten(1, 2)[:, :rows]
    if geo.in_order:
        planes = planes[:, :, : -(-in_features // WORD)]
    else:
        columns = geo.stored_columns()
        back = torch.empty(in_features, dtype=torch.int64)
        back[columns[columns >= 0]] = torch.arange(geo.columns)[columns >= 0]
        planes = _moved(planes, back, geo.columns)
    scales = scales.view(packed.scale_dtype).unflatten(2, (geo.groups_in_unit, -1, ROWS))
    alpha = geo.group_scales(scales.permute(3, 0, 4, 1, 2).flatten(1, 2)[:, :rows])
    offset = None
    if packed.offset_dtype is not None:
        size = (
            geo.groups_in_unit * ROWS * packed.offset_dtype.itemsize
        )  # what is behind them is filler
        offsets = offsets[..., :size].contiguous()
        wide = offsets.view(packed.offset_dtype).unflatten(2, (geo.groups_in_unit, ROWS))
        offset = geo.group_scales(wide.permute(0, 3, 1, 2).flatten(0, 1)[:rows]).contiguous()
    # clone, not contiguous: that keeps odd strides where a dimension is 1, and then no bytes can be viewed.
    return planes.clone(memory_format=torch.contiguous_format), alpha.contiguous(), offset


# Rows by their digits, and the order in which these are stored behind the piece of the word.
_ROWS = {2: (2, 16), 1: (2, 2, 2, 4)}  # h l; h i j l
_STORED = {2: (2, 1, 0), 1: (4, 2, 1, 3, 0)}  # piece l h; piece j i l h
# Words cut at a time, so that what is made of them stays in the cache.
CHUNK_WORDS = 2**16


def _cut(words: torch.Tensor, lane_bytes: int) -> torch.Tensor:
    """Words [blocks, ..., 32 rows] int32 -> their pieces, in the same order of bytes as _STORED."""
    if lane_bytes == 2:
        pieces = words.contiguous().view(torch.int16).unflatten(-1, (*_ROWS[2], 2))
        first = words.dim() - 1
        return pieces.permute(*range(first), *(first + d for d in _STORED[2]))
    out = torch.empty(*words.shape[:-1], 4, 2, 2, 2, dtype=torch.int32)  # byte of the word j i l/2
    step = max(1, CHUNK_WORDS // max(1, words[:1].numel()))
    for first in range(0, len(words), step):
        _cut_bytes(words[first : first + step], out[first : first + step])
    return out


def _cut_bytes(words: torch.Tensor, out: torch.Tensor) -> None:
    """Words [..., 32 rows] -> out [..., byte, j, i, l / 2], whose four bytes are those of l % 2 and h.

    Bytes change places by whole words: rows 16 apart swap bytes, then neighbouring rows swap halves. Moving single
    bytes would take four times as long.
    """
    low, high = words.contiguous().unflatten(-1, (2, 16)).unbind(-2)  # h = 0, 1
    even, odd = 0x00FF00FF, -0x00FF0100  # bytes 0 and 2; 1 and 3
    both = {
        0: (low & even) | (high & even) << 8,
        1: (low >> 8 & even) | (high & odd),
    }
    for byte, pairs in both.items():
        first, second = pairs.unflatten(-1, (2, 2, 2, 2)).transpose(-4, -3).unbind(-1)
        out[..., byte, :, :, :] = (first & 0xFFFF) | second << 16
        out[..., byte + 2, :, :, :] = (first >> 16 & 0xFFFF) | (second & -0x10000)


def _joined(stored: torch.Tensor, lane_bytes: int) -> torch.Tensor:
    """The inverse of _cut, flat: [blocks, units, bytes] uint8 of pieces -> those of words."""
    order = _STORED[lane_bytes]
    sizes = [(*_ROWS[lane_bytes], 4 // lane_bytes)[d] for d in order]
    pieces = stored.unflatten(-1, (-1, *sizes, lane_bytes))
    back = [order.index(d) for d in range(len(order))]
    return pieces.permute(0, 1, 2, *(3 + d for d in back), 3 + len(back)).flatten(2)


def _moved(planes: torch.Tensor, columns: torch.Tensor, in_features: int) -> torch.Tensor:
    """Planes [q, N, W] of in_features columns -> planes whose column j is columns[j], or zeros where that is -1."""
    q, rows, _ = planes.shape
    no_alpha = torch.zeros(q, rows, 1)
    plain = PackedBCQ(planes.contiguous(), no_alpha, None, (rows, in_features), -1)
    codes = bcq.unpack(plain).codes
    codes = torch.nn.functional.pad(codes, (0, 1)).index_select(1, columns % (in_features + 1))
    return bcq.pack(BCQTensor(codes, no_alpha, None, q, -1)).planes


# ---- the source ----

LUT_BITS = {"avx512": 4, "avx2": 3}
PORTABLE_LUT_BITS = 4
# Planes worked on together for 1, 2, ... rows of x at once, and sums under way for each of 32 rows.
PLANES = {"avx512": {1: 4, 2: 2, 4: 2}, "avx2": {1: 1, 2: 1}}
PORTABLE_PLANES = {1: 1}
SUMS = {"avx512": 4, "avx2": 2}
PORTABLE_SUMS = 1
# Rows of x from which on weights become floats once for all: a lookup costs more than that and an FMA.
TILE_FROM = {"avx512": 12, "avx2": 3, "portable": 2}
# The same of tables of integers: AVX-512; AVX2 by planes, the last number for more, and of planes looked up in pairs.
INTEGER_TILE_FROM = {"avx512": 24}
BYTES_TILE_FROM = {1: 48, 2: 24, 3: 10, 4: 8, 5: 6}
PAIRS_TILE_FROM = {1: 48, 2: 65, 3: 16}
INT16 = "int16"  # what tables hold, beside EXACT
# Instruction set, tables -> bytes of a row that lie together, bits of an integer entry, variant; else FLOATS.
INTEGERS = {
    ("avx2", EXACT): (1, 24, "bcq lut int24"),
    ("avx2", INT16): (1, 18, "bcq lut int18"),
    ("avx512", INT16): (2, 16, "bcq lut int16"),
}
FLOATS = (4, None, "bcq lut")
# When sums are multiplied by alpha: "first", each term by an FMA; "last", once a group, which frees its registers.
WEIGH = {"avx512": "first"}


def cuts(lut_bits: int, groups_in_unit: int) -> list[tuple[int, int]]:
    """The lookups of a word: the first column of each, and how many it has.

    >>> cuts(3, 1)[:2], cuts(3, 1)[-1]
    ([(0, 3), (3, 3)], (30, 2))
    """
    span = WORD // groups_in_unit
    return [
        (group + inside, min(lut_bits, span - inside))
        for group in range(0, WORD, span)
        for inside in range(0, span, lut_bits)
    ]


def loops(isa: Isa, q: int) -> list[Loop]:
    """For each number of rows of x: a loop over as many planes as fit the registers, and one over those left.

    >>> loops(Isa("avx512", ()), 7)[:2]  # of two vectors a plane
    [Loop(m=1, vectors=8, ways=1), Loop(m=1, vectors=6, ways=1)]
    """
    out = []
    for m, most in PLANES.get(isa.name, PORTABLE_PLANES).items():
        steps = -(-q // most)
        for planes in dict.fromkeys((-(-q // steps), q // steps)):
            ways = max(1, SUMS.get(isa.name, PORTABLE_SUMS) // (planes * m))
            out.append(Loop(m, 2 * planes, ways))
    return out


@templates.cached
def source(
    isa: Isa,
    *,
    q: int,
    groups_in_unit: int,
    alpha: str,
    offset: str | None,
    uniform: bool = False,
    table_bits: int | None = None,
) -> str:
    """C source of the product.

    Args:
        isa: the instructions to write it in.
        q: planes, 1-8.
        groups_in_unit: 1, 2 or 4; more than 1: a unit is one word, and tables are of floats.
        alpha: f16 or f32, what scales are stored in; u8: codes of second order.
        offset: f16, f32, u8 or None; of uniform codes i16 and u8: zero points.
        uniform: whether the unit holds one scale of uniform codes in the place of alphas.
        table_bits: bits of an integer entry: 24, as exact as float32, or 18, for AVX2; 16, for AVX-512. None: floats.
    """
    of_tables: dict[str, object] = {"simd": isa.name, "batches": [1]}
    if table_bits is None:
        lut_bits = LUT_BITS.get(isa.name, PORTABLE_LUT_BITS)
        template, lane, tile_from = "bcq/gemv.c", 4, TILE_FROM
        of_tables |= {
            "simd": isa.name if isa.name in LUT_BITS else "portable",
            "lut_bits": lut_bits,
            "cuts": cuts(lut_bits, groups_in_unit),
            "weigh": WEIGH.get(isa.name, "last"),
            "loops": loops(isa, q),
            "batches": list(PLANES.get(isa.name, PORTABLE_PLANES)),
        }
    elif table_bits == 16:
        template, lane, tile_from = "bcq/halves.c", 2, INTEGER_TILE_FROM
        together = [loop.vectors // 2 for loop in loops(isa, q) if loop.m == 1]
        of_tables |= {"together": together, "sums": 2 if q < 3 else 1}
    elif uniform and table_bits == 24:
        template, lane, tile_from = "bcq/digits.c", 1, {isa.name: PAIRS_TILE_FROM[min(q, 3)]}
        of_tables |= {"digit_bits": 8, "pairs": q // 2 * 2}
    else:
        template, lane, tile_from = "bcq/bytes.c", 1, {isa.name: BYTES_TILE_FROM[min(q, 5)]}
        of_tables |= {"digit_bits": 6, "digits": table_bits // 6}
    sizes = {"f16": 2, "i16": 2, "f32": 4, "u8": 1, None: 0}
    bytes_of_scales, offset_bytes = scale_bytes(
        groups_in_unit, 1 if uniform else q, sizes[alpha], sizes[offset]
    )
    return templates.render(
        template,
        q=q,
        groups_in_unit=groups_in_unit,
        alpha=alpha,
        offset=offset,
        uniform=uniform,
        lane_bytes=lane,
        alpha_size=sizes[alpha],
        offset_size=sizes[offset],
        grid_floats=2 * ROWS * (1 if uniform else q + (offset is not None)) * (alpha == "u8"),
        scale_bytes=bytes_of_scales,
        offset_bytes=offset_bytes,
        **of_tables,
        **tiles(isa, tile_from),
    )


def lane_bytes(isa: Isa, group_size: int, in_features: int, tables: str = EXACT) -> int:
    """The layout (bcq_gemv.py) of the fastest kernel; a word that holds several groups has tables of floats.

    Raises:
        LutlabError: there are no such tables for this instruction set.
    """
    if tables not in (EXACT, INT16):
        raise LutlabError(f"tables={tables}: no such tables; {nearest(tables, (EXACT, INT16))}")
    if tables == INT16 and (isa.name, tables) not in INTEGERS:
        raise LutlabError(
            f"tables={tables} exist for AVX-512 and AVX2, and kernels are built for {isa.name}: take tables={EXACT}"
        )
    if row_blocks.geometry(in_features, group_size, WORD).groups_in_unit > 1:
        return FLOATS[0]
    return INTEGERS.get((isa.name, tables), FLOATS)[0]


def kind(
    isa: Isa, tables: str, lane_bytes_: int, group_size: int, in_features: int
) -> tuple[int, int | None, str]:
    """The entry of INTEGERS, or FLOATS, of a layout.

    Raises:
        LutlabError: it is packed for other tables or instructions.
    """
    for entry in (INTEGERS.get((isa.name, tables), FLOATS), FLOATS):
        if entry[0] == lane_bytes_:
            return entry
    raise LutlabError(
        f"planes packed with lane_bytes={lane_bytes_} have no kernel for {isa.name} with tables={tables}: "
        f"pack with lane_bytes={lane_bytes(isa, group_size, in_features, tables)}"
    )
