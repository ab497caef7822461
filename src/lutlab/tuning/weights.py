"""Quantization-aware fine-tuning: every forward pass rounds the weights, at widths of groups that were chosen once.

    y = x Q(W)^T + b,  dL/dW = dL/dQ(W)       Q: the method's `round_to`; gradients pass straight through

Li et al., "Fast and Efficient 2-bit LLM Inference on GPU" (ICCAD 2024), section 3.3: in the forward process weights are
quantized and dequantized with 4 or 2 bits by group; afterwards "the same analysis results" quantize. The analysis is
that of the method without tuning, in a copy of the model. Its compensated weights, on their grids, are also what tuning
starts from: fifty steps from the full-precision weights (rate 3e-4) left two embedded models behind compensation alone.
Ranges, scales and outliers (always the largest |w|) follow the weights. What is stored at the end is Q(W) itself.

AdamW moves the weights of linear layers alone, in float32 (loop.py), by the losses of losses.py. The held-out loss is
at step 0 that of the method's own model.

Memory: the model as it came, which teaches, a float32 copy, 8 bytes a linear weight of Adam's, and in main memory the
best weights. On a GPU a block is computed again for its gradients instead of keeping its activations: 7 billion weights
take some 100 GB. That was not run yet.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from lutlab.base.errors import LutlabError
from lutlab.base.tensors import MixedTensor
from lutlab.formats.mixed import PackedMixed, decoded
from lutlab.quantizers.contract import Method
from lutlab.quantizers.mixed import Mixed
from lutlab.tuning.scales import Decoded


def check_tunable(quantizer: Method) -> None:
    """Raise LutlabError unless a method can round weights again at widths it has chosen."""
    if not isinstance(quantizer, Mixed):
        raise LutlabError(
            "tuning rounds weights at every step, at widths of groups that were chosen once, which this method "
            "cannot: give method=mixed_2_4_16 or method=group_widths, tune its scales alone "
            "(tuning.trains=scales), or drop tuning"
        )


class RoundedLinear(nn.Module):
    """A linear layer whose weight [N, K] float32 is rounded in every pass, at the widths of a packed weight."""

    def __init__(self, packed: PackedMixed, bias: torch.Tensor | None, quantizer: Mixed) -> None:
        super().__init__()
        self.weight, self.bias, self.quantizer = nn.Parameter(packed.dequantize()), bias, quantizer
        self.widths, self.group_size = packed.widths, packed.group_size

    def trained(self) -> dict[str, nn.Parameter]:
        """The weight that moves."""
        return {"weight": self.weight}

    def units(self) -> dict[str, torch.Tensor]:
        """None: a rate of weights is absolute."""
        return {}

    def tensor(self) -> MixedTensor:
        """The weight as the method would quantize it now."""
        return self.quantizer.round_to(self.weight.detach(), self.widths, self.group_size)

    def rounded(self) -> PackedMixed:
        """The weight as it would be stored now."""
        return PackedMixed.pack(self.tensor())

    def decoded(self) -> torch.Tensor:
        """The same as [N, K] float32."""
        return decoded(self.tensor())

    def gradients(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        """dL/dW [N, K], straight through."""
        return [gradient]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [..., K] -> [..., N]."""
        return functional.linear(x, Decoded.apply(self, self.weight), self.bias)
