"""Uniform codes as the CPU kernels read them: blocks of 32 rows, one stream (row_blocks.py draws panels and blocks).

    W[n, k] = scale[n, group of k] * (codes[n, k] - zero_point[n, group of k])                       LUT-GEMM Eq. 3

    unit = [scale: 32 rows] [zero_point: 32 rows int16] [word 0: 32 rows] [word 1: 32 rows] ...

Codes of up to 4 bits take fields of 4, wider ones fields of 8; column j of a word is in field j, the lowest first:

    4 bits: 8 columns a word      bit  31 ... 28 | 27 ... 24 | ... |  7 ... 4  |  3 ... 0
                                  column    7    |     6     | ... |     1     |     0
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.cpu.rows import row_blocks
from lutlab.kernels.cpu.rows.row_blocks import ROWS, Geometry
from lutlab.tensors import UniformTensor

if TYPE_CHECKING:
    import torch

WORD = 32
# A panel is wider than that of tables: of the activations themselves, more fit the cache.
PANEL_COLUMNS = 1024
# Codes packed at a time, so that what is made of them stays in the cache.
CHUNK_CODES = 2**18


@dataclass(frozen=True)
class PackedUniformRows:
    """stream [bytes] uint8; shape (N, K); scale_dtype: float16 or float32; order: [K] int32 or None."""

    stream: torch.Tensor
    shape: tuple[int, int]
    bits: int
    group_size: int
    scale_dtype: torch.dtype
    order: torch.Tensor | None = None
    panel_columns: int = PANEL_COLUMNS

    @property
    def field_bits(self) -> int:
        """Bits that a code takes."""
        return 4 if self.bits <= 4 else 8

    @cached_property
    def geometry(self) -> Geometry:
        """Places of the columns in the stream."""
        columns = WORD // self.field_bits
        return row_blocks.geometry(self.shape[1], self.group_size, columns, self.panel_columns)

    @cached_property
    def channels(self) -> torch.Tensor | None:
        """[columns] int32: the input channel of each stored column, -1 for padding; None: they are in order."""
        return row_blocks.channels(self.geometry, self.order)

    @property
    def widths(self) -> list[int]:
        """Bytes of the parts of a unit: scales, zero points, words."""
        return [ROWS * self.scale_dtype.itemsize, ROWS * 2, self.geometry.unit_words * ROWS * 4]

    @property
    def bits_stored(self) -> int:
        """Bits of every buffer: codes, scales, padding of rows and columns, order."""
        order = 0 if self.order is None else self.order.numel() * 32
        return self.stream.numel() * 8 + order

    @property
    def bits_per_weight(self) -> float:
        """bits_stored / (N * K)."""
        return self.bits_stored / (self.shape[0] * self.shape[1])

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32, as the plain layout has it."""
        return PackedUniform.pack(unpack(self)).dequantize()


def pack(tensor: UniformTensor, panel_columns: int = PANEL_COLUMNS) -> PackedUniformRows:
    """Codes to words of fields.

    Raises:
        LutlabError: the group size is not a multiple of 8; a scale is inf or nan.
    """
    import torch

    row_blocks.check_finite(tensor.scale)
    out = PackedUniformRows(
        stream=torch.empty(0, dtype=torch.uint8),
        shape=tuple(tensor.codes.shape),
        bits=tensor.bits,
        group_size=tensor.group_size,
        scale_dtype=tensor.scale.dtype,
        order=tensor.order,
        panel_columns=panel_columns,
    )
    geo, rows = out.geometry, out.shape[0]
    words = torch.empty(rows, geo.units * geo.unit_words, dtype=torch.int32)
    step = max(1, CHUNK_CODES // geo.columns)
    for first in range(0, rows, step):
        words[first : first + step] = _words(tensor.codes[first : first + step], geo)
    # [N, words] -> [blocks, 32, units, unit_words] -> [blocks, units, unit_words, 32]
    words = row_blocks.lanes(words, rows).unflatten(2, (geo.units, -1)).permute(0, 2, 3, 1)
    scales = [
        row_blocks.lanes(geo.unit_scales(values)[..., 0], rows).permute(0, 2, 1)
        for values in (tensor.scale, tensor.zero_point)
    ]
    return replace(out, stream=row_blocks.write(geo, rows, [*scales, words]))


def _words(codes: torch.Tensor, geo: Geometry) -> torch.Tensor:
    """Codes [rows, K] uint8 -> words [rows, units * unit_words] int32."""
    import torch

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


def unpack(packed: PackedUniformRows) -> UniformTensor:
    """The inverse of pack, bit for bit."""
    import torch

    geo, rows = packed.geometry, packed.shape[0]
    scales, zeros, words = row_blocks.read(packed.stream, geo, rows, packed.widths)
    words = words.view(torch.int32).unflatten(2, (geo.unit_words, ROWS)).permute(0, 3, 1, 2)
    words = words.flatten(0, 1).flatten(1)[:rows]
    codes = torch.empty(words.shape, dtype=torch.int32).copy_(words).view(torch.uint8)
    if packed.field_bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), dim=2).flatten(1)
    columns = geo.stored_columns()
    codes = codes[:, columns >= 0]
    scale, zero_point = (
        geo.group_scales(values.view(dtype).permute(0, 2, 1).flatten(0, 1)[:rows].unsqueeze(2))
        for values, dtype in ((scales, packed.scale_dtype), (zeros, torch.int16))
    )
    return UniformTensor(
        codes=codes,
        scale=scale.contiguous(),
        zero_point=zero_point.contiguous(),
        bits=packed.bits,
        group_size=packed.group_size,
        order=packed.order,
    )
