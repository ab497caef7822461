"""QIGen's layout: GPTQ-packed words along K, stored block by block in Z-order (QIGen section 3, "Mini-GEMV").

    y[m, n] = sum_k x[m, k] s[j, n] (codes[n, k] - z[j, n]),  j = k // g

A unit is the shortest run of values that fills whole words: 8 values of 4 bits and 16 of 2 bits are one word, 32 of 3
bits are three. Value i of a unit takes bits i*q .. i*q + q-1, lowest first. q = 3: values 10 and 21 lie across words:

    word 0    bit  31 30 | 29 28 27 | ... | 2 1 0      word 1    bit  31 | 30 29 28 | ... | 3 2 1 |  0
         value      10   |    9     | ... |   0              value    21 |    20    | ... |  11   |  10

Words are cut into blocks of m_b input channels by t_b outputs, a block into strips of 8 t_u outputs, the columns of a
micro kernel. Inside a strip the words follow each other as the kernel reads them: by unit, by word of the unit, by
output. Blocks follow the Z-curve, panel by panel of `panel` blocks side by side, so that a thread that takes whole
panels reads one stream. N = 4 blocks, K = 4 blocks, panel = 2; the number is the place of a block in memory:

              n ->  0   1 |  2   3
        k  0        0   1 |  8   9
        |  1        2   3 | 10  11
        v  2        4   5 | 12  13
           3        6   7 | 14  15

    words [K' N' q / 32] int32;  scale [G, N'] float32;  zero [G, N'] int16
    K' = K up to a whole unit, N' = N up to a whole strip; padding has code 0 and scale 0.

The paper counts b N M + 32 M + b M bits a layer: the zero points here take 16 bits, since a quantizer's may lie outside
of 0 .. 2^q - 1.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from lutlab.base.errors import LutlabError
from lutlab.base.groups import group_length
from lutlab.base.lazy import torch
from lutlab.base.tensors import UniformTensor
from lutlab.formats.code_words import pack_words, unpack_words
from lutlab.formats.uniform import PackedUniform

# Outputs in a vector register of AVX2, 32 bits each; portable code keeps the same layout.
LANES = 8
# bits -> values of a unit
UNIT = {2: 16, 3: 32, 4: 8}


@dataclass(frozen=True)
class Blocks:
    """Blocks of a layer, and the order in which they are read.

    m_b, t_b: input channels and outputs of a block; t_u: registers of LANES outputs of a strip; panel: blocks side by
    side that a thread takes together; m_u: input channels a micro kernel unpacks at a time, which moves no word.
    """

    m_b: int
    t_b: int
    m_u: int
    t_u: int
    panel: int = 1


@dataclass(frozen=True)
class PackedQIGen:
    """words [K' N' q / 32] int32, scale [G, N'] float32, zero [G, N'] int16; shape (N, K). The module draws them.

    order: [K] int32, column j of the words holds input channel order[j]; None: channel j.
    """

    words: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor
    shape: tuple[int, int]
    bits: int
    group_size: int
    blocks: Blocks
    order: torch.Tensor | None = None

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32: scale * (code - zero_point)."""
        return PackedUniform.pack(unpack(self)).dequantize()

    @property
    def bits_stored(self) -> int:
        """Bits of every buffer: words with their padding, scale, zero, order."""
        buffers = (self.words, self.scale, self.zero, self.order)
        return sum(b.numel() * b.element_size() * 8 for b in buffers if b is not None)


def check_groups(bits: int, group_size: int, in_features: int) -> None:
    """A group is whole units, or a unit is whole groups.

    Raises:
        LutlabError: otherwise, or QIGen has no kernel for `bits`.
    """
    if bits not in UNIT:
        raise LutlabError(f"q={bits}: QIGen's layout has 2, 3 and 4 bits; other widths run as bcq")
    length, unit = group_length(group_size, in_features), UNIT[bits]
    if length < in_features and length % unit and unit % length:
        raise LutlabError(
            f"g={group_size} with q={bits}: QIGen unpacks {unit} weights at a time, so a group is a multiple or a "
            f"divisor of {unit}, or all of K (g=-1)"
        )


def step(bits: int, group_size: int, in_features: int) -> int:
    """Inputs of which m_b is a multiple: a unit, and a group where there are several."""
    length = group_length(group_size, in_features)
    return max(UNIT[bits], length) if length < in_features else UNIT[bits]


def padded(shape: tuple[int, int], bits: int, t_u: int) -> tuple[int, int]:
    """(N', K') of the layout of a layer [N, K]."""
    strip, unit = LANES * t_u, UNIT[bits]
    return -(-shape[0] // strip) * strip, -(-shape[1] // unit) * unit


@functools.lru_cache(maxsize=256)
def schedule(
    size: tuple[int, int], bits: int, blocks: Blocks
) -> tuple[tuple[tuple[int, int, int], ...], tuple[int, ...]]:
    """Blocks in the order of memory, and where panels begin in it.

    Args:
        size: (N', K').
        bits: bits of a value.
        blocks: sizes of the layer's blocks; the last block of a row or column of blocks may be smaller.

    Returns:
        (first input channel, first output, first word) of each block; index of each panel's first block, and the
        number of blocks.
    """
    n_size, k_size = size
    columns, rows = -(-n_size // blocks.t_b), -(-k_size // blocks.m_b)
    order, panels, word = [], [0], 0
    for first in range(0, columns, blocks.panel):
        width = min(blocks.panel, columns - first)
        cells = [(row, column) for row in range(rows) for column in range(width)]
        for row, column in sorted(cells, key=_morton):
            k, n = row * blocks.m_b, (first + column) * blocks.t_b
            order.append((k, n, word))
            height, breadth = min(blocks.m_b, k_size - k), min(blocks.t_b, n_size - n)
            word += height * bits // 32 * breadth
        panels.append(len(order))
    return tuple(order), tuple(panels)


def _morton(cell: tuple[int, int]) -> int:
    """Place on the Z-curve: the bits of row and column, interleaved."""
    row, column = cell
    return sum(
        ((row >> i & 1) << (2 * i + 1)) | ((column >> i & 1) << (2 * i))
        for i in range(max(row, column).bit_length())
    )


def pack(tensor: UniformTensor, blocks: Blocks) -> PackedQIGen:
    """Codes [N, K], scale and zero_point [N, G] into blocks.

    Raises:
        LutlabError: bits or group size that the layout lacks (`check_groups`), blocks that cut units, groups or
            strips, or codes with a float offset.
    """
    if tensor.offset is not None or tensor.zero_point is None:
        raise LutlabError(
            "QIGen's layout has integer zero points, and these codes have a float offset a group: quantize by "
            "method=rtn or method=gptq"
        )
    rows, in_features = tensor.codes.shape
    q, g = tensor.bits, tensor.group_size
    check_groups(q, g, in_features)
    _check_blocks(blocks, q, g, in_features)
    size = padded((rows, in_features), q, blocks.t_u)
    pad = (0, size[1] - in_features, 0, size[0] - rows)
    words = pack_words(torch.nn.functional.pad(tensor.codes, pad), q)  # [N', K' q / 32]
    strips = words.view(-1, blocks.t_u * LANES, words.shape[1]).transpose(1, 2).contiguous()
    per_group = (0, size[0] - rows)
    return PackedQIGen(
        words=torch.cat([strips[at].reshape(-1) for at in _cuts(size, q, blocks)]),
        scale=torch.nn.functional.pad(tensor.scale.float().t(), per_group).contiguous(),
        zero=torch.nn.functional.pad(tensor.zero_point.t(), per_group).contiguous(),
        shape=(rows, in_features),
        bits=q,
        group_size=g,
        blocks=blocks,
        order=tensor.order,
    )


def unpack(packed: PackedQIGen) -> UniformTensor:
    """The inverse of pack, bit for bit; scales are float32."""
    rows, in_features = packed.shape
    q, blocks = packed.bits, packed.blocks
    size = padded(packed.shape, q, blocks.t_u)
    width = LANES * blocks.t_u
    strips = packed.words.new_empty(size[0] // width, size[1] * q // 32, width)
    word = 0
    for at in _cuts(size, q, blocks):
        block = strips[at]
        block.copy_(packed.words[word : word + block.numel()].view_as(block))
        word += block.numel()
    words = strips.transpose(1, 2).reshape(size[0], -1)
    return UniformTensor(
        codes=unpack_words(words, q, size[1])[:rows, :in_features].contiguous(),
        scale=packed.scale[:, :rows].t().contiguous(),
        zero_point=packed.zero[:, :rows].t().contiguous(),
        bits=q,
        group_size=packed.group_size,
        order=packed.order,
    )


def _check_blocks(blocks: Blocks, q: int, g: int, in_features: int) -> None:
    rows, strip = step(q, g, in_features), LANES * blocks.t_u
    if min(dataclasses.astuple(blocks)) < 1 or (
        blocks.m_b % rows or blocks.t_b % strip or UNIT[q] % blocks.m_u
    ):
        raise LutlabError(
            f"{blocks} do not fit q={q} g={g}: m_b must be a multiple of {rows} (units and groups), t_b one of "
            f"{strip} (8 t_u), m_u a divisor of {UNIT[q]}, and all at least 1"
        )


def _cuts(size: tuple[int, int], q: int, blocks: Blocks) -> list[tuple[slice, slice]]:
    """Place of each block in strips [N' / (8 t_u), K' q / 32, 8 t_u], in the order of memory."""
    height, breadth = blocks.m_b * q // 32, blocks.t_b // (LANES * blocks.t_u)
    cuts = []
    for k, n, _ in schedule(size, q, blocks)[0]:
        first, strip = k * q // 32, n // (LANES * blocks.t_u)
        cuts.append((slice(strip, strip + breadth), slice(first, first + height)))
    return cuts
