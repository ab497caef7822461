"""Full fine-tuning: every parameter of a model that is not quantized moves, embeddings, norms and head among them.

What a paper that tunes scales alone compares itself with (LUT-GEMM, Table 8: "full fine-tune"). AdamW decays all of
them alike. Afterwards method=none stores the linear weights in float16, as it does those of a checkpoint.

Memory: the model as it came, a float32 copy, 8 bytes a parameter of Adam's, and in main memory the best parameters:
2.7 billion take some 50 GB on the GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from lutlab.errors import LutlabError
from lutlab.quantizers.contract import Method
from lutlab.specs import Tuning
from lutlab.tuning.course import Pace, Progress
from lutlab.tuning.labels import Labelled, loss_of
from lutlab.tuning.loop import fit
from lutlab.tuning.losses import divided, trainable
from lutlab.tuning.states import TuningStore


def check_tunable(quantizer: Method) -> None:
    """Raise LutlabError unless a method keeps the weights."""
    if quantizer.quantizes:
        raise LutlabError("full fine-tuning moves weights that are not quantized: give method=none")


def tune_whole(
    start: PreTrainedModel,
    full: PreTrainedModel,
    quantizer: Method,
    samples: torch.Tensor | Labelled,
    tuning: Tuning,
    *,
    kept: TuningStore | None = None,
    report: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Train every parameter of a model, in place.

    Args:
        start: a copy of the model.
        full: the model as it came.
        quantizer: method none.
        samples: token ids [samples, S] int64, or labelled pairs.
        tuning: how long, how fast, towards what.
        kept: where the state is kept.
        report: told after every step.

    Returns:
        The curve's facts.

    Raises:
        LutlabError: the loss is inf or nan before the first step.
    """
    loss = loss_of(full, tuning.loss, samples)
    trained, held = divided(samples, tuning.batch)
    model = trainable(start)
    curve = fit(
        "whole",
        dict(model.named_parameters()),
        lambda indices: loss(model, trained[indices]),
        len(trained),
        Pace.of(tuning),
        held_out=lambda: loss.mean(model, held),
        kept=kept,
        report=report,
    )
    return dataclasses.asdict(curve)
