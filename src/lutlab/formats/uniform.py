"""Uniform weights as other projects store them: Eq. 5 read backwards, and integers in a dense stream of bits.

    W = s * (codes - zero_point),  s = 2 alpha_0,  zero_point = (2^q - 1) / 2 - offset / s        LUT-GEMM Eq. 5

Value i of a row takes bits i*q .. i*q + q-1 of that row's stream, lowest bit first, cut into words of 32. q = 3:

    word 0    bit  31 30 | 29 28 27 | ... |  5  4  3 |  2  1  0        word 1    bit ...  3  2  1 |  0
         value       10  |     9    |     |     1    |     0                value           11   | 10 (its high bit)

values [rows, columns] in 0 .. 2^q-1 -> words [rows, ceil(columns * q / 32)] int32; the last word is filled with zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lutlab.groups import check_bits
from lutlab.tensors import BCQTensor, UniformTensor

if TYPE_CHECKING:
    import torch

WORD = 32
# Values packed at a time: bounds the temporaries (5 q bytes a value) at some 40 MB.
CHUNK_VALUES = 2**20


def to_uniform(tensor: BCQTensor) -> UniformTensor | None:
    """The inverse of formats.bcq.from_uniform: a weight with the same values to the last bit, or None if none has.

    A scale of 0 fits any zero_point and gets 0. scale is float16 where that is exact, else float32.
    """
    import torch

    half = tensor.alpha[0].double()
    powers = 2.0 ** torch.arange(tensor.bits, dtype=torch.float64, device=half.device)
    offset = torch.zeros_like(half) if tensor.offset is None else tensor.offset.double()
    scale = 2 * half
    middle = (2**tensor.bits - 1) / 2
    zero_point = torch.where(scale == 0, 0.0, (middle - offset / scale).round())
    uniform = (
        torch.equal(tensor.alpha.double(), half * powers.view(-1, 1, 1))
        and torch.equal(scale * torch.where(scale == 0, 0.0, middle - zero_point), offset)
        and bool((zero_point.abs() < 2**15).all())
    )
    if not uniform:
        return None
    for dtype in (torch.float16, torch.float32):
        if torch.equal(scale.to(dtype).double(), scale):
            return UniformTensor(
                codes=tensor.codes,
                scale=scale.to(dtype),
                zero_point=zero_point.to(torch.int16),
                bits=tensor.bits,
                group_size=tensor.group_size,
                order=tensor.order,
            )
    return None  # 2 alpha_0 is beyond float32


def pack_words(values: torch.Tensor, q: int) -> torch.Tensor:
    """Integers [rows, columns] in 0 .. 2^q-1 -> words [rows, ceil(columns * q / 32)] int32."""
    import torch

    rows, columns = values.shape
    place = torch.arange(check_bits(q), dtype=torch.uint8, device=values.device)
    shift = torch.arange(WORD, dtype=torch.int32, device=values.device)
    words = torch.empty(rows, -(-columns * q // WORD), dtype=torch.int32, device=values.device)
    step = max(1, CHUNK_VALUES // columns)
    for first in range(0, rows, step):
        some = values[first : first + step].to(torch.uint8)
        bits = ((some.unsqueeze(2) >> place) & 1).reshape(len(some), columns * q)
        bits = torch.nn.functional.pad(bits, (0, -columns * q % WORD)).view(len(some), -1, WORD)
        words[first : first + step] = (bits.int() << shift).sum(dim=2, dtype=torch.int32)
    return words


def unpack_words(words: torch.Tensor, q: int, columns: int) -> torch.Tensor:
    """The inverse of pack_words: [rows, columns] uint8."""
    import torch

    shift = torch.arange(WORD, dtype=torch.int32, device=words.device)
    bits = ((words.unsqueeze(2) >> shift) & 1).view(len(words), -1)[:, : columns * check_bits(q)]
    place = torch.arange(q, dtype=torch.uint8, device=words.device)
    return (bits.to(torch.uint8).view(len(words), columns, q) << place).sum(2, dtype=torch.uint8)
