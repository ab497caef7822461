"""The uniform grid of a group from its smallest and largest weight; RTN and GPTQ share it.

    s = (max - min) / (2^q - 1),  zero = round(-min / s)        levels 0 .. 2^q - 1 stand for s * (level - zero)

Two rules of the same name, and the papers use both; 0 is forced into [min, max]:

    gptq     GPTQ quant.py: a group of zeros gets the range [-1, 1]
    awq      AWQ pseudo_quantize_tensor: the range is at least 1e-5; zero is clamped to 0 .. 2^q - 1

    autoawq  the second as AutoAWQ has it, the range the weights' own: with the clamped zero no weight is larger than
             the range, so that 0.5 throughout becomes 0.00001. The same grid wherever a group has both signs.

Both have a symmetric form, with zero = 2^(q-1) in every group, by the largest absolute weight:

    gptq   s = 2 max|w| / (2^q - 1); quant.py takes half of that where no weight is negative, which clips the largest
    awq    s = max|w| / (2^(q-1) - 1), max|w| at least 1e-5; at q=1 as gptq

scale_dtype=fp16 rounds s first: zero and codes are then computed with the scale as stored. fp32 is what both
repositories compute with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch

Rule = Literal["gptq", "awq", "autoawq"]
ScaleDtype = Literal["fp16", "fp32"]
# Smallest scale stored, so that a group of tiny weights does not divide by zero: float16's smallest number; and for
# float32 one whose half (Eq. 5 stores s / 2) still has all 24 bits.
SMALLEST = {"fp16": 2.0**-24, "fp32": 2.0**-125}


@dataclass(frozen=True)
class Grid:
    """The module says what its options change."""

    variant: Rule
    scale_dtype: ScaleDtype
    symmetric: bool = False

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
        scale, zero = self.of_range(low, high, q)
        if not torch.isfinite(scale).all():
            raise LutlabError(
                f"the weights of a group span {float((high - low).max()):.3g}, whose scale is beyond "
                f"{self.scale_dtype}: use scale_dtype=fp32 or rescale the weights"
            )
        return scale, zero

    def of_range(
        self, low: torch.Tensor, high: torch.Tensor, q: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `fit`; a scale beyond scale_dtype's range is inf."""
        top = 2**q - 1
        if self.variant != "autoawq":
            low, high = low.clamp(max=0), high.clamp(min=0)
        if self.variant == "gptq":
            empty = (low == 0) & (high == 0)
            low, high = low.masked_fill(empty, -1), high.masked_fill(empty, 1)
        if self.symmetric:
            high = torch.maximum(-low, high)
            low = -high
            top = top if self.variant == "gptq" else max(1, top - 1)
        least = 0.0 if self.variant == "gptq" else 2e-5 if self.symmetric else 1e-5
        scale = (high - low).clamp(min=least) / top
        if self.scale_dtype == "fp16":
            scale = scale.half().float()
        scale = scale.clamp(min=SMALLEST[self.scale_dtype])
        if self.symmetric:
            return scale, torch.full_like(scale, 2 ** (q - 1))
        zero = torch.round(-low / scale)
        return scale, zero if self.variant == "gptq" else zero.clamp(0, top)
