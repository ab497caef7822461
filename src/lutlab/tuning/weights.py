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

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from lutlab.errors import LutlabError
from lutlab.formats import pack
from lutlab.formats.mixed import PackedMixed, decoded
from lutlab.models.families import linear_layers
from lutlab.modules import QuantLinear
from lutlab.quantizers.contract import Method
from lutlab.quantizers.mixed import Mixed
from lutlab.tensors import MixedTensor
from lutlab.tuning.end_to_end import Stage


class Weights(Stage):
    """The weights of every quantized layer, for the form they are stored in."""

    name = "weights"
    judges_stored = True

    def __init__(self, model: PreTrainedModel, quantizer: Mixed) -> None:
        found = {n: m for n, m in linear_layers(model) if isinstance(m, QuantLinear)}
        self.model = model
        self.own = {name: module.packed for name, module in found.items()}
        self.layers = {n: RoundedLinear(self.own[n], m.bias, quantizer) for n, m in found.items()}
        for name, layer in self.layers.items():
            model.set_submodule(name, layer)
        self.parameters = {name: layer.weight for name, layer in self.layers.items()}

    @staticmethod
    def check_tunable(quantizer: Method) -> None:
        """Raise LutlabError unless a method can round weights again at widths it has chosen."""
        if not isinstance(quantizer, Mixed):
            raise LutlabError(
                "tuning rounds weights at every step, at widths of groups that were chosen once, which this method "
                "cannot: give method=mixed_2_4_16 or method=group_widths, tune its scales alone "
                "(tuning.trains=scales), or drop tuning"
            )

    def store(self, kept_step: int) -> None:
        """The weights that were found, or the method's own where no step was better."""
        for name, layer in self.layers.items():
            packed = pack(layer.rounded()) if kept_step else self.own[name]
            self.model.set_submodule(name, QuantLinear(packed, layer.bias))


class _StraightThrough(torch.autograd.Function):
    """The values, whose gradient goes to the weight."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return values

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class RoundedLinear(nn.Module):
    """A linear layer whose weight [N, K] float32 is rounded in every pass, at the widths of a packed weight."""

    def __init__(self, packed: PackedMixed, bias: torch.Tensor | None, quantizer: Mixed) -> None:
        super().__init__()
        self.weight, self.bias, self.quantizer = nn.Parameter(packed.dequantize()), bias, quantizer
        self.widths, self.group_size = packed.widths, packed.group_size

    def rounded(self) -> MixedTensor:
        """The weight as it would be stored now."""
        return self.quantizer.round_to(self.weight.detach(), self.widths, self.group_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [..., K] -> [..., N]."""
        values = _StraightThrough.apply(self.weight, decoded(self.rounded()))
        return functional.linear(x, values, self.bias)
