"""Losses that a model is tuned by, and what makes a model ready to be trained.

    loss=labels         cross entropy of the next token
    loss=distribution   Kullback-Leibler divergence from the full-precision model's next token to the tuned one's

Both are means over the next tokens of windows, in nats.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from lutlab.models.families import decoder_blocks

# Of so many windows one is held out.
HELD_OUT = 8
Samples = TypeVar("Samples")


@dataclass(frozen=True)
class Loss(ABC):
    """Mean loss of a model on samples, in nats; `full` is the full-precision model, `kind` a specs.Loss."""

    full: PreTrainedModel
    kind: str

    @abstractmethod
    def __call__(self, model: PreTrainedModel, samples: Any) -> torch.Tensor:
        """The mean over a batch of samples, a scalar."""

    def mean(self, model: PreTrainedModel, batches: Sequence[Any]) -> float:
        """Mean over all samples of some batches, without gradients."""
        with torch.no_grad():
            total = sum(self(model, batch).item() * len(batch) for batch in batches)
        return total / sum(map(len, batches))


@dataclass(frozen=True)
class NextTokens(Loss):
    """Mean loss of a model's next tokens on windows [B, S] int64."""

    def __call__(self, model: PreTrainedModel, windows: torch.Tensor) -> torch.Tensor:
        """A scalar, with the graph of its gradients."""
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


def divided(windows: Samples, batch: int) -> tuple[Samples, list[Samples]]:
    """Windows [M, S], or labelled pairs, as those to train on, and those that are held out, in batches: the first of
    every eight.
    """
    held = torch.arange(len(windows)) % HELD_OUT == 0
    return windows[~held], [*windows[held].split(batch)]


def trainable(model: PreTrainedModel) -> PreTrainedModel:
    """The model in float32, where nothing asks for gradients; on a GPU no activations of blocks are kept.

    Products stay in float32 there too: that bfloat16 is not worse was not shown.
    """
    model.float().requires_grad_(False)
    if model.device.type == "cuda":
        keep_no_activations(model)
    return model


def keep_no_activations(model: PreTrainedModel) -> None:
    """Compute blocks again when gradients are due; transformers' own switch wants training mode, and so dropout."""
    for block in decoder_blocks(model):
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
