"""Other projects' layouts written bit by bit with Python's integers, by their published description alone.

codes [N, K] and zeros [N, G] are lists of lists, scales [N, G] a tensor, group [K] the group of each input channel.
"""

import torch

from lutlab.base.groups import group_length

BINARY = ("bpdq", "anybcq")
BPDQ = {"quant_method": "gptq", "checkpoint_format": "bpdq", "bits": 8}  # q is not `bits`
ANYBCQ = {"quant_method": "anybcq", "seed_precision": 2, "parent_precision": 2}
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # of the fields of a word at 4 bits


def words(values, q):
    """A dense stream of bits, lowest first, in words of 32 bits as int32 has them."""
    number = sum(value << (i * q) for i, value in enumerate(values))
    return [_signed(number >> (32 * i)) for i in range(-(-len(values) * q // 32))]


def _signed(word):
    word %= 2**32
    return word - 2**32 if word >= 2**31 else word


def tens(values):
    """EfficientQAT's words of 3 bits: 10 values each."""
    parts = [values[i : i + 10] for i in range(0, len(values), 10)]
    return [sum(value << (3 * i) for i, value in enumerate(part)) for part in parts]


def interleaved(values):
    """AWQ's words of 4 bits."""
    parts = [values[i : i + 8] for i in range(0, len(values), 8)]
    return [_signed(sum(part[at] << (4 * i) for i, at in enumerate(AWQ_COLUMNS))) for part in parts]


def zero_words(zeros, q, written):
    """A row of qzeros: `v2`, `v1` (z - 1, which must not be negative), or `gptqmodel` (v1 by whole words)."""
    if written == "v2":
        return words(zeros, q)
    if written == "v1":
        return words([z - 1 for z in zeros], q)
    if q == 3:
        return words([(z - 1) % 8 for z in zeros], q)
    ones = sum(1 << at for at in range(0, 32, q))
    return [_signed(word - ones) for word in words(zeros, q)]


def gptq(codes, zeros, scales, group, q, written="v2", ten=False):
    """qweight, qzeros, scales, g_idx."""
    columns = [list(row) for row in zip(*zeros, strict=True)]
    qweight = [tens(row) if ten else words(row, q) for row in codes]
    qzeros = [tens(row) if ten else zero_words(row, q, written) for row in columns]
    qweight, qzeros, g_idx = (torch.tensor(x, dtype=torch.int32) for x in (qweight, qzeros, group))
    tensors = {"qweight": qweight.T.contiguous(), "qzeros": qzeros, "g_idx": g_idx}
    return tensors | {"scales": scales.T.contiguous()}


def awq(codes, zeros, scales, q):
    """qweight, qzeros, scales of version gemm."""

    def packed(rows):
        columns = zip(*rows, strict=True)
        pack = interleaved if q == 4 else lambda column: words(column, q)
        return torch.tensor([pack(column) for column in columns], dtype=torch.int32)

    return {"qweight": packed(codes), "qzeros": packed(zeros), "scales": scales.T.contiguous()}


def planes(codes, count):
    """[K / 32, count, N] int32: bit b of each code in plane b, a bit a channel, lowest first."""
    by_plane = [[words([code >> b & 1 for code in row], 1) for row in codes] for b in range(count)]
    return torch.tensor(by_plane, dtype=torch.int32).permute(2, 0, 1).contiguous()


def bpdq(codes, alpha, bias):
    """B, c: alpha [q, N, G] of bits 0 and 1 and bias [N, G] are tensors of one dtype; c [G, q + 1, N]."""
    c = torch.cat((alpha, bias[None])).permute(2, 0, 1).contiguous()
    return {"B": planes(codes, len(alpha)), "c": c}


def anybcq(codes, alphas, betas, count):
    """qweight of count planes, alpha_<q>, beta_<q>: q -> alpha [q, N, G] of bits -1 and +1, and beta [N, G]."""
    tensors = {"qweight": planes(codes, count)}
    for q, alpha in alphas.items():
        tensors[f"alpha_{q}"] = alpha.permute(2, 0, 1).contiguous()
        tensors[f"beta_{q}"] = betas[q].T.contiguous()
    return tensors | {"q_bias": torch.full_like(betas[count].T, torch.nan).contiguous()}


def layer(layout, tensor):
    """A tensor of ours in a layout; bpdq has c in float32, anybcq another precision of 2 planes beside its 3."""
    codes = tensor.codes.tolist()
    if layout in BINARY:
        alpha, z = tensor.alpha, tensor.offset
        if layout == "bpdq":
            return bpdq(codes, 2 * alpha.float(), z.float() - alpha.float().sum(0))
        return anybcq(codes, {2: alpha[:2] / 4, 3: alpha}, {2: z / 4, 3: z}, 3)
    zeros, columns, q = tensor.zero_point.tolist(), len(codes[0]), tensor.bits
    if layout == "awq":
        return awq(codes, zeros, tensor.scale, q)
    group = [k // group_length(tensor.group_size, columns) for k in range(columns)]
    return gptq(codes, zeros, tensor.scale, group, q, ten=layout == "tens")
