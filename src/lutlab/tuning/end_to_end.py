"""End-to-end tuning: one course of a model's stages, each of which says what moves and how that is stored.

    start (a quantized copy) ─▶ float32 ─▶ a stage's own layers ─▶ fit to a loss of samples ─▶ layers as they are stored

An eighth of the samples is never trained on; the state of least loss on those is the one that stays.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel

from lutlab.quantizers.contract import Method
from lutlab.specs import Tuning
from lutlab.tuning.course import Pace, Progress
from lutlab.tuning.labels import Labelled, head_parameters, loss_of
from lutlab.tuning.loop import fit
from lutlab.tuning.losses import divided, trainable
from lutlab.tuning.states import TuningStore


class Stage(abc.ABC):
    """The part of a model that moves.

    Attributes:
        name: name of its loop, and of the file of its state.
        judges_stored: the loss of step 0 is that of the stored layers, which those that it begins with only come near.
        parameters: name -> parameter. A classifier's head is trained beside them.
    """

    name: ClassVar[str]
    judges_stored: ClassVar[bool] = False
    parameters: Mapping[str, nn.Parameter]

    @abc.abstractmethod
    def __init__(self, model: PreTrainedModel, quantizer: Method) -> None:
        """Bring layers that can be trained into a model in float32, which the method has quantized."""

    @staticmethod
    @abc.abstractmethod
    def check_tunable(quantizer: Method) -> None:
        """Raise LutlabError unless what a method gives can be tuned so."""

    @abc.abstractmethod
    def store(self, kept_step: int) -> None:
        """Bring the trained layers into the model as they are stored; step 0: they are those that it began with."""


def tune_end_to_end(
    kind: type[Stage],
    start: PreTrainedModel,
    full: PreTrainedModel,
    quantizer: Method,
    samples: torch.Tensor | Labelled,
    tuning: Tuning,
    *,
    kept: TuningStore | None = None,
    report: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Train a stage's part of a model, in place.

    Args:
        kind: the stage.
        start: a copy of the model, quantized by the method.
        full: the model as it came.
        quantizer: the method, with its options.
        samples: token ids [samples, S] int64, or labelled pairs.
        tuning: options: how long, how fast, towards what.
        kept: store of the state.
        report: function that is called after every step.

    Returns:
        The curve's facts.

    Raises:
        LutlabError: the loss is inf or nan before the first step.
    """
    loss = loss_of(full, tuning.loss, samples)
    trained, held = divided(samples, tuning.batch)
    first = loss.mean(start, held) if kind.judges_stored else None
    model = trainable(start)
    stage = kind(model, quantizer)
    head = head_parameters(model) if isinstance(samples, Labelled) else {}
    curve = fit(
        stage.name,
        {**stage.parameters, **head},
        lambda indices: loss(model, trained[indices]),
        len(trained),
        Pace.of(tuning),
        held_out=lambda: loss.mean(model, held),
        first=first,
        kept=kept,
        report=report,
    )
    stage.store(curve.kept_step)
    return dataclasses.asdict(curve)
