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

from lutlab.base import second_order
from lutlab.base.groups import group_count
from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.base.tensors import UniformSecondOrderTensor
from lutlab.formats import code_words
from lutlab.formats.contract import Choice, Choices, SecondOrder, check_layout
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

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32, as format uniform has it with the decoded scales."""
        return self.first_order().dequantize()

    @property
    def packed_zeros(self) -> bool:
        """Whether all zero points are in 0 .. 2^q-1, and so in q bits each."""
        return self.qzero.dtype == torch.int32

    @property
    def codes_of_scales(self) -> torch.Tensor:
        """[1, N, G] uint8: the integers of the stream."""
        rows, groups = self.shape[0], group_count(self.group_size, self.shape[1])
        codes = code_words.unpack_stream(self.scale_code, self.scale_bits, rows * groups)
        return codes.to(torch.uint8).view(1, rows, groups)

    def first_order(self) -> PackedUniform:
        """The codes with their scales decoded to float16, the same values to the last bit."""
        scale = second_order.decoded(self.codes_of_scales, self.scale_step, self.scale_zero)[0]
        sizes = self.shape, self.bits, self.group_size
        return PackedUniform(self.qweight, scale, self.qzero, *sizes, self.order)

    @classmethod
    def pack(cls, tensor: UniformSecondOrderTensor) -> PackedUniformSecondOrder:
        """Codes and zero points to words, codes of scales to a stream; the grid as it is."""
        grids = tensor.scale_step, tensor.scale_zero
        return cls.encoded(PackedUniform.pack(tensor.uniform()), *grids, tensor.scale_bits)

    @classmethod
    def encoded(
        cls, first: PackedUniform, step: torch.Tensor, zero: torch.Tensor, scale_bits: int
    ) -> PackedUniformSecondOrder:
        """Codes whose scales lie on grids step [1, N] float16, zero [1, N] int8: the inverse of first_order."""
        code = second_order.nearest(first.scale.unsqueeze(0), step, zero, scale_bits)
        stream, qzero = code_words.pack_stream(code, scale_bits), first.qzero
        assert qzero is not None  # a second-order scale has no float offset beside it
        sizes = first.shape, first.bits, first.group_size
        return cls(first.qweight, stream, step, zero, qzero, *sizes, scale_bits, first.order)

    def unpack(self) -> UniformSecondOrderTensor:
        """The inverse of pack, bit for bit."""
        uniform = self.first_order().unpack()
        assert uniform.zero_point is not None  # as packed
        return UniformSecondOrderTensor(
            uniform.codes,
            self.codes_of_scales,
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
        check_layout(layout, choices | {"scale_bits": tuple(range(1, 8))})
        bits = layout["scale_bits"]
        first = {name: value for name, value in layout.items() if name != "scale_bits"}
        uniform = PackedUniform.from_layout(first | {"scale_dtype": "float16"}, device)
        assert uniform.qzero is not None  # of packed_zeros
        rows, groups = uniform.scale.shape

        def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            qweight=uniform.qweight,
            scale_code=empty(torch.int32, -(-rows * groups * bits // code_words.WORD)),
            scale_step=empty(torch.float16, 1, rows),
            scale_zero=empty(torch.int8, 1, rows),
            qzero=uniform.qzero,
            shape=uniform.shape,
            bits=uniform.bits,
            group_size=uniform.group_size,
            scale_bits=bits,
            order=uniform.order,
        )
