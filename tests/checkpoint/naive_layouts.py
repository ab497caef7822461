"""Other projects' layouts written bit by bit with Python's integers, by their published description alone.

codes [N, K] and zeros [N, G] are lists of lists, scales [N, G] a tensor, group [K] the group of each input channel.
"""

from __future__ import annotations

import torch

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # of the fields of a word at 4 bits


def words(values: list[int], q: int) -> list[int]:
    """A dense stream of bits, lowest first, in words of 32 bits as int32 has them."""
    number = sum(value << (i * q) for i, value in enumerate(values))
    count = -(-len(values) * q // 32)
    return [_signed(number >> (32 * i)) for i in range(count)]


def _signed(word: int) -> int:
    word %= 2**32
    return word - 2**32 if word >= 2**31 else word


def tens(values: list[int]) -> list[int]:
    """EfficientQAT's words of 3 bits: 10 values each."""
    some = [values[i : i + 10] for i in range(0, len(values), 10)]
    return [sum(v << (3 * i) for i, v in enumerate(one)) for one in some]


def interleaved(values: list[int]) -> list[int]:
    """AWQ's words of 4 bits."""
    eights = [values[i : i + 8] for i in range(0, len(values), 8)]
    return [
        _signed(sum(one[column] << (4 * p) for p, column in enumerate(AWQ_COLUMNS)))
        for one in eights
    ]


def zero_words(zeros: list[int], q: int, written: str) -> list[int]:
    """A row of qzeros: `v2`, `v1` (z - 1, which must not be negative), or `gptqmodel` (v1 by whole words)."""
    if written == "v2":
        return words(zeros, q)
    if written == "v1":
        return words([z - 1 for z in zeros], q)
    if q == 3:
        return words([(z - 1) % 8 for z in zeros], q)
    ones = sum(1 << at for at in range(0, 32, q))
    return [_signed(word - ones) for word in words(zeros, q)]


def gptq(codes, zeros, scales, group, q, written="v2", ten=False) -> dict[str, torch.Tensor]:
    """qweight, qzeros, scales, g_idx."""
    columns = [list(row) for row in zip(*zeros, strict=True)]
    qweight = [tens(row) if ten else words(row, q) for row in codes]
    qzeros = [tens(row) if ten else zero_words(row, q, written) for row in columns]
    return {
        "qweight": torch.tensor(qweight, dtype=torch.int32).T.contiguous(),
        "qzeros": torch.tensor(qzeros, dtype=torch.int32),
        "scales": scales.T.contiguous(),
        "g_idx": torch.tensor(group, dtype=torch.int32),
    }


def awq(codes, zeros, scales, q) -> dict[str, torch.Tensor]:
    """qweight, qzeros, scales of version gemm."""

    def packed(rows):
        made = [interleaved(row) if q == 4 else words(row, q) for row in zip(*rows, strict=True)]
        return torch.tensor(made, dtype=torch.int32)

    codes, zeros = ([list(row) for row in one] for one in (codes, zeros))
    return {"qweight": packed(codes), "qzeros": packed(zeros), "scales": scales.T.contiguous()}
