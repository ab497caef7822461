"""The product by lookup tables in NumPy, in float64: what every variant computes, from the words of paper.pack.

y[m, n] = sum_g ( sum_b alpha[g, b, n] sum_j lut_j[index of plane b] + z[g, n] sum_k x[m, k] )       LUT-GEMM Eq. 2
lut_j[i] = sum_t ( +x or -x )[j mu + t],  + where bit t of i is 1                              section 3.1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lutlab.kernels.gpu.lut_gemv.variant import Weight


def gemv(packed: Weight, x: np.ndarray, mu: int = 8) -> np.ndarray:
    """Multiply x [M, K] -> y [M, N] float64, with tables of 2^mu entries."""
    rows, columns = packed.shape
    x = np.asarray(x, np.float64)
    if packed.order is not None:
        x = x[:, packed.order.numpy()]
    bits = plane_bits(packed.buffers["planes"].numpy())
    alpha = packed.alpha.numpy().astype(np.float64)
    y = np.zeros((len(x), packed.buffers["planes"].shape[2]))
    length = -(-columns // len(alpha)) if packed.group_size == -1 else packed.group_size
    for g, scales in enumerate(alpha):
        columns_of_group = slice(g * length, min((g + 1) * length, columns))
        part = x[:, columns_of_group]
        lut = tables(part, mu)
        for b, scale in enumerate(scales):
            y += scale * look_up(lut, bits[b, :, columns_of_group])
        if packed.offset is not None:
            y += packed.offset[g].numpy().astype(np.float64) * part.sum(axis=1, keepdims=True)
    return y[:, :rows]


def plane_bits(planes: np.ndarray) -> np.ndarray:
    """[W, q, S] words -> [q, S, 32 W] of 0 and 1."""
    bits = planes[..., None] >> np.arange(32) & 1
    return bits.transpose(1, 2, 0, 3).reshape(*planes.shape[1:], -1)


def tables(x: np.ndarray, mu: int) -> np.ndarray:
    """[M, k] -> [M, ceil(k / mu), 2^mu]; columns that are not there count as zeros."""
    index = np.arange(2**mu)
    signs = 2.0 * (index[:, None] >> np.arange(mu) & 1) - 1
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % mu)))
    return padded.reshape(len(x), -1, mu) @ signs.T


def look_up(lut: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Tables [M, J, 2^mu] and bits [S, k] of a plane -> the sum of their lookups [M, S]."""
    _, count, entries = lut.shape
    mu = entries.bit_length() - 1
    padded = np.pad(bits, ((0, 0), (0, -bits.shape[1] % mu)))
    index = (padded.reshape(len(bits), count, mu) << np.arange(mu)).sum(axis=2)
    return lut[:, np.arange(count), index].sum(axis=2)
