"""Uniform codes in tiles of 16 rows x 64 columns, where each lane of a warp finds its operands of tensor cores.

    W[n, k] = s[group of k, n] * (code[n, k] - zero[group of k, n])                             LUT-GEMM Eq. 5

Lane l has q words of a tile: 16 pairs of codes, pair 4 i + r being operand register r of the i-th m16n8k16 product.

    pair 4 i + r, half h, lane l  =  row  l / 4 + 8 (r % 2),  column  16 i + 4 (l % 4) + 2 (r / 2) + h

The bits of a code stand in up to three parts (q = 3: two bits and one), each in words of its own, and in both halves of
a word alike: pair p's part is rotated right by `turn` and then stands at bit `base` + (first bit of the part) of either
half. Pairs of a set share their turns and differ by base, so that a set costs one rotation a part and each pair two
masks. `places` gives word and bit of every bit; no bit is left over.

A chunk is the tiles of so many units of 64 columns that a lane has whole uint4s of words:

    words [T, C, V, 32, 4] int32     T = ceil(N / 16) tiles of rows, C chunks, V uint4 a lane
    scales [G, T, 8, 4]              s of rows r and r + 8, zero of both; float16 where that is exact, else float32
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lutlab.formats.code_words import unpack_words
from lutlab.formats.uniform import PackedUniform
from lutlab.groups import group_count
from lutlab.tensors import UniformTensor

if TYPE_CHECKING:
    import torch

TILE_ROWS = 16
UNIT = 64
LANES = 32
PAIRS = 16  # of a lane in a unit
# Units of a chunk by bits: 4 to 28 words a lane.
UNITS = {1: 4, 2: 8, 3: 4, 4: 4, 5: 4, 6: 2, 7: 4, 8: 2}
# Weights packed at a time: bounds the temporaries (some 8 q bytes a weight) at some 200 MB.
CHUNK_WEIGHTS = 2**22
EXACT_IN_HALF = 2048  # integers up to here


@dataclass(frozen=True)
class PackedTileCodes:
    """words [T, C, V, 32, 4] int32, scales [G, T, 8, 4]; shape (N, K). The module draws them.

    order: [K] int32, column j of the codes holds input channel order[j]; None: channel j.
    """

    words: torch.Tensor
    scales: torch.Tensor
    shape: tuple[int, int]
    bits: int
    group_size: int
    order: torch.Tensor | None = None

    uniform = True
    offset = None

    @property
    def alpha(self) -> torch.Tensor:
        """The scales, whose dtype a case of the kernel asks for."""
        return self.scales

    @property
    def buffers(self) -> dict[str, torch.Tensor | None]:
        """Buffers that a kernel reads, by the names that plans use."""
        return {"words": self.words, "scales": self.scales}

    @property
    def bits_stored(self) -> int:
        """Bits of every buffer: codes and scales with their padding, order."""
        buffers = (*self.buffers.values(), self.order)
        return sum(b.numel() * b.element_size() * 8 for b in buffers if b is not None)

    @property
    def bits_per_weight(self) -> float:
        """bits_stored / (N * K)."""
        return self.bits_stored / (self.shape[0] * self.shape[1])

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32, as the stored form does it."""
        return unpack(self).dequantize()

    def to(self, device: torch.device | str) -> PackedTileCodes:
        """The same on a device."""
        order = None if self.order is None else self.order.to(device)
        return replace(
            self, words=self.words.to(device), scales=self.scales.to(device), order=order
        )


def parts(q: int) -> tuple[tuple[int, int], ...]:
    """(bits, first bit) of the parts of a code; the first part has the most.

    >>> parts(7)
    ((4, 0), (2, 4), (1, 6))
    """
    found, first = [], 0
    for width in (8, 4, 2, 1):
        if q - first >= width:
            found.append((width, first))
            first += width
    return tuple(found)


def bases(q: int) -> int:
    """Number of pairs in a set: base + q is at most the 10 bits of a half's mantissa."""
    return 1 if q == 7 else 8 // parts(q)[0][0]


@functools.cache
def places(q: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """[pair][bit of the code] -> (word of the lane, bit of the word's lower half); the upper half's is 16 higher.

    A bit beyond the lower half's 16 is the upper half's, and the other way round: rotations are of the whole word.
    """
    step, count = parts(q)[0][0], bases(q)
    found = []
    for pair in range(PAIRS):
        of_pair, first_word = [], 0
        for width, first in parts(q):
            turns = step // width * (16 // (step * count))  # of a word
            word, i = divmod(pair // count, turns)
            turn = i % (step // width) * width + i // (step // width) * step * count
            at = first + pair % count * step + turn
            of_pair += [(first_word + word, at + j) for j in range(width)]
            first_word += width
        found.append(tuple(of_pair))
    return tuple(found)


@functools.cache
def _bits(q: int) -> torch.Tensor:
    """[16 rows, 64 columns, q] -> index of the bit in a tile's [lane, word, 32]."""
    import torch

    at = torch.empty(TILE_ROWS, UNIT, q, dtype=torch.int64)
    for lane in range(LANES):
        for pair, of_pair in enumerate(places(q)):
            row = lane // 4 + 8 * (pair % 2)
            column = 16 * (pair // 4) + 4 * (lane % 4) + 2 * (pair % 4 // 2)
            for half in range(2):
                for j, (word, bit) in enumerate(of_pair):
                    at[row, column + half, j] = (lane * q + word) * 32 + (bit + 16 * half) % 32
    return at.view(-1)


def pack(packed: PackedUniform) -> PackedTileCodes:
    """From the stored form."""
    import torch

    q, (rows, columns), device = packed.bits, packed.shape, packed.qweight.device
    chunk = UNITS[q] * UNIT
    tiles, chunks = -(-rows // TILE_ROWS), -(-columns // chunk)
    to = _bits(q).to(device)
    source = torch.empty_like(to)
    source[to] = torch.arange(len(to), device=device)
    weight, place = source // q, (source % q).to(torch.uint8)
    shift = torch.arange(32, dtype=torch.int32, device=device)
    shape = (tiles, chunks * UNITS[q], LANES, q)
    words = torch.empty(shape, dtype=torch.int32, device=device)
    step = max(1, CHUNK_WEIGHTS // (TILE_ROWS * chunks * chunk))
    for first in range(0, tiles, step):
        at = slice(first * TILE_ROWS, (first + step) * TILE_ROWS)
        codes = unpack_words(packed.qweight[at], q, columns)
        codes = torch.nn.functional.pad(
            codes, (0, chunks * chunk - columns, 0, -len(codes) % TILE_ROWS)
        )
        codes = codes.view(-1, TILE_ROWS, shape[1], UNIT).transpose(1, 2)
        found = codes.reshape(-1, shape[1], TILE_ROWS * UNIT)[..., weight] >> place & 1
        found = found.view(-1, *shape[1:], 32).int() << shift
        words[first : first + step] = found.sum(dim=-1, dtype=torch.int32)
    return PackedTileCodes(
        words=_vectors(words, q),
        scales=_side_by_side(packed, tiles),
        shape=packed.shape,
        bits=q,
        group_size=packed.group_size,
        order=packed.order,
    )


def _vectors(words: torch.Tensor, q: int) -> torch.Tensor:
    """[T, units, 32, q] -> [T, C, V, 32, 4]."""
    tiles, units, lanes, _ = words.shape
    chunks = units // UNITS[q]
    words = words.view(tiles, chunks, UNITS[q], lanes, q).transpose(2, 3)
    words = words.reshape(tiles, chunks, lanes, -1, 4)
    return words.transpose(2, 3).contiguous()


def _side_by_side(packed: PackedUniform, tiles: int) -> torch.Tensor:
    """[G, T, 8, 4]: scale of rows r and r + 8 of a tile, zero point of both."""
    import torch

    (rows, groups), zero = packed.scale.shape, packed.zero_point
    exact = packed.scale.dtype == torch.float16 and bool((zero.abs() <= EXACT_IN_HALF).all())
    out = packed.scale.new_zeros(
        2, tiles * TILE_ROWS, groups, dtype=torch.float16 if exact else torch.float32
    )
    out[0, :rows], out[1, :rows] = packed.scale, zero
    out = out.view(2, tiles, 2, 8, groups)
    return out.permute(4, 1, 3, 0, 2).reshape(groups, tiles, 8, 4).contiguous()


def unpack(packed: PackedTileCodes) -> PackedUniform:
    """The inverse of pack, bit for bit where its scales were not widened for the zero points."""
    import torch

    q, (rows, columns) = packed.bits, packed.shape
    tiles, chunks = packed.words.shape[:2]
    words = packed.words.transpose(2, 3).reshape(tiles, chunks, LANES, UNITS[q], q)
    words = words.transpose(2, 3).reshape(tiles, -1, LANES * q)
    at = _bits(q).to(words.device)
    bits = words[..., at // 32] >> (at % 32).int() & 1
    place = torch.arange(q, device=words.device)
    codes = (bits.view(*words.shape[:2], TILE_ROWS, UNIT, q) << place).sum(-1).to(torch.uint8)
    codes = codes.transpose(1, 2).reshape(tiles * TILE_ROWS, -1)[:rows, :columns].contiguous()
    groups = group_count(packed.group_size, columns)
    sides = packed.scales.view(groups, tiles, 8, 2, 2).permute(3, 1, 4, 2, 0)
    scale, zero = sides.reshape(2, -1, groups)[:, :rows].contiguous()
    uniform = UniformTensor(codes, scale, zero.to(torch.int16), q, packed.group_size, packed.order)
    return PackedUniform.pack(uniform)
