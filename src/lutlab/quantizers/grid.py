"""The uniform grid of a group from its smallest and largest weight, asymmetric; RTN and GPTQ share it.

    s = (max - min) / (2^q - 1),  zero = round(-min / s)        levels 0 .. 2^q - 1 stand for s * (level - zero)

Two rules of the same name, and the papers use both:

    gptq   GPTQ quant.py: 0 is forced into [min, max]; a group of zeros gets the range [-1, 1]
    awq    AWQ pseudo_quantize_tensor: the range is the weights' own, at least 1e-5; zero is clamped to 0 .. 2^q - 1

scale_dtype=fp16 rounds s first: zero and codes are then computed with the scale as stored. fp32 is what both
repositories compute with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lutlab.errors import LutlabError
from lutlab.lazy import torch

Rule = Literal["gptq", "awq"]
ScaleDtype = Literal["fp16", "fp32"]
# Smallest scale stored, so that a group of tiny weights does not divide by zero: float16's smallest number; and for
# float32 one whose half (Eq. 5 stores s / 2) still has all 24 bits.
SMALLEST = {"fp16": 2.0**-24, "fp32": 2.0**-125}


@dataclass(frozen=True)
class Grid:
    """The module says what its options change."""

    variant: Rule
    scale_dtype: ScaleDtype

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of stored scales."""
        return torch.float16 if self.scale_dtype == "fp16" else torch.float32

    def fit(
        self, low: torch.Tensor, high: torch.Tensor, q: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale as stored and zero point, both float32 and of the shape of `low` and `high`, the groups' ranges.

        Raises:
            LutlabError: a scale is beyond scale_dtype's range.
        """
        top = 2**q - 1
        if self.variant == "gptq":
            low, high = low.clamp(max=0), high.clamp(min=0)
            empty = (low == 0) & (high == 0)
            low, high = low.masked_fill(empty, -1), high.masked_fill(empty, 1)
            scale = (high - low) / top
        else:
            scale = (high - low).clamp(min=1e-5) / top
        if self.scale_dtype == "fp16":
            scale = scale.half().float()
        scale = scale.clamp(min=SMALLEST[self.scale_dtype])
        if not torch.isfinite(scale).all():
            raise LutlabError(
                f"the weights of a group span {float((high - low).max()):.3g}, whose scale is beyond "
                f"{self.scale_dtype}: use scale_dtype=fp32 or rescale the weights"
            )
        zero = torch.round(-low / scale)
        return scale, zero.clamp(0, top) if self.variant == "awq" else zero
