"""Tuning of a classifier: pairs with their labels, losses of its classes, and the head that is trained beside the rest.

    loss=labels         cross entropy of the right class
    loss=distribution   Kullback-Leibler divergence from the full-precision model's classes to the tuned one's

Both are means over pairs, in nats. The head [classes, D] is in full precision before and after: no method quantizes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from lutlab.errors import LutlabError
from lutlab.models.new_head import head_of
from lutlab.tuning.losses import Loss, NextTokens


@dataclass(frozen=True)
class Labelled:
    """Padded pairs by name, input_ids, attention_mask, … [n, S] int64, and their labels [n] int64."""

    inputs: Mapping[str, torch.Tensor]
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, at: torch.Tensor | slice) -> Labelled:
        """Some of the pairs: by their indices, a mask or a slice."""
        return Labelled({name: one[at] for name, one in self.inputs.items()}, self.labels[at])

    def split(self, size: int) -> list[Labelled]:
        """Batches of `size` pairs."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    def trimmed(self) -> dict[str, torch.Tensor]:
        """The inputs without columns that are padding in every pair."""
        tokens = self.inputs["attention_mask"].any(0)
        return {name: one[:, tokens] for name, one in self.inputs.items()}


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
    return {f"{name}.{key}": one for key, one in model.get_submodule(name).named_parameters()}


@dataclass(frozen=True)
class Classes(Loss):
    """Mean loss of a model's classes, in nats, on labelled pairs."""

    def __call__(self, model: PreTrainedModel, samples: Labelled) -> torch.Tensor:
        """The mean over a batch of pairs, a scalar."""
        inputs = {name: one.to(model.device) for name, one in samples.trimmed().items()}
        logits = model(**inputs).logits.float()
        if self.kind == "labels":
            return functional.cross_entropy(logits, samples.labels.to(logits.device))
        with torch.no_grad():
            wanted = self.full(**inputs).logits.float().log_softmax(-1)
        found = logits.log_softmax(-1)
        return functional.kl_div(found, wanted, reduction="batchmean", log_target=True)


def loss_of(full: PreTrainedModel, kind: str, samples: torch.Tensor | Labelled) -> Loss:
    """The loss of what samples are: labelled pairs, or windows of a text."""
    return (Classes if isinstance(samples, Labelled) else NextTokens)(full, kind)
