"""Quantized weights between quantizer and format, before they are packed.

Axes: M tokens, N out_features, K in_features, G = ceil(K / group_size) groups, q bits. Nothing here imports torch when
run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lutlab.base import second_order
from lutlab.base.lazy import torch


@dataclass(frozen=True)
class CalibStats:
    """Calibration statistics of one linear layer's inputs X [M, K].

    hessian: [K, K] float32, X^T X / M: (w - w_hat) hessian (w - w_hat)^T is the mean squared error of an output.
    mean_abs: [K] float32, the mean of |X|; tokens: M.
    weighted: [K, K] float32, X^T diag(v) X / M where tokens count by weights v [M]; None where all count as one.
    """

    hessian: torch.Tensor
    mean_abs: torch.Tensor
    tokens: int
    weighted: torch.Tensor | None = None

    @property
    def metric(self) -> torch.Tensor:
        """[K, K] float32, in which a method measures errors: `weighted`, or `hessian` where all tokens count alike."""
        return self.hessian if self.weighted is None else self.weighted


@dataclass(frozen=True)
class DenseTensor:
    """A weight kept as it is. weight: [N, K] float16 or float32."""

    weight: torch.Tensor


@dataclass(frozen=True)
class UniformTensor:
    """W ~ scale * (codes - zero_point), LUT-GEMM Eq. 3 with z_hat = -scale * zero_point; or W ~ scale * codes + offset.

    codes: [N, K] uint8 in 0..2^bits-1; scale: [N, G] float16 or float32; zero_point: [N, G] int16, or None.
    group_size: weights along K that share one scale; -1 = all of K; the last group may be shorter.
    order: [K] int32, column j of codes holds input channel order[j], and groups are of columns; None: channel j.
    offset: [N, G] float16 or float32, no multiple of the scale, as in GGUF's Q4_1; None where there is a zero_point.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor | None
    bits: int
    group_size: int
    order: torch.Tensor | None = None
    offset: torch.Tensor | None = None


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


@dataclass(frozen=True)
class SecondOrderTensor:
    """A BCQTensor whose coefficients, the alphas and behind them an offset, are of second order (second_order.py).

    codes: [N, K] uint8, as in BCQTensor; scale_code: [P, N, G] uint8 in 0..2^scale_bits-1, P = bits or bits + 1;
    scale_step: [P, N] float16 >= 0 of 4 significant bits; scale_zero: [P, N] int8 in -128..128-2^scale_bits.
    order: as in UniformTensor.
    """

    codes: torch.Tensor
    scale_code: torch.Tensor
    scale_step: torch.Tensor
    scale_zero: torch.Tensor
    bits: int
    group_size: int
    scale_bits: int
    order: torch.Tensor | None = None

    def binary(self) -> BCQTensor:
        """The same codes with the coefficients decoded, in float16."""
        q, a = self.bits, second_order.decoded(self.scale_code, self.scale_step, self.scale_zero)
        offset = a[q] if len(a) > q else None
        return BCQTensor(self.codes, a[:q], offset, q, self.group_size, self.order)


@dataclass(frozen=True)
class UniformSecondOrderTensor:
    """A UniformTensor with zero points whose scales are of second order (second_order.py), all above 0.

    codes: [N, K] uint8 in 0..2^bits-1; zero_point: [N, G] int16; scale_code: [1, N, G] uint8 in 0..2^scale_bits-1;
    scale_step: [1, N] float16 >= 0 of 4 significant bits; scale_zero: [1, N] int8 in -128..128-2^scale_bits.
    order: as in UniformTensor.
    """

    codes: torch.Tensor
    scale_code: torch.Tensor
    scale_step: torch.Tensor
    scale_zero: torch.Tensor
    zero_point: torch.Tensor
    bits: int
    group_size: int
    scale_bits: int
    order: torch.Tensor | None = None

    def uniform(self) -> UniformTensor:
        """The same codes with the scales decoded, in float16."""
        scale = second_order.decoded(self.scale_code, self.scale_step, self.scale_zero)[0]
        return UniformTensor(
            self.codes, scale, self.zero_point, self.bits, self.group_size, self.order
        )


MIXED_WIDTHS = (2, 3, 4)
SCALE_BITS = 4  # of a scale's code, of second order
# Memory-aligned blocks (formats/mixed_blocks.py): weights of a group; bits of the scale codes of a block's three groups
# of 2 bits, which share 16 bits with their zero points.
BLOCK_GROUP, BLOCK_SCALE_BITS = 16, (4, 3, 3)


def fill_blocks(widths: torch.Tensor) -> bool:
    """Whether groups [G] of these widths fill memory-aligned blocks: one of 4 bits in each, up to three of 2."""
    blocks = -(-len(widths) // (len(BLOCK_SCALE_BITS) + 1))
    return int((widths == 4).sum()) == blocks and not bool((widths == 3).any())


@dataclass(frozen=True)
class MixedTensor:
    """Column groups of different widths and sparse outliers: W ~ scale * (codes - zero_point) + outliers.

    Li et al., "Fast and Efficient 2-bit LLM Inference on GPU" (ICCAD 2024), Eq. 2-5 and sections 3.3, 4.3. Group i has
    columns i * group_size and the following, codes of widths[i] bits, and in row n

        scale[n, i] = scale_step[n // scale_group, i] * (scale_code[n, i] + scale_zero[n // scale_group, i])

    (second order), or, where row_scale is given and widths[i] = 4, row_scale[n] and row_zero[n] (`first_order`).

    codes: [N, K] uint8 in 0..2^widths[i]-1; at an outlier zero_point, so that the dense value is 0.
    widths: [G] uint8 of 2, 3, 4. zero_point: [N, G] uint8 in 0..2^widths[i]-1.
    scale_code: [N, G] uint8 in 0..15; scale_zero: [B, G] uint8 in 0..15; scale_step: [B, G] float16 >= 0;
        B = ceil(N / scale_group).
    row_scale: [N] float16, row_zero: [N] uint8 in 0..15, of all groups of 4 bits together, whose own entries in the
        four above are 0; or None.
    outlier_count: [N] int32, outliers of a row; outlier_column: [E] int32, row by row, ascending in a row;
        outlier_value: [E] float16; all three or None.
    aligned: scale codes obey the memory-aligned blocks (formats/mixed_blocks.py): a quarter of the groups has 4 bits,
        the rest 2, and of three groups of 2 bits the scale codes of the second and third are in 0..7.
    """

    codes: torch.Tensor
    widths: torch.Tensor
    zero_point: torch.Tensor
    scale_code: torch.Tensor
    scale_zero: torch.Tensor
    scale_step: torch.Tensor
    group_size: int
    scale_group: int
    row_scale: torch.Tensor | None = None
    row_zero: torch.Tensor | None = None
    outlier_count: torch.Tensor | None = None
    outlier_column: torch.Tensor | None = None
    outlier_value: torch.Tensor | None = None
    aligned: bool = False

    def first_order(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale [N, G] float32, exact, and zero point [N, G] uint8 of every group."""
        rows = len(self.codes)

        def by_row(of_rows: torch.Tensor) -> torch.Tensor:
            return of_rows.repeat_interleave(self.scale_group, dim=0)[:rows].float()

        scale = by_row(self.scale_step) * (self.scale_code.float() + by_row(self.scale_zero))
        zero = self.zero_point
        if self.row_scale is not None and self.row_zero is not None:
            wide = self.widths == 4
            scale[:, wide] = self.row_scale.float()[:, None]
            zero = zero.masked_fill(wide, 0) + self.row_zero[:, None] * wide
        return scale, zero


@dataclass(frozen=True)
class BlocksTensor:
    """Blocks of one of ggml's types (ggml.py), as a GGUF file has them.

    blocks: [N, bytes of a row] uint8; type: its name, as Q4_K; in_features: K.
    """

    blocks: torch.Tensor
    type: str
    in_features: int


Coded = UniformTensor | BCQTensor | SecondOrderTensor | UniformSecondOrderTensor
QuantizedTensor = DenseTensor | Coded | MixedTensor | BlocksTensor


def stacked(parts: Sequence[Coded]) -> Coded:
    """Tensors of the rows of one weight, one below the other; all of one class, bits, groups and order."""
    first = parts[0]
    rows = {"codes": 0, "scale": 0, "zero_point": 0, "alpha": 1, "offset": 0}
    rows |= {"scale_code": 1, "scale_step": 1, "scale_zero": 1}
    joined: dict[str, Any] = {  # of tensors
        name: torch.cat([getattr(part, name) for part in parts], dim)
        for name, dim in rows.items()
        if name in vars(first) and getattr(first, name) is not None
    }
    return dataclasses.replace(first, **joined)
