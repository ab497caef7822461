"""Quantization-aware fine-tuning: every forward pass rounds the weights, at widths of groups that were chosen once.

    y = x Q(W)^T + b,  dL/dW = dL/dQ(W)       Q: the method's `round_to`; gradients pass straight through

Li et al., "Fast and Efficient 2-bit LLM Inference on GPU" (ICCAD 2024), section 3.3: in the forward process weights are
quantized and dequantized with 4 or 2 bits by group; afterwards "the same analysis results" quantize. The analysis is
that of the method without tuning, in a copy of the model. Its compensated weights, on their grids, are also what tuning
starts from: fifty steps from the full-precision weights (rate 3e-4) left two embedded models behind compensation alone.
Ranges, scales and outliers (always the largest |w|) follow the weights. What is stored at the end is Q(W) itself.

    loss=labels         cross entropy of the next token
    loss=distribution   Kullback-Leibler divergence from the full-precision model's next token to the tuned one's

AdamW moves the weights of linear layers alone, in float32, without decay; its rate rises linearly for a tenth of the
steps, then falls as half a cosine. An eighth of the calibration windows is never trained on: their loss is taken ten
times on the way, and at step 0 of the method's own model, and the model of least loss is kept.

Memory: the model as it came, which teaches, a float32 copy, and 8 bytes a linear weight of Adam's. A weight moves as
soon as its gradient is there, which is then dropped. On a GPU a block is computed again for its gradients instead of
keeping its activations, and products are in bfloat16: 7 billion weights take some 100 GB. That was not run yet.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import StatsStore
from lutlab.errors import LutlabError
from lutlab.formats import pack
from lutlab.formats.contract import Format
from lutlab.formats.mixed import PackedMixed, decoded
from lutlab.groups import Width
from lutlab.models.families import decoder_blocks, linear_layers, task_of
from lutlab.modules import QuantLinear
from lutlab.quantizers.contract import Method
from lutlab.quantizers.mixed import Mixed
from lutlab.specs import Tuning
from lutlab.tensors import MixedTensor

log = logging.getLogger(__name__)
# Of so many windows one is held out, and the loss on those is taken so many times on the way.
HELD_OUT, EVALUATIONS = 8, 10
WARM_UP = 0.1  # of all steps
BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class Tuned:
    """Layer name -> its weight, rounded and packed; and how it came about, in JSON's types."""

    layers: dict[str, Format]
    facts: dict[str, Any]


def check_tunable(quantizer: Method) -> None:
    """Raise LutlabError unless a method can round weights again at widths it has chosen."""
    if not isinstance(quantizer, Mixed):
        raise LutlabError(
            "tuning rounds weights at every step, at widths of groups that were chosen once, which this method cannot: "
            "give method=mixed_2_4_16 or method=group_widths, or drop tuning"
        )


def tune(
    model: PreTrainedModel,
    quantizer: Method,
    widths: Mapping[str, Width | None],
    calibration: torch.Tensor,
    tuning: Tuning,
    *,
    seen: StatsStore | None = None,
) -> Tuned:
    """Fine-tune the linear weights for the form they are stored in; the model stays as it is.

    Args:
        model: in evaluation mode (dropout stays off) and full precision, all of it in memory.
        quantizer: of the method.
        widths: layer name -> (q, g), or None where a layer stays in full precision and as it is.
        calibration: token ids [samples, S] int64: those that the method calibrates on are also trained on, in a new
            order each time all were read.
        tuning: how long, how fast, towards what.
        seen: statistics of full-precision inputs, for the method.

    Raises:
        LutlabError: the method cannot round again, the model is streamed or no causal language model, there are less
            than two windows, the loss is inf or nan; or as quantize_model.
    """
    check_tunable(quantizer)
    if (task := task_of(model)) != "causal_lm":
        raise LutlabError(
            f"tuning learns the next token, and this model's task is {task}: drop tuning"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise LutlabError(
            "tuning needs the whole model in memory, and this one is streamed: drop stream=true"
        )
    if len(calibration) < 2:
        raise LutlabError(
            "tuning trains on one calibration window and holds another out: give at least 2"
        )
    start = copy.deepcopy(model)
    quantize_model(start, quantizer, widths, calibration, seen=seen)
    held = torch.arange(len(calibration)) % HELD_OUT == 0
    loss = _Loss(model, tuning.loss)
    best = _Best(loss, calibration[held].split(tuning.batch))
    quantized = [(n, m) for n, m in linear_layers(start) if isinstance(m, QuantLinear)]
    if not quantized:
        raise LutlabError("tuning finds no quantized layer: skip names all of them; drop tuning")
    best.consider(0, start, {name: module.packed for name, module in quantized})
    layers = {}
    for name, module in quantized:
        layers[name] = RoundedLinear(module.packed, module.bias, quantizer)
        start.set_submodule(name, layers[name])
    with torch.enable_grad():
        _train(_trainable(start), layers, calibration[~held], tuning, loss, best)
    facts = {**dataclasses.asdict(tuning), "held_out": best.losses, "kept_step": best.step}
    return Tuned(best.layers, facts)


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


@dataclass(frozen=True)
class _Loss:
    """Mean loss of a model's next tokens, in nats, on windows [B, S] int64; `full` is the full-precision model."""

    full: PreTrainedModel
    kind: str

    def __call__(self, model: PreTrainedModel, windows: torch.Tensor) -> torch.Tensor:
        windows = windows.to(model.device)
        logits = _next_tokens(model, windows)
        if self.kind == "labels":
            return functional.cross_entropy(logits, windows[:, 1:].flatten())
        with torch.no_grad():
            wanted = _next_tokens(self.full, windows).log_softmax(-1)
        found = logits.log_softmax(-1)
        return functional.kl_div(found, wanted, reduction="batchmean", log_target=True)


def _next_tokens(model: PreTrainedModel, windows: torch.Tensor) -> torch.Tensor:
    """Logits [B * (S - 1), V] float32."""
    return model(input_ids=windows, use_cache=False).logits[:, :-1].flatten(0, 1).float()


class _Best:
    """The layers of least loss on windows that are held out."""

    def __init__(self, loss: _Loss, held: Sequence[torch.Tensor]) -> None:
        self.loss, self.held = loss, held
        self.losses: list[list[float]] = []  # [step, nats a token]
        self.step, self.layers, self._least = 0, {}, math.inf

    def consider(self, step: int, model: PreTrainedModel, layers: Mapping[str, Format]) -> None:
        """Keep the layers that a model has after a step, if its loss is less than before."""
        with torch.no_grad():
            total = sum(self.loss(model, batch).item() * len(batch) for batch in self.held)
        loss = total / sum(map(len, self.held))
        log.info("tuning: loss %.4f on held-out windows after step %d", loss, step)
        self.losses.append([step, loss])
        if loss < self._least:
            self.step, self.layers, self._least = step, dict(layers), loss


def _trainable(model: PreTrainedModel) -> PreTrainedModel:
    """The model in float32, nothing of it to be trained but the weights of rounded layers."""
    model.float().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, RoundedLinear):
            module.weight.requires_grad_()
    if model.device.type == "cuda":
        model.forward = torch.autocast("cuda", torch.bfloat16)(model.forward)
        _keep_no_activations(model)
    return model


def _keep_no_activations(model: PreTrainedModel) -> None:
    """Compute blocks again when gradients are due; transformers' own switch wants training mode, and so dropout."""
    for block in decoder_blocks(model):
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def _train(
    model: PreTrainedModel,
    layers: Mapping[str, RoundedLinear],
    windows: torch.Tensor,
    tuning: Tuning,
    loss: _Loss,
    best: _Best,
) -> None:
    optimizers, schedules = [], []
    for layer in layers.values():
        optimizers.append(
            torch.optim.AdamW([layer.weight], tuning.learning_rate, BETAS, weight_decay=0.0)
        )
        rate = functools.partial(_share_of_rate, steps=tuning.steps)
        schedules.append(torch.optim.lr_scheduler.LambdaLR(optimizers[-1], rate))
        layer.weight.register_post_accumulate_grad_hook(_mover(optimizers[-1]))
    between = math.ceil(tuning.steps / EVALUATIONS)
    for step, batch in enumerate(_batches(windows, tuning), start=1):
        found = loss(model, batch)
        if not torch.isfinite(found):
            raise LutlabError(
                f"tuning: the loss is {found.item()} at step {step}: lower tuning.learning_rate={tuning.learning_rate}"
            )
        found.backward()
        for schedule in schedules:
            schedule.step()
        if step % between == 0 or step == tuning.steps:
            best.consider(
                step, model, {name: pack(layer.rounded()) for name, layer in layers.items()}
            )


def _mover(optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], None]:
    """A hook that moves a weight by its gradient and drops that."""

    def move(_: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    return move


def _share_of_rate(step: int, steps: int) -> float:
    """Of the peak rate, at a step from 0: linear warm-up, then half a cosine."""
    warm = WARM_UP * steps
    if step < warm:
        return min(1.0, (step + 1) / warm)
    return (1 + math.cos(math.pi * (step - warm) / (steps - warm))) / 2


def _batches(windows: torch.Tensor, tuning: Tuning) -> Iterator[torch.Tensor]:
    """One batch [B, S] a step: all windows in a drawn order, then again in another."""
    draw = torch.Generator().manual_seed(tuning.seed)
    waiting = windows[:0]
    for _ in range(tuning.steps):
        while len(waiting) < tuning.batch:
            waiting = torch.cat([waiting, windows[torch.randperm(len(windows), generator=draw)]])
        yield waiting[: tuning.batch]
        waiting = waiting[tuning.batch :]
