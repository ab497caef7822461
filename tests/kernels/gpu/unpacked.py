"""The inverses of layouts of uniform codes that no kernel undoes: uniform_mma.pack and optq.pack."""

from __future__ import annotations

import torch

from lutlab.base.groups import group_count
from lutlab.base.tensors import UniformTensor
from lutlab.formats.code_words import unpack_words
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.gpu.lut_gemv.uniform_mma import LANES, TILE_ROWS, UNIT, UNITS, _bits
from lutlab.kernels.gpu.lut_gemv.variant import Weight


def of_uniform_mma(weight: Weight) -> PackedUniform:
    """Bit for bit where its scales were not widened for the zero points."""
    q, (rows, columns), held = weight.bits, weight.shape, weight.buffers["words"]
    tiles, chunks = held.shape[:2]
    words = held.transpose(2, 3).reshape(tiles, chunks, LANES, UNITS[q], q)
    words = words.transpose(2, 3).reshape(tiles, -1, LANES * q)
    at = _bits(q).to(words.device)
    bits = words[..., at // 32] >> (at % 32).int() & 1
    place = torch.arange(q, device=words.device)
    codes = (bits.view(*words.shape[:2], TILE_ROWS, UNIT, q) << place).sum(-1).to(torch.uint8)
    codes = codes.transpose(1, 2).reshape(tiles * TILE_ROWS, -1)[:rows, :columns].contiguous()
    groups = group_count(weight.group_size, columns)
    sides = weight.buffers["scales"].view(groups, tiles, 8, 2, 2).permute(3, 1, 4, 2, 0)
    scale, zero = sides.reshape(2, -1, groups)[:, :rows].contiguous()
    uniform = UniformTensor(codes, scale, zero.to(torch.int16), q, weight.group_size, weight.order)
    return PackedUniform.pack(uniform)


def of_optq(weight: Weight) -> PackedUniform:
    """Bit for bit where its scales were not widened for the zero points."""
    rows, columns = weight.shape
    words = weight.buffers["words"].permute(2, 0, 1)[:rows].reshape(rows, -1).contiguous()
    codes = unpack_words(words, weight.bits, columns)
    scale, zero = (weight.buffers["scales"][:, i, :rows].t().contiguous() for i in range(2))
    zero, q, g = zero.to(torch.int16), weight.bits, weight.group_size
    return PackedUniform.pack(UniformTensor(codes, scale, zero, q, g, weight.order))
