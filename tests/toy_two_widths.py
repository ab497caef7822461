"""A method and its format as a user would write them, in one file outside of the package.

Half of the input channels have q bits, the others half as many, each half with one scale and one lowest level a row:

    W[n, k] = low[n, h] + scale[n, h] * codes[n, k],   h = 0 for k < K / 2, else 1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from lutlab.base.registry import register
from lutlab.formats.code_words import pack_words, unpack_words
from lutlab.formats.contract import Format, check_layout
from lutlab.quantizers.contract import Method


@dataclass(frozen=True)
class TwoWidthsTensor:
    """codes [N, K] uint8; scale, low [N, 2] float32; q bits in the first half of the columns, q // 2 in the second."""

    codes: torch.Tensor
    scale: torch.Tensor
    low: torch.Tensor
    bits: int


@register("format", "two_widths")
@dataclass(frozen=True)
class PackedTwoWidths(Format):
    """wide [N, W] int32, narrow [N, V] int32, scale and low [N, 2] float32; shape (N, K)."""

    version: ClassVar[int] = 1
    tensor: ClassVar[type] = TwoWidthsTensor

    wide: torch.Tensor
    narrow: torch.Tensor
    scale: torch.Tensor
    low: torch.Tensor
    shape: tuple[int, int]
    bits: int

    @classmethod
    def pack(cls, tensor):
        half = tensor.codes.shape[1] // 2
        wide = pack_words(tensor.codes[:, :half], tensor.bits)
        narrow = pack_words(tensor.codes[:, half:], tensor.bits // 2)
        shape = tuple(tensor.codes.shape)
        return cls(wide, narrow, tensor.scale, tensor.low, shape, tensor.bits)

    def unpack(self):
        half = self.shape[1] // 2
        codes = torch.cat(
            [
                unpack_words(self.wide, self.bits, half),
                unpack_words(self.narrow, self.bits // 2, self.shape[1] - half),
            ],
            dim=1,
        )
        return TwoWidthsTensor(codes, self.scale, self.low, self.bits)

    def dequantize(self):
        half = torch.arange(self.shape[1], device=self.low.device) // (self.shape[1] // 2)
        half = half.clamp(max=1)
        return self.low[:, half] + self.scale[:, half] * self.unpack().codes

    def layout(self):
        return {"out_features": self.shape[0], "in_features": self.shape[1], "q": self.bits}

    @classmethod
    def from_layout(cls, layout: Mapping[str, Any], device="cpu"):
        check_layout(layout, {"q": (2, 4, 6, 8)})
        rows, columns = layout["out_features"], layout["in_features"]
        codes = torch.zeros(rows, columns, dtype=torch.uint8)
        scale = torch.zeros(rows, 2)
        return cls.pack(TwoWidthsTensor(codes, scale, scale.clone(), layout["q"])).to(device)


@register("method", "two_widths")
@dataclass(frozen=True)
class TwoWidths(Method):
    """Round to nearest in both halves; q is even, g is not looked at."""

    version: ClassVar[int] = 1
    format: ClassVar[str] = "two_widths"

    def quantize(self, weight, q, g):
        weight = weight.detach().float()
        half, codes, scales, lows = weight.shape[1] // 2, [], [], []
        for part, bits in ((weight[:, :half], q), (weight[:, half:], q // 2)):
            low, high = part.amin(1, keepdim=True), part.amax(1, keepdim=True)
            scale = (high - low) / (2**bits - 1)
            codes.append(((part - low) / scale).round().to(torch.uint8))
            scales.append(scale)
            lows.append(low)
        return TwoWidthsTensor(torch.cat(codes, 1), torch.cat(scales, 1), torch.cat(lows, 1), q)
