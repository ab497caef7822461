"""Losses that a model is tuned by, their samples, and what makes a model ready to be trained.

    loss=labels         cross entropy of the next token, or of the right class
    loss=distribution   Kullback-Leibler divergence of these from the full-precision model's to the tuned one's

Both are in nats, means over the next tokens of windows [B, S] int64, or over labelled pairs. A classifier's head
[classes, D] is trained beside the rest, and in full precision before and after: no method quantizes it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from lutlab.base.errors import LutlabError
from lutlab.models.families import decoder_blocks, with_positions
from lutlab.models.new_head import head_of

# Of so many windows one is held out.
HELD_OUT = 8


@dataclass(frozen=True)
class Labelled:
    """Padded pairs by name, input_ids, attention_mask, … [n, S] int64, and their labels [n] int64."""

    inputs: Mapping[str, torch.Tensor]
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, at: torch.Tensor | slice) -> Labelled:
        """Some of the pairs: by their indices, a mask or a slice."""
        return Labelled({name: ids[at] for name, ids in self.inputs.items()}, self.labels[at])

    def split(self, size: int) -> list[Labelled]:
        """Batches of `size` pairs."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    def trimmed(self) -> dict[str, torch.Tensor]:
        """The inputs without columns that are padding in every pair."""
        tokens = self.inputs["attention_mask"].any(0)
        return {name: ids[:, tokens] for name, ids in self.inputs.items()}


Samples = torch.Tensor | Labelled  # windows of a text, or pairs


def check_labels(samples: Labelled, classes: int) -> None:
    """Refuse labels that a model's head does not have.

    Raises:
        LutlabError: another number of labels than of pairs, labels that are no integers, or one out of range.
    """
    labels, pairs = samples.labels, len(samples.inputs["input_ids"])
    if labels.dtype != torch.int64 or labels.shape != (pairs,):
        raise LutlabError(
            f"labels are {labels.dtype} {list(labels.shape)} beside {pairs} texts: give a class a text, [{pairs}] int64"
        )
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise LutlabError(
            f"{len(wrong)} of {pairs} labels are out of range, first {int(wrong[0])}: this model's head has classes "
            f"0 to {classes - 1} (config.num_labels); the hidden labels of a test split are -1"
        )


def head_parameters(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """The parameters of a classifier's head by their names in the model."""
    name = head_of(model)
    head = model.get_submodule(name).named_parameters()
    return {f"{name}.{key}": parameter for key, parameter in head}


def loss(
    model: PreTrainedModel, full: PreTrainedModel, kind: str, samples: Samples
) -> torch.Tensor:
    """Mean loss of a model on a batch of samples, a scalar with the graph of its gradients.

    Args:
        model: model that is tuned.
        full: model in full precision, which teaches.
        kind: one of specs.Loss.
        samples: windows [B, S] int64, or labelled pairs.
    """
    logits = _logits(model, samples)
    if kind == "labels":
        labels = samples.labels if isinstance(samples, Labelled) else samples[:, 1:].flatten()
        return functional.cross_entropy(logits, labels.to(logits.device))
    with torch.no_grad():
        target = _logits(full, samples).log_softmax(-1)
    return functional.kl_div(logits.log_softmax(-1), target, reduction="batchmean", log_target=True)


def _logits(model: PreTrainedModel, samples: Samples) -> torch.Tensor:
    """Logits in float32: [B, classes] of pairs, [B * (S - 1), V] of windows."""
    if isinstance(samples, Labelled):
        inputs = {name: ids.to(model.device) for name, ids in samples.trimmed().items()}
        return model(**with_positions(model, inputs)).logits.float()
    logits = model(input_ids=samples.to(model.device), use_cache=False).logits
    return logits[:, :-1].flatten(0, 1).float()


def mean_loss(
    model: PreTrainedModel, full: PreTrainedModel, kind: str, batches: Sequence[Samples]
) -> float:
    """Mean loss over all samples of some batches, without gradients."""
    with torch.no_grad():
        total = sum(loss(model, full, kind, batch).item() * len(batch) for batch in batches)
    return total / sum(map(len, batches))


def divided(samples: Samples, batch: int) -> tuple[Samples, list[Samples]]:
    """Samples to train on, and those that are held out, in batches: the first of every eight."""
    held_out = torch.arange(len(samples)) % HELD_OUT == 0
    return samples[~held_out], [*samples[held_out].split(batch)]


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
