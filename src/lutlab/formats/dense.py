"""Weights stored as they are: the unquantized baseline beside every packed layout.

weight [N, K] float16 or float32, row-major; N out_features, K in_features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.base.tensors import DenseTensor
from lutlab.formats.contract import Choice, Format, check_layout, dtype_name


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
        rows, columns = self.weight.shape
        return rows, columns

    def dequantize(self) -> torch.Tensor:
        """The weight [N, K] in float32, exact."""
        return self.weight.float()

    @classmethod
    def pack(cls, tensor: DenseTensor) -> PackedDense:
        """Row-major; no copy where it already is."""
        return cls(tensor.weight.contiguous())

    def unpack(self) -> DenseTensor:
        """The inverse of pack."""
        return DenseTensor(self.weight)

    @property
    def bcq_bits(self) -> int:
        """bits_stored: a model in its binary form keeps this weight as it is."""
        return self.bits_stored

    def layout(self) -> dict[str, Choice]:
        """Shape and dtype."""
        rows, columns = self.shape
        dtype = dtype_name(self.weight)
        return {"out_features": rows, "in_features": columns, "weight_dtype": dtype}

    @classmethod
    def from_layout(
        cls, layout: Mapping[str, Any], device: torch.device | str = "cpu"
    ) -> PackedDense:
        """A weight without numbers, in the dtype that the layout names."""
        check_layout(layout, {"weight_dtype": ("float16", "float32")})
        shape = layout["out_features"], layout["in_features"]
        dtype = getattr(torch, layout["weight_dtype"])
        return cls(torch.empty(shape, dtype=dtype, device=device))
