"""Round-to-nearest (RTN): a uniform grid from the smallest to the largest weight of a group, asymmetric.

    s = (max - min) / (2^q - 1),  zero = round(-min / s),  code = clamp(round(w / s) + zero, 0, 2^q - 1)
    w ~ s * (code - zero)                                  LUT-GEMM Eq. 3 with z_hat = -s * zero

Two rules of the same name, and the papers use both:

    gptq   GPTQ quant.py: 0 is forced into [min, max]; a group of zeros gets the range [-1, 1]
    awq    AWQ pseudo_quantize_tensor: the range is the weights' own, at least 1e-5; zero is clamped to 0 .. 2^q - 1

W [N, K] -> codes [N, K] uint8, scale [N, G], zero_point [N, G] int16. scale_dtype=fp16 rounds s first: zero and codes
are then computed with the scale as stored. fp32 is what both repositories compute with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lutlab.errors import LutlabError, nearest
from lutlab.groups import blocks, check_bits, check_group_size, group_count
from lutlab.records import UniformTensor
from lutlab.registry import register

if TYPE_CHECKING:
    import torch

VARIANTS = ("gptq", "awq")
# Smallest scale stored, so that a group of tiny weights does not divide by zero: float16's smallest number; and for
# float32 one whose half (Eq. 5 stores s / 2) still has all 24 bits.
SMALLEST = {"fp16": 2.0**-24, "fp32": 2.0**-125}


@register("method", "rtn")
@dataclass(frozen=True)
class RTN:
    """variant: gptq | awq; scale_dtype: fp16 | fp32. The module says what they change."""

    variant: str = "gptq"
    scale_dtype: str = "fp16"

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise LutlabError(
                f"unknown variant '{self.variant}' of method rtn: {nearest(self.variant, VARIANTS)}"
            )
        if self.scale_dtype not in SMALLEST:
            raise LutlabError(
                f"unknown scale_dtype '{self.scale_dtype}' of method rtn: {nearest(self.scale_dtype, SMALLEST)}"
            )

    def quantize(self, weight: torch.Tensor, q: int, g: int) -> UniformTensor:
        """[N, K] float -> UniformTensor with G = ceil(K / g) groups a row; computed in float32.

        Raises:
            LutlabError: q or g out of range; a weight is inf or nan; a scale is beyond scale_dtype's range.
        """
        import torch

        top = 2 ** check_bits(q) - 1
        check_group_size(g)
        weight = weight.detach().float()
        if not torch.isfinite(weight).all():
            raise LutlabError(
                f"{int((~torch.isfinite(weight)).sum())} of {weight.numel()} weights are inf or nan: "
                "method rtn takes its range from every weight; check the checkpoint"
            )
        rows, in_features = weight.shape
        groups = group_count(g, in_features)
        codes = torch.empty(rows, in_features, dtype=torch.uint8, device=weight.device)
        dtype = torch.float16 if self.scale_dtype == "fp16" else torch.float32
        scale = torch.empty(rows, groups, dtype=dtype, device=weight.device)
        zero_point = torch.empty(rows, groups, dtype=torch.int16, device=weight.device)
        for columns, group_columns, block in blocks(weight, g):
            step, zero = self._grid(block.amin(dim=2), block.amax(dim=2), top)
            level = torch.div(block, step.unsqueeze(2)).round_().add_(zero.unsqueeze(2))
            codes[:, columns] = level.clamp_(0, top).flatten(1).to(torch.uint8)
            scale[:, group_columns] = step.to(dtype)
            zero_point[:, group_columns] = zero.to(torch.int16)
        return UniformTensor(codes, scale, zero_point, q, g)

    def _grid(
        self, low: torch.Tensor, high: torch.Tensor, top: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale as stored and zero point, float32 [N, groups], from the groups' ranges."""
        import torch

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
                f"method rtn: the weights of a group span {float((high - low).max()):.3g}, whose scale is beyond "
                f"{self.scale_dtype}: use scale_dtype=fp32 or rescale the weights"
            )
        zero = torch.round(-low / scale)
        return scale, zero.clamp(0, top) if self.variant == "awq" else zero
