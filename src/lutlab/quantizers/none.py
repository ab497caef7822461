"""No quantization: the float16 weights every table compares with.

W [N, K] -> float16 [N, K]; q and g do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits
from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.base.tensors import DenseTensor
from lutlab.quantizers.contract import Method


@register("method", "none")
@dataclass(frozen=True)
class NoQuantization(Method):
    """Weights in float16, as the papers' baselines store them."""

    version: ClassVar[int] = 1
    format: ClassVar[str] = "dense"
    quantizes: ClassVar[bool] = False

    def quantize(self, weight: torch.Tensor, q: Bits, g: int) -> DenseTensor:
        """[N, K] float -> [N, K] float16.

        Raises:
            LutlabError: a weight is inf, nan or beyond float16's 65504.
        """
        half = weight.detach().half()
        if not torch.isfinite(half).all():
            raise LutlabError(
                f"{int((~torch.isfinite(half)).sum())} of {half.numel()} weights are inf, nan or beyond float16's "
                "65504: check the checkpoint; a model this large in range needs quantized scales in float32"
            )
        return DenseTensor(half)
