"""Add a method in one class; in a module of yours it is `lutlab plugins=<module> method=clipped q=3`.

python examples/add_a_method.py
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from safetensors.torch import load_file

import lutlab
from lutlab.base.registry import register
from lutlab.base.tensors import UniformTensor
from lutlab.models.load import EMBEDDED
from lutlab.quantizers.contract import Method
from lutlab.quantizers.rtn import RTN


@register("method", "clipped")
@dataclass(frozen=True)
class Clipped(Method):
    """RTN of weights that are cut at a share of their row's largest magnitude."""

    version: ClassVar[int] = 1
    format: ClassVar[str] = "uniform"
    share: float = 0.8

    def quantize(self, weight: torch.Tensor, q: int, g: int) -> UniformTensor:
        """[N, K] float -> codes [N, K], scale and zero point [N, G]."""
        most = self.share * weight.abs().amax(dim=1, keepdim=True)
        return RTN().quantize(weight.clamp(-most, most), q, g)


weights = load_file(EMBEDDED / "opt-embedded-m" / "model.safetensors")
weight = weights["model.decoder.layers.2.fc1.weight"].float()
for share in (1.0, 0.8, 0.6, 0.4):
    packed = lutlab.quantize_tensor(weight, method="clipped", q=2, g=-1, share=share)
    error = (weight - packed.dequantize()).square().sum() / weight.square().sum()
    print(f"grid over {share:.0%} of the range: relative squared error {error:.3f}")
