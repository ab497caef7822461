"""y[M, N] = x[M, K] W[N, K]^T on the CPU, W uniform codes, converted and multiplied.

    y[m, n] = sum_groups scale ( sum_k codes[n, k] x[m, k]  -  zero_point sum_k x[m, k] )             QIGen Eq. 2
    y[m, n] = sum_groups scale sum_k codes[n, k] x[m, k]  +  offset sum_k x[m, k]                     of float offsets

Codes become floats and meet float32 activations; codes of up to 4 bits on AVX2, for up to 3 rows of x, meet
activations as integers of 24 bits with one scale for the columns of a unit, whose sums are exact: both are in error by
what float32 rounds at the size of the largest activations. A row of W is summed by one thread in a fixed order, so that
y does not depend on the number of threads; it does, in its last bits, on the number of rows of x. Codes of 2 and 3 bits
are faster as planes: bcq_gemv.

The layout: blocks of 32 rows, one stream (rows/row_blocks.py draws panels and blocks).

    unit = [scale: 32 rows] [zero_point: 32 rows int16, or offset: 32 rows] [word 0: 32 rows] [word 1: 32 rows] ...

Of second order (formats/uniform_second_order.py) a scale is a byte, its code, a zero point in 0 .. 2^q-1 another, and
the grids are behind all units, as in bcq_gemv.

Codes of up to 4 bits take fields of 4, wider ones fields of 8; column j of a word is in field j, the lowest first:

    4 bits: 8 columns a word      bit  31 ... 28 | 27 ... 24 | ... |  7 ... 4  |  3 ... 0
                                  column    7    |     6     | ... |     1     |     0

A code costs and, convert, FMA whatever its width, so that narrow ones are better run as planes (bcq_gemv): with
AVX-512 a plane costs a quarter of that a code, with AVX2 a third. Codes of 4 bits on AVX2 meet 3 bytes of each
activation instead, for few rows of x: vpmaddubsw multiplies and adds four times as many at once as an FMA.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from lutlab.base.errors import LutlabError
from lutlab.base.registry import register
from lutlab.base.tensors import UniformSecondOrderTensor
from lutlab.formats.bcq import shifts
from lutlab.formats.uniform import PackedUniform
from lutlab.formats.uniform_second_order import PackedUniformSecondOrder
from lutlab.kernels.codegen import templates
from lutlab.kernels.codegen.isa import Isa, detect, halved
from lutlab.kernels.cpu import VERSIONS
from lutlab.kernels.cpu.rows import row_blocks
from lutlab.kernels.cpu.rows.linear import RowsOp
from lutlab.kernels.cpu.rows.row_blocks import ROWS, Geometry
from lutlab.kernels.cpu.rows.rows_gemv import C_NAMES, EXACT, RowsWeight
from lutlab.kernels.cpu.rows.tiles import Loop, tiles

Stored = PackedUniform | PackedUniformSecondOrder
WORD = 32
# A panel is wider than that of tables: of the activations themselves, more fit the cache.
PANEL_COLUMNS = 1024
# Codes packed at a time, so that what is made of them stays in the cache.
CHUNK_CODES = 2**18
FLOATS, INTEGERS = "uniform convert", "uniform int24"

# ---- the operation ----


@register("kernel", "uniform_gemv")
class UniformGemv(RowsOp[Stored]):
    """Codes in fields of 4 or 8 bits, converted and multiplied."""

    version: ClassVar[int] = VERSIONS["uniform_gemv"]
    name: ClassVar[str] = "uniform_gemv"
    multiplies: ClassVar[str] = "formats uniform and uniform_second_order"
    formats: ClassVar[tuple[type, ...]] = (PackedUniform, PackedUniformSecondOrder)

    def empty(self, packed: Stored, tables: str) -> PackedUniformRows:
        """The layout in fields; codes of fewer bits are left to bcq_gemv."""
        if packed.bits < 4:
            raise LutlabError(f"q={packed.bits}: codes of 1 to 3 bits are faster as planes")
        return empty(packed)


# ---- the layout ----


@dataclass(frozen=True, kw_only=True)
class PackedUniformRows(RowsWeight[Stored]):
    """Uniform codes.

    scale_dtype: float16, float32, or uint8, of codes of second order; offset_dtype: float16 or float32, or int16 or
    uint8 of zero points.
    """

    scale_dtype: torch.dtype
    offset_dtype: torch.dtype = torch.int16
    panel_columns: int = PANEL_COLUMNS

    @property
    def field_bits(self) -> int:
        """Bits that a code takes."""
        return 4 if self.bits <= 4 else 8

    @property
    def word_columns(self) -> int:
        """Columns of a word of 32 bits, by the width of a field."""
        return WORD // self.field_bits

    @property
    def widths(self) -> list[int]:
        """Bytes of the parts of a unit: scales, zero points or offsets, words."""
        sizes = (self.scale_dtype.itemsize, self.offset_dtype.itemsize)
        return [*(ROWS * size for size in sizes), self.geometry.unit_words * ROWS * 4]

    def instructions(self) -> Isa:
        """AVX2 for fields of 4 bits where AVX-512 takes two turns: its integers are 1.2 times as fast as conversion."""
        return detect(slow="avx512" if self.field_bits == 4 and halved() else "")

    def source(self, isa: Isa, tables: str = EXACT) -> tuple[str, str, str]:
        """The kernel of fields; there is no other for other tables."""
        scale, offset = C_NAMES[self.scale_dtype], C_NAMES[self.offset_dtype]
        text = source(isa, bits=self.field_bits, scale=scale, offset=offset)
        variant = INTEGERS if integers(isa, self.field_bits) else FLOATS
        return text, f"uniform-{self.field_bits}", variant

    def filled(self, stored: Stored) -> PackedUniformRows:
        """Fields, scales and zero points or offsets by blocks."""
        tensor = stored.unpack()
        if isinstance(tensor, UniformSecondOrderTensor):
            scale, shift = tensor.scale_code[0], tensor.zero_point.to(self.offset_dtype)
        else:
            scale, shift = tensor.scale, shifts(tensor.zero_point, tensor.offset)
        row_blocks.check_finite(scale, shift)
        geo, rows = self.geometry, self.shape[0]
        words = torch.empty(rows, geo.units * geo.unit_words, dtype=torch.int32)
        step = max(1, CHUNK_CODES // geo.columns)
        for first in range(0, rows, step):
            words[first : first + step] = _words(tensor.codes[first : first + step], geo)
        # [N, words] -> [blocks, 32, units, unit_words] -> [blocks, units, unit_words, 32]
        words = row_blocks.lanes(words, rows).unflatten(2, (geo.units, -1)).permute(0, 2, 3, 1)
        scales = [
            row_blocks.lanes(geo.unit_scales(values)[..., 0], rows).permute(0, 2, 1)
            for values in (scale, shift)
        ]
        out = replace(self, stream=row_blocks.write(geo, rows, [*scales, words]))
        if isinstance(tensor, UniformSecondOrderTensor):
            return out.with_grids(tensor.scale_step, tensor.scale_zero, tensor.scale_bits)
        return out

    def stored(self) -> Stored:
        """The codes of the fields, packed again."""
        geo, rows = self.geometry, self.shape[0]
        scales, offsets, words = row_blocks.read(self.stream, geo, rows, self.widths)
        words = words.view(torch.int32).unflatten(2, (geo.unit_words, ROWS)).permute(0, 3, 1, 2)
        words = words.flatten(0, 1).flatten(1)[:rows]
        codes = torch.empty(words.shape, dtype=torch.int32).copy_(words).view(torch.uint8)
        if self.field_bits == 4:
            codes = torch.stack((codes & 15, codes >> 4), dim=2).flatten(1)
        columns = geo.stored_columns()
        codes = codes[:, columns >= 0]
        scale, offset = (
            geo.group_scales(values.view(dtype).permute(0, 2, 1).flatten(0, 1)[:rows].unsqueeze(2))
            for values, dtype in ((scales, self.scale_dtype), (offsets, self.offset_dtype))
        )
        return self.stored_codes(codes, scale.contiguous(), offset.contiguous())


def dtypes(packed: Stored) -> tuple[torch.dtype, torch.dtype]:
    """Of scales, and of zero points or offsets, as a unit holds them."""
    if isinstance(packed, PackedUniformSecondOrder):
        return torch.uint8, torch.uint8 if packed.packed_zeros else torch.int16
    return packed.scale.dtype, torch.int16 if packed.offset is None else packed.offset.dtype


def empty(packed: Stored) -> PackedUniformRows:
    """The layout of a weight, without its stream."""
    scale, offset = dtypes(packed)
    return PackedUniformRows(
        shape=packed.shape,
        bits=packed.bits,
        group_size=packed.group_size,
        order=packed.order,
        scale_dtype=scale,
        offset_dtype=offset,
    )


def _words(codes: torch.Tensor, geo: Geometry) -> torch.Tensor:
    """Codes [rows, K] uint8 -> words [rows, units * unit_words] int32."""
    in_features = codes.shape[1]
    if not geo.in_order:
        codes = torch.nn.functional.pad(codes, (0, 1))
        codes = codes.index_select(1, geo.stored_columns() % (in_features + 1))
    elif geo.columns > in_features:
        codes = torch.nn.functional.pad(codes, (0, geo.columns - in_features))
    codes = codes.contiguous()
    if geo.word_columns == 8:
        # Two bytes of one code each, read as int16, are code 0 + 256 code 1: shifted by 4, the byte holds both.
        pairs = codes.view(torch.int16)
        codes = (pairs | pairs >> 4).to(torch.uint8)
    return codes.view(torch.int32)


# ---- the source ----

# Vectors of 16 rows worked on together for 1, 2, ... rows of x at once, and sums under way at once.
VECTORS = {"avx512": {1: 2, 2: 2, 4: 2, 8: 2}, "avx2": {1: 2, 2: 2, 4: 1}}
PORTABLE_VECTORS = {1: 1, 4: 1}
SUMS = {"avx512": 8, "avx2": 4}
PORTABLE_SUMS = 1
# Rows of x from which on codes become floats in L1 once, instead of once for every few rows of x.
TILE_FROM = {"avx512": 9, "avx2": 12, "portable": 2}
INTEGER_TILE_FROM = {"avx2": 32}
# Eights of rows of W worked on together for 1, 2, ... rows of x at once, in integers.
EIGHTS = {"avx2": {1: 2}}
INTEGER_ROWS = 3  # of x at most; four at once cost less converted, as they share the conversion


def integers(isa: Isa, bits: int) -> bool:
    """Whether activations of few rows of x become integers."""
    return isa.name in EIGHTS and bits == 4


@templates.cached
def source(isa: Isa, *, bits: int, scale: str, offset: str = "i16") -> str:
    """C source of the product.

    bits: of a field, 4 or 8; scale, offset: f16 or f32, what they are stored in, or u8, codes of second order;
    offset=i16 or u8: there are zero points.
    """
    vectors = dict(VECTORS.get(isa.name, PORTABLE_VECTORS))
    batches, tile_from, integer_loops = sorted(vectors), TILE_FROM, []
    if integers(isa, bits):
        eights = EIGHTS[isa.name]
        vectors = {m: count for m, count in vectors.items() if m > INTEGER_ROWS}
        batches, tile_from = sorted({*vectors, *eights}), INTEGER_TILE_FROM
        integer_loops = [Loop(m, count, 3) for m, count in eights.items()]
    sizes = {"u8": 1, "f16": 2, "i16": 2, "f32": 4}
    sums = SUMS.get(isa.name, PORTABLE_SUMS)
    return templates.render(
        "uniform/gemv.c",
        simd=isa.name if isa.name in VECTORS else "portable",
        bits=bits,
        scale=scale,
        offset=offset,
        scale_size=sizes[scale],
        scale_bytes=32 * sizes[scale],
        offset_bytes=32 * sizes[offset],
        loops=[Loop(m, count, max(1, sums // (count * m))) for m, count in vectors.items()],
        integer_loops=integer_loops,
        batches=batches,
        **tiles(isa, tile_from),
    )
