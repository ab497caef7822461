"""Quantization-aware fine-tuning: every forward pass rounds the weights, at widths of groups that were chosen once.

    y = x Q(W)^T + b,  dL/dW = dL/dQ(W)       Q: the method's `round_to`; gradients pass straight through

Li et al., "Fast and Efficient 2-bit LLM Inference on GPU" (ICCAD 2024), section 3.3: in the forward process weights are
quantized and dequantized with 4 or 2 bits by group; afterwards "the same analysis results" quantize. The analysis is
that of the method without tuning, in a copy of the model. Its compensated weights, on their grids, are also what tuning
starts from: fifty steps from the full-precision weights (rate 3e-4) left two embedded models behind compensation alone.
Ranges, scales and outliers (always the largest |w|) follow the weights. What is stored at the end is Q(W) itself.

AdamW moves the weights of linear layers alone, in float32 (loop.py), by the losses of losses.py. An eighth of the
calibration windows is never trained on; the loss on those is at step 0 that of the method's own model.

Memory: the model as it came, which teaches, a float32 copy, 8 bytes a linear weight of Adam's, and in main memory the
best weights. On a GPU a block is computed again for its gradients instead of keeping its activations: 7 billion weights
take some 100 GB. That was not run yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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
from lutlab.specs import Tuning
from lutlab.tensors import MixedTensor
from lutlab.tuning.course import Pace, Progress
from lutlab.tuning.labels import Labelled, head_parameters, loss_of
from lutlab.tuning.loop import fit
from lutlab.tuning.losses import divided, trainable
from lutlab.tuning.states import TuningStore


def check_tunable(quantizer: Method) -> None:
    """Raise LutlabError unless a method can round weights again at widths it has chosen."""
    if not isinstance(quantizer, Mixed):
        raise LutlabError(
            "tuning rounds weights at every step, at widths of groups that were chosen once, which this method cannot: "
            "give method=mixed_2_4_16 or method=group_widths, tune its scales alone (tuning.trains=scales), or drop "
            "tuning"
        )


def tune_weights(
    start: PreTrainedModel,
    full: PreTrainedModel,
    quantizer: Mixed,
    windows: torch.Tensor | Labelled,
    tuning: Tuning,
    *,
    kept: TuningStore | None = None,
    report: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Train the linear weights of a quantized model for the form they are stored in, in place.

    Args:
        start: quantized by the method; its quantized layers are, afterwards, of the weights that were found.
        full: the model in full precision.
        quantizer: of the method.
        windows: token ids [samples, S] int64, or labelled pairs; a classifier's head is trained too.
        tuning: how long, how fast, towards what.
        kept: where the state is kept.
        report: told after every step.

    Returns:
        The curve's facts.

    Raises:
        LutlabError: the loss is inf or nan before the first step.
    """
    loss = loss_of(full, tuning.loss, windows)
    trained, held = divided(windows, tuning.batch)
    first = loss.mean(start, held)
    quantized = {n: m for n, m in linear_layers(start) if isinstance(m, QuantLinear)}
    own = {name: module.packed for name, module in quantized.items()}
    layers = {n: RoundedLinear(own[n], m.bias, quantizer) for n, m in quantized.items()}
    for name, layer in layers.items():
        start.set_submodule(name, layer)
    model = trainable(start)
    head = head_parameters(model) if isinstance(windows, Labelled) else {}
    curve = fit(
        "weights",
        {name: layer.weight for name, layer in layers.items()} | head,
        lambda indices: loss(model, trained[indices]),
        len(trained),
        Pace.of(tuning),
        held_out=lambda: loss.mean(model, held),
        first=first,
        kept=kept,
        report=report,
    )
    for name, layer in layers.items():
        packed = pack(layer.rounded()) if curve.kept_step else own[name]
        start.set_submodule(name, QuantLinear(packed, layer.bias))
    return dataclasses.asdict(curve)


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
