"""Uniform codes with scales of second order: those of a row are integers of few bits, on a grid of the row.

    W[n, k] = s[n, k // g] * (codes[n, k] - zero_point[n, k // g])                  codes and zero points of uniform.py
    s[n, i] = step[n] * (code[n, i] + zero[n])                                      base/second_order.py

A scale of format uniform costs 16 bits a group, a code of 4 bits a quarter of that, and the grid 24 bits a row:

    bits a weight at q = 3, g = 32      uniform 3 + 19/32 = 3.59      4 bits: 3 + 7/32 + 24/K = 3.22 at K = 4096

    qweight, qzero, order as in uniform.py          scale_code [ceil(N G b / 32)] int32: codes of b bits in one stream
    scale_step [1, N] float16   scale_zero [1, N] int8
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.base.tensors import UniformSecondOrderTensor
from lutlab.formats.contract import Choice, Choices, check_layout
from lutlab.formats.second_order import SCALE_BITS, SecondOrder
from lutlab.formats.uniform import PackedUniform


@register("format", "uniform_second_order")
@dataclass(frozen=True)
class PackedUniformSecondOrder(SecondOrder):
    """Buffers as the module draws them; shape (N, K); scale_bits: bits of a scale's code, 1-7."""

    version: ClassVar[int] = 1
    tensor: ClassVar[type] = UniformSecondOrderTensor
    kernels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "cpu": ("uniform_gemv", "bcq_gemv"),
        "cuda": ("lut_gemv",),
    }

    qweight: torch.Tensor
    scale_code: torch.Tensor
    scale_step: torch.Tensor
    scale_zero: torch.Tensor
    qzero: torch.Tensor
    shape: tuple[int, int]
    bits: int
    group_size: int
    scale_bits: int
    order: torch.Tensor | None = None

    @property
    def bcq_bits(self) -> int | None:
        """Those of format uniform: in a binary form scales have 16 bits."""
        return self.first_order().bcq_bits

    @property
    def packed_zeros(self) -> bool:
        """Whether all zero points are in 0 .. 2^q-1, and so in q bits each."""
        return self.qzero.dtype == torch.int32

    def first_order(self) -> PackedUniform:
        """The codes with their scales decoded to float16."""
        sizes = self.shape, self.bits, self.group_size
        return PackedUniform(self.qweight, self.coefficients[0], self.qzero, *sizes, self.order)

    @staticmethod
    def coefficients_of(first: PackedUniform) -> torch.Tensor:
        """The scales."""
        return first.scale.unsqueeze(0)

    @classmethod
    def pack(cls, tensor: UniformSecondOrderTensor) -> PackedUniformSecondOrder:
        """Codes and zero points to words, codes of scales to a stream; the grid as it is."""
        grids = tensor.scale_step, tensor.scale_zero
        return cls.encoded(PackedUniform.pack(tensor.uniform()), *grids, tensor.scale_bits)

    def unpack(self) -> UniformSecondOrderTensor:
        """The inverse of pack, bit for bit."""
        uniform = self.first_order().unpack()
        assert uniform.zero_point is not None  # as packed
        return UniformSecondOrderTensor(
            uniform.codes,
            self.coefficient_codes,
            self.scale_step,
            self.scale_zero,
            uniform.zero_point,
            self.bits,
            self.group_size,
            self.scale_bits,
            self.order,
        )

    def layout(self) -> dict[str, Choice]:
        """Sizes, q, g, bits of a scale, and whether zero points are in q bits."""
        return {
            "out_features": self.shape[0],
            "in_features": self.shape[1],
            "q": self.bits,
            "g": self.group_size,
            "scale_bits": self.scale_bits,
            "has_order": self.order is not None,
            "packed_zeros": self.packed_zeros,
        }

    @classmethod
    def from_layout(
        cls, layout: Mapping[str, Any], device: torch.device | str = "cpu"
    ) -> PackedUniformSecondOrder:
        """A weight without numbers, in buffers of the layout's sizes."""
        either = (False, True)
        choices: Choices = {"q": (), "g": (), "has_order": either, "packed_zeros": either}
        check_layout(layout, choices | {"scale_bits": SCALE_BITS})
        first = {name: layout[name] for name in layout if name != "scale_bits"}
        first |= {"scale_dtype": "float16"}
        return cls.empty(PackedUniform.from_layout(first, device), layout["scale_bits"])
