"""Other projects' layouts written bit by bit with Python's integers, by their published description alone.

codes [N, K] and zeros [N, G] are lists of lists, scales [N, G] a tensor, group [K] the group of each input channel.
"""

from __future__ import annotations

import torch

BPDQ = {"quant_method": "gptq", "checkpoint_format": "bpdq", "bits": 8}  # q is not `bits`
ANYBCQ = {"quant_method": "anybcq", "seed_precision": 2, "parent_precision": 2}
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


def planes(codes, count: int) -> torch.Tensor:
    """[K / 32, count, N] int32: bit b of each code in plane b, a bit a channel, lowest first."""
    by_plane = [[words([code >> b & 1 for code in row], 1) for row in codes] for b in range(count)]
    return torch.tensor(by_plane, dtype=torch.int32).permute(2, 0, 1).contiguous()


def bpdq(codes, alpha, bias) -> dict[str, torch.Tensor]:
    """B, c: alpha [q, N, G] of bits 0 and 1 and bias [N, G] are tensors of one dtype."""
    q, rows, groups = alpha.shape
    c = torch.empty(groups, q + 1, rows, dtype=alpha.dtype)
    for j in range(groups):
        for n in range(rows):
            for b in range(q):
                c[j, b, n] = alpha[b, n, j]
            c[j, q, n] = bias[n, j]
    return {"B": planes(codes, q), "c": c}


def anybcq(codes, alphas, betas, count: int) -> dict[str, torch.Tensor]:
    """qweight of count planes, alpha_<q>, beta_<q>: q -> alpha [q, N, G] of bits -1 and +1, and beta [N, G]."""
    tensors = {"qweight": planes(codes, count)}
    for q, alpha in alphas.items():
        tensors[f"alpha_{q}"] = alpha.permute(2, 0, 1).contiguous()
        tensors[f"beta_{q}"] = betas[q].T.contiguous()
    rows, groups = betas[count].shape
    tensors["q_bias"] = torch.full((groups, rows), torch.nan, dtype=betas[count].dtype)
    return tensors


def binary(layout: str, tensor) -> dict[str, torch.Tensor]:
    """A BCQTensor of 3 planes and an offset as bpdq (c in float32) or anybcq (beside another precision of 2 planes)."""
    codes, alpha, z = tensor.codes.tolist(), tensor.alpha, tensor.offset
    if layout == "bpdq":
        return bpdq(codes, 2 * alpha.float(), z.float() - alpha.float().sum(0))
    return anybcq(codes, {2: alpha[:2] / 4, 3: alpha}, {2: z / 4, 3: z}, 3)
