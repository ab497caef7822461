"""Binary codes with coefficients of second order: those of a row are integers of few bits, on grids of their own.

    W[n, k] ~ sum_b alpha[b, n, k // g] * B_b[n, k] + offset[n, k // g]            the planes of bcq.py
    alpha[b, n, i] = step[b, n] * (code[b, n, i] + zero[b, n]); the offset likewise       base/second_order.py

A coefficient of format bcq costs 16 bits a group, a code of 4 bits a quarter of that, and a grid 24 bits a row:

    bits a weight at q = 3, g = 64, with an offset     bcq 3 + 64/64 = 4     4 bits: 3 + 16/64 + 96/K = 3.27 at K = 4096

    planes [q, N, W] int32      scale_code [ceil(P N G b / 32)] int32: codes [P, N, G] of b bits in one stream
    scale_step [P, N] float16   scale_zero [P, N] int8         P = q alphas, and the offset where there is one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lutlab.base import second_order
from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.base.tensors import SecondOrderTensor
from lutlab.formats import bcq
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.contract import Choice, Choices, check_layout
from lutlab.formats.second_order import SCALE_BITS, SecondOrder


@register("format", "bcq_second_order")
@dataclass(frozen=True)
class PackedSecondOrder(SecondOrder):
    """planes, scale_code, scale_step, scale_zero as the module draws them; shape (N, K); order as in PackedBCQ.

    scale_bits: bits of a coefficient's code, 1-7.
    """

    version: ClassVar[int] = 1
    tensor: ClassVar[type] = SecondOrderTensor
    kernels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "cpu": ("bcq_gemv",),
        "cuda": ("lut_gemv",),
    }

    planes: torch.Tensor
    scale_code: torch.Tensor
    scale_step: torch.Tensor
    scale_zero: torch.Tensor
    shape: tuple[int, int]
    group_size: int
    scale_bits: int
    order: torch.Tensor | None = None

    @property
    def bits(self) -> int:
        """Number of planes, q."""
        return len(self.planes)

    @property
    def has_offset(self) -> bool:
        """Whether the coefficients of a group end with an offset."""
        return len(self.scale_step) > self.bits

    @property
    def bcq_bits(self) -> int:
        """Stored bits: this is a binary form."""
        return self.bits_stored

    def first_order(self) -> PackedBCQ:
        """The planes with their coefficients decoded to float16."""
        q, a = self.bits, self.coefficients
        offset = a[q] if self.has_offset else None
        return PackedBCQ(self.planes, a[:q], offset, self.shape, self.group_size, self.order)

    @staticmethod
    def coefficients_of(first: PackedBCQ) -> torch.Tensor:
        """The alphas, and behind them the offset where there is one."""
        return second_order.coefficients(first.alpha, first.offset)

    @classmethod
    def pack(cls, tensor: SecondOrderTensor) -> PackedSecondOrder:
        """Codes [N, K] uint8 to planes, those of coefficients to a stream; grids as they are."""
        grids = tensor.scale_step, tensor.scale_zero
        return cls.encoded(bcq.pack(tensor.binary()), *grids, tensor.scale_bits)

    def unpack(self) -> SecondOrderTensor:
        """The inverse of pack, bit for bit."""
        return SecondOrderTensor(
            bcq.unpack(self.first_order()).codes,
            self.coefficient_codes,
            self.scale_step,
            self.scale_zero,
            self.bits,
            self.group_size,
            self.scale_bits,
            self.order,
        )

    def layout(self) -> dict[str, Choice]:
        """Sizes, q, g, bits of a coefficient."""
        return {
            "out_features": self.shape[0],
            "in_features": self.shape[1],
            "q": self.bits,
            "g": self.group_size,
            "scale_bits": self.scale_bits,
            "has_offset": self.has_offset,
            "has_order": self.order is not None,
        }

    @classmethod
    def from_layout(
        cls, layout: Mapping[str, Any], device: torch.device | str = "cpu"
    ) -> PackedSecondOrder:
        """A weight without numbers, in buffers of the layout's sizes."""
        flag = (False, True)
        choices: Choices = {"q": (), "g": (), "scale_bits": SCALE_BITS, "has_offset": flag}
        check_layout(layout, choices | {"has_order": flag})
        first = {name: layout[name] for name in layout if name not in ("scale_bits", "has_offset")}
        first |= {"alpha_dtype": "float16"}
        first |= {"offset_dtype": "float16" if layout["has_offset"] else None}
        return cls.empty(PackedBCQ.from_layout(first, device), layout["scale_bits"])
