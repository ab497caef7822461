"""BCQ planes as the CPU kernels read them: blocks of 32 rows, one stream (row_blocks.py draws panels and blocks).

    W[n, k] ~ sum_b alpha[b, n, group of k] * B_b[n, k] + offset[n, group of k],  B_b in {-1, +1}     LUT-GEMM Eq. 2

    unit = [alpha: groups_in_unit x q x 32 rows] [offset: groups_in_unit x 32 rows] [words]
    words = for each 32 columns, for each plane b: 32 words, one a row; bit k % 32 is 1 for +alpha, as in bcq.py

                 word 0                              word 1
    q = 2        plane 0: 32 rows  plane 1: 32 rows  plane 0: 32 rows  plane 1: 32 rows  ...

That is lane_bytes = 4. With 2 or 1 a row's word is cut: [half 0: 32 rows] [half 1: 32 rows], or [byte 0: 32 rows]
[byte 1: 32 rows] ..., rows in the order in which pairs are widened (kernels/cpu/simd/avx512_halves.h, avx2_bytes.h):

    lane_bytes = 2   row 16 h + l               is at place 2 l + h
    lane_bytes = 1   row 16 h + 8 i + 4 j + l   is at place 16 j + 8 i + 2 l + h

Uniform codes s * (codes - zero_point) have the same planes and fewer scales (Eq. 5: alpha_b = 2^(b-1) s): a unit then
starts with [scale: groups_in_unit x 32 rows] [zero_point: groups_in_unit x 32 rows int16].
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from lutlab.formats import bcq
from lutlab.formats.bcq import WORD, PackedBCQ
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.codegen.isa import Isa
from lutlab.kernels.cpu.bcq.bcq_source import integer_source, kind, source
from lutlab.kernels.cpu.rows import row_blocks
from lutlab.kernels.cpu.rows.row_blocks import ROWS
from lutlab.kernels.cpu.rows.rows_gemv import C_NAMES, EXACT, RowsWeight, Source
from lutlab.tensors import BCQTensor, UniformTensor


@dataclass(frozen=True, kw_only=True)
class PackedBCQRows(RowsWeight):
    """Planes.

    scale_dtype: of alpha, or of the scales of uniform codes. offset_dtype: of offset; int16 says that the unit holds
    uniform scales and zero points; None says that there is no offset. lane_bytes: bytes of a row's word that lie
    together, 4, 2 or 1. wide_offset: [N, G] float64, which the stream holds in float32; None where it holds all.
    """

    scale_dtype: torch.dtype
    offset_dtype: torch.dtype | None
    lane_bytes: int = 4
    wide_offset: torch.Tensor | None = None

    @property
    def uniform(self) -> bool:
        """Whether the scales are those of uniform codes."""
        return self.offset_dtype == torch.int16

    @property
    def widths(self) -> list[int]:
        """Bytes of the parts of a unit: scales, offsets, words."""
        geo = self.geometry
        scales = geo.groups_in_unit * ROWS * self.scale_dtype.itemsize
        offsets = 0 if self.offset_dtype is None else self.offset_dtype.itemsize
        return [
            scales * (1 if self.uniform else self.bits),
            geo.groups_in_unit * ROWS * offsets,
            geo.unit_words * self.bits * ROWS * 4,
        ]

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """See RowsWeight."""
        return super().buffers + (() if self.wide_offset is None else (self.wide_offset,))

    def source(self, isa: Isa, tables: str = EXACT) -> Source:
        """See RowsWeight."""
        _, table_bits, variant = kind(isa, tables, self.lane_bytes, self.group_size, self.shape[1])
        planes = {
            "q": self.bits,
            "alpha": C_NAMES[self.scale_dtype],
            "offset": None if self.offset_dtype is None else C_NAMES[self.offset_dtype],
        }
        if table_bits:
            text = integer_source(isa, **planes, table_bits=table_bits)
            return Source(text, f"bcq-q{self.bits}-int{table_bits}", variant)
        text = source(isa, **planes, groups_in_unit=self.geometry.groups_in_unit)
        return Source(text, f"bcq-q{self.bits}", variant)

    def filled(self, stored: PackedBCQ | PackedUniform) -> PackedBCQRows:
        """See RowsWeight."""
        if isinstance(stored, PackedBCQ):
            offset = stored.offset
            if offset is None or offset.dtype != torch.float64:
                return _fill(self, stored.planes, stored.alpha, offset)
            return _fill(
                replace(self, wide_offset=offset), stored.planes, stored.alpha, offset.float()
            )
        codes = stored.unpack()
        q, g, scale = self.bits, self.group_size, codes.scale
        no_alpha = scale.new_zeros(q, *scale.shape)
        planes = bcq.pack(BCQTensor(codes.codes, no_alpha, None, q, g, self.order)).planes
        return _fill(self, planes, scale.unsqueeze(0), codes.zero_point)

    def stored(self) -> PackedBCQ | PackedUniform:
        """See RowsWeight."""
        planes, scales, offset = _parts(self)
        g, order = self.group_size, self.order
        if not self.uniform:
            offset = offset if self.wide_offset is None else self.wide_offset
            return PackedBCQ(planes, scales, offset, self.shape, g, order)
        codes = bcq.unpack(PackedBCQ(planes, scales, None, self.shape, g, order)).codes
        return PackedUniform.pack(UniformTensor(codes, scales[0], offset, self.bits, g, order))


def empty(packed: PackedBCQ | PackedUniform, lane_bytes: int = 4) -> PackedBCQRows:
    """The layout of a weight, without its stream."""
    if isinstance(packed, PackedUniform):
        scale, offset = packed.scale.dtype, torch.int16
    else:
        scale, offset = packed.alpha.dtype, None if packed.offset is None else packed.offset.dtype
    return PackedBCQRows(
        shape=packed.shape,
        bits=packed.bits,
        group_size=packed.group_size,
        order=packed.order,
        scale_dtype=scale,
        offset_dtype=torch.float32 if offset == torch.float64 else offset,
        lane_bytes=lane_bytes,
    )


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
    there = row_blocks.lanes(planes.transpose(0, 1), rows).unflatten(3, (geo.units, -1))
    words_part = there.permute(0, 3, 4, 2, 1)
    if out.lane_bytes < 4:
        words_part = _cut(words_part, out.lane_bytes)
    # [q, N, units, groups_in_unit] -> [blocks, 32, q, units, groups_in_unit] -> [blocks, units, groups_in_unit, q, 32]
    wide = row_blocks.lanes(geo.unit_scales(scales).transpose(0, 1), rows)
    parts = [wide.permute(0, 3, 4, 2, 1)]
    if offset is not None:
        wide = row_blocks.lanes(geo.unit_scales(offset), rows)
        parts.append(wide.permute(0, 2, 3, 1))
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
        kept = words.dim() - 1
        return pieces.permute(*range(kept), *(kept + d for d in _STORED[2]))
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
