"""Quantized weights between quantizer and format, before they are packed.

Axes: M tokens, N out_features, K in_features, G = ceil(K / group_size) groups, q bits. Nothing here imports torch when
run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class CalibStats:
    """Calibration statistics of one linear layer's inputs X [M, K].

    hessian: [K, K] float32, X^T X / M: (w - w_hat) hessian (w - w_hat)^T is the mean squared error of an output.
    mean_abs: [K] float32, the mean of |X|; tokens: M.
    """

    hessian: torch.Tensor
    mean_abs: torch.Tensor
    tokens: int


@dataclass(frozen=True)
class DenseTensor:
    """A weight kept as it is. weight: [N, K] float16 or float32."""

    weight: torch.Tensor


@dataclass(frozen=True)
class UniformTensor:
    """W ~ scale * (codes - zero_point), LUT-GEMM Eq. 3 with z_hat = -scale * zero_point.

    codes: [N, K] uint8 in 0..2^bits-1; scale: [N, G] float16 or float32; zero_point: [N, G] int16.
    group_size: weights along K that share one scale; -1 = all of K; the last group may be shorter.
    order: [K] int32, column j of codes holds input channel order[j], and groups are of columns; None: channel j.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor
    bits: int
    group_size: int
    order: torch.Tensor | None = None


@dataclass(frozen=True)
class BCQTensor:
    """W ~ sum_b alpha_b B_b + offset, B_b in {-1, +1}, LUT-GEMM Eq. 2.

    codes: [N, K] uint8, bit b is 1 where B_b = +1; alpha: [q, N, G] float16 or float32; offset: [N, G] or None.
    order: as in UniformTensor.
    """

    codes: torch.Tensor
    alpha: torch.Tensor
    offset: torch.Tensor | None
    bits: int
    group_size: int
    order: torch.Tensor | None = None


QuantizedTensor = DenseTensor | UniformTensor | BCQTensor
