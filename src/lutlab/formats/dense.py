"""Weights stored as they are: the unquantized baseline beside every packed layout.

weight [N, K] float16 or float32, row-major; N out_features, K in_features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lutlab.formats.contract import Format
from lutlab.registry import register
from lutlab.tensors import DenseTensor

if TYPE_CHECKING:
    import torch


@register("format", "dense")
@dataclass(frozen=True)
class PackedDense(Format):
    """weight: [N, K] float16 or float32, contiguous."""

    version: ClassVar[int] = 1
    tensor: ClassVar[type] = DenseTensor

    weight: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return tuple(self.weight.shape)

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32, exact."""
        return self.weight.float()

    @property
    def bits_stored(self) -> int:
        """Bits of the one buffer."""
        return self.weight.numel() * self.weight.element_size() * 8

    @classmethod
    def pack(cls, tensor: DenseTensor) -> PackedDense:
        """Row-major; no copy where it already is."""
        return pack(tensor)

    def unpack(self) -> DenseTensor:
        """The inverse of pack."""
        return unpack(self)


def pack(tensor: DenseTensor) -> PackedDense:
    """Row-major; no copy where it already is."""
    return PackedDense(tensor.weight.contiguous())


def unpack(packed: PackedDense) -> DenseTensor:
    """The inverse of pack."""
    return DenseTensor(packed.weight)
