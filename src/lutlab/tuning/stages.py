"""Tuning of a quantized model, stage after stage, each of which leaves the layers stored as they were.

    method's own result ─▶ block after block (block_steps) ─▶ end to end (steps): scales, or weights ─▶ packed layers

It happens in a copy: the model as it came is what the copy learns from, and the packed layers that come out go through
`quantize_model(packed=…)`, as if the method had found them.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import BlockStore, StatsStore
from lutlab.errors import LutlabError
from lutlab.formats.contract import Format
from lutlab.groups import Width
from lutlab.models import fits
from lutlab.models.contract import CLASSIFIES
from lutlab.models.families import decoder_blocks, linear_layers, task_of, weight_of
from lutlab.modules import QuantLinear
from lutlab.quantizers.contract import Method
from lutlab.specs import Tuning
from lutlab.tuning import blocks
from lutlab.tuning.course import Progress
from lutlab.tuning.end_to_end import Stage, tune_end_to_end
from lutlab.tuning.labels import Labelled, check_labels, head_parameters
from lutlab.tuning.scales import Scales
from lutlab.tuning.states import TuningStore
from lutlab.tuning.weights import Weights
from lutlab.tuning.whole import Whole

log = logging.getLogger(__name__)
Report = Callable[[Progress], None]
_END_TO_END: dict[str, type[Stage]] = {kind.name: kind for kind in (Weights, Scales, Whole)}


@dataclass(frozen=True)
class Tuned:
    """Layers that are quantized and parameters that are not, tuned, by name; and how they came about.

    Attributes:
        layers: packed weights.
        parameters: a classifier's head, or all of a model that is not quantized; in float32.
        facts: facts of a record, in JSON's types.
    """

    layers: dict[str, Format]
    parameters: dict[str, torch.Tensor]
    facts: dict[str, Any]


def check_tunable(quantizer: Method, tuning: Tuning) -> None:
    """Raise LutlabError unless what a method gives can be tuned so."""
    if tuning.block_steps:
        blocks.check_tunable(quantizer)
    if tuning.steps:
        _stage(quantizer, tuning).check_tunable(quantizer)


def _stage(quantizer: Method, tuning: Tuning) -> type[Stage]:
    """The end-to-end stage: weights that are not quantized are tuned with all the rest."""
    trains = tuning.trains if quantizer.quantizes or tuning.trains != "weights" else "whole"
    return _END_TO_END[trains]


def tune(
    model: PreTrainedModel,
    quantizer: Method,
    widths: Mapping[str, Width | None],
    calibration: torch.Tensor | Labelled,
    tuning: Tuning,
    *,
    seen: StatsStore | None = None,
    untuned: BlockStore | None = None,
    kept: TuningStore | None = None,
    report: Report | None = None,
) -> Tuned:
    """Quantize and tune a copy of a model; the model stays as it is.

    Args:
        model: model in evaluation mode (dropout stays off) and full precision, all of it in memory.
        quantizer: the method, with its options.
        widths: layer name -> (q, g), or None where a layer stays in full precision and as it is.
        calibration: token ids [samples, S] int64: those that the method calibrates on are also trained on, in a new
            order each time all were read. Of a classifier, labelled pairs.
        tuning: options: what moves, how long, how fast, towards what.
        seen: store of the statistics of full-precision inputs, for the method.
        untuned: finished blocks of the method's own result.
        kept: store of the states of unfinished stages, which go on from there.
        report: function that is called after every step.

    Raises:
        LutlabError: the method's result cannot be tuned so, the model is streamed or no causal language model, there
            are less than two windows, the loss is inf or nan before anything was tuned; or as quantize_model.
    """
    check_tunable(quantizer, tuning)
    _check(model, calibration)
    labelled = isinstance(calibration, Labelled)
    if tuning.block_steps and (labelled or not quantizer.quantizes):
        raise LutlabError(
            "tuning.block_steps brings quantized blocks of a language model near to its own: drop it of a classifier, "
            "and of method=none"
        )
    if tuning.block_steps:
        blocks.check_memory(model, calibration, tuning)
    if tuning.steps:
        _check_memory(model, calibration, tuning)
    start = copy.deepcopy(model)
    if quantizer.quantizes:
        inputs = calibration.inputs if labelled else calibration
        quantize_model(start, quantizer, widths, inputs, kept=untuned, seen=seen)
    some = any(isinstance(module, QuantLinear) for _, module in linear_layers(start))
    if quantizer.quantizes and not some:
        raise LutlabError("tuning finds no quantized layer: skip names all of them; drop tuning")
    facts = tuning.asked()
    if tuning.block_steps:
        facts |= blocks.tune_blocks(
            *(start, model, calibration, blocks.pace_of(tuning)), kept=kept, report=report
        )
    if tuning.steps:
        stage = _stage(quantizer, tuning)
        facts |= tune_end_to_end(
            *(stage, start, model, quantizer, calibration, tuning), kept=kept, report=report
        )
    layers = {n: m.packed for n, m in linear_layers(start) if isinstance(m, QuantLinear)}
    rest = head_parameters(start) if labelled else {}
    if not quantizer.quantizes:
        rest = dict(start.named_parameters())
    return Tuned(layers, {name: one.detach() for name, one in rest.items()}, facts)


def put(model: PreTrainedModel, parameters: Mapping[str, torch.Tensor]) -> None:
    """Bring tuned parameters into a model, in its dtype."""
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in parameters.items():
            own[name].copy_(tensor)


def _check(model: PreTrainedModel, calibration: torch.Tensor | Labelled) -> None:
    task, labelled = task_of(model), isinstance(calibration, Labelled)
    if task == CLASSIFIES:
        if not labelled:
            raise LutlabError(
                "a classifier is tuned on labelled texts: give labels beside calibration"
            )
        check_labels(calibration, model.config.num_labels)
    elif task != "causal_lm" or labelled:
        raise LutlabError(
            f"tuning learns the next token, or classes of labelled texts, and this model's task is {task}"
            f"{' and has no labels' if labelled else ''}: drop {'the labels' if labelled else 'tuning'}"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise LutlabError(
            "tuning needs the whole model in memory, and this one is streamed: drop stream=true"
        )
    if len(calibration) < 2:
        raise LutlabError(
            "tuning trains on one calibration window and holds another out: give at least 2"
        )


def _check_memory(
    model: PreTrainedModel, calibration: torch.Tensor | Labelled, tuning: Tuning
) -> None:
    """Say what tuning takes, and refuse what the device does not hold."""
    modules = [m for _, m in linear_layers(model) if not isinstance(m, QuantLinear)]
    linear = [weight_of(module) for module in modules]
    weights = sum(one.numel() for one in linear)
    moves = tuning.steps and tuning.trains == "weights"
    at_once = 1 if model.device.type == "cuda" else len(decoder_blocks(model))
    inner = sum(sum(one.shape) for one in linear) // len(decoder_blocks(model)) * at_once
    windows = calibration.inputs["input_ids"] if isinstance(calibration, Labelled) else calibration
    tokens = min(tuning.batch, len(windows)) * windows.shape[1]
    parts = {
        "a float32 copy": 4 * sum(one.numel() for one in model.parameters()),
        "Adam and the best weights": 12 * weights if moves else 0,
        "codes and decoded weights": 0
        if moves
        else 5 * weights * at_once // len(decoder_blocks(model)),
        "activations": 4 * tokens * (2 * inner + 4 * model.config.vocab_size),
    }
    said = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items() if size)
    log.info("tuning takes some %.2f GB: %s", sum(parts.values()) / 1e9, said)
    cure = "lower tuning.batch, or calibration.seqlen, or take a larger device"
    fits.check("tuning this model", parts, f"{model.device}", cure=cure)
