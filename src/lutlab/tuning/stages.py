"""Tuning of a quantized model, step by step, each of which leaves the layers stored as they were.

    method's own result ─▶ block after block (block_steps) ─▶ end to end (steps) ─▶ packed layers

It happens in a copy: the model as it came is what the copy learns from, and the packed layers that come out go through
`quantize_model(packed=…)`, as if the method had found them. End to end one of three is trained:

    weights    of quantized layers, rounded in every pass (weights.py)
    scales     of quantized layers, under codes that stay (scales.py)
    whole      every parameter of a model that is not quantized, embeddings, norms and head among them

The last is what a paper that tunes scales alone compares itself with (LUT-GEMM, Table 8: "full fine-tune"). AdamW
decays all of them alike, and method=none then stores the linear weights in float16, as it does those of a checkpoint.
Its memory: the model as it came, a float32 copy, 8 bytes a parameter of Adam's, and in main memory the best parameters:
2.7 billion take some 50 GB on the GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Width
from lutlab.base.specs import Tuning
from lutlab.compress.calibrate import Windows
from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import BlockStore, StatsStore, TuningStore
from lutlab.formats.contract import Format
from lutlab.formats.mixed import PackedMixed
from lutlab.models.contract import CLASSIFIES
from lutlab.models.families import decoder_blocks, linear_layers, task_of, weight_of
from lutlab.modules import QuantLinear
from lutlab.quantizers.contract import Method
from lutlab.quantizers.mixed import Mixed
from lutlab.tuning import blocks, scales, weights
from lutlab.tuning.loop import fit
from lutlab.tuning.losses import (
    Labelled,
    Samples,
    check_labels,
    divided,
    head_parameters,
    loss,
    mean_loss,
    trainable,
)

# Where no rate is given, in what rounding errs by; heads and weights have tuning.rate.
_RATE_OF_SCALES = 0.04


def check_tunable(quantizer: Method, tuning: Tuning) -> None:
    """Raise LutlabError unless what a method gives can be tuned so."""
    if tuning.block_steps:
        blocks.check_tunable(quantizer)
    trains = _trains(quantizer, tuning)
    if tuning.steps and trains != "whole":
        {"weights": weights, "scales": scales}[trains].check_tunable(quantizer)


def _trains(quantizer: Method, tuning: Tuning) -> str:
    """weights, scales, or whole: weights that are not quantized are tuned with all the rest."""
    return tuning.trains if quantizer.quantizes or tuning.trains != "weights" else "whole"


def tune(
    model: PreTrainedModel,
    quantizer: Method,
    widths: Mapping[str, Width | None],
    windows: Windows | None,
    calibration: Windows | Labelled | None,
    tuning: Tuning,
    *,
    seen: StatsStore | None = None,
    untuned: BlockStore | None = None,
    kept: TuningStore | None = None,
) -> tuple[dict[str, Format], dict[str, torch.Tensor], dict[str, Any]]:
    """Quantize and tune a copy of a model; the model stays as it is.

    Args:
        model: model in evaluation mode (dropout stays off) and full precision, all of it in memory.
        quantizer: the method, with its options.
        widths: layer name -> (q, g), or None where a layer stays in full precision and as it is.
        windows: windows that the method calibrates on, as quantize_model takes them.
        calibration: token ids [samples, S] int64 to be trained on, in a new order each time all were read; the same or
            others. Of a classifier, labelled pairs.
        tuning: options: what moves, how long, how fast, towards what.
        seen: store of the statistics of full-precision inputs, for the method.
        untuned: finished blocks of the method's own result.
        kept: store of the states of unfinished stages, which go on from there.

    Returns:
        The packed weights of quantized layers, by name; the tuned parameters that are not quantized, in float32: a
        classifier's head, or all of a model that is not quantized; and facts of a record, in JSON's types.

    Raises:
        LutlabError: the method's result cannot be tuned so, the model is streamed or no causal language model, there
            are less than two windows, the loss is inf or nan before anything was tuned; or as quantize_model.
    """
    check_tunable(quantizer, tuning)
    samples = _checked(model, calibration)
    if tuning.block_steps:
        if isinstance(samples, Labelled) or not quantizer.quantizes:
            raise LutlabError(
                "tuning.block_steps brings quantized blocks of a language model near to its own: drop it of a "
                "classifier, and of method=none"
            )
        blocks.check_memory(model, samples, tuning)
    if tuning.steps:
        _check_memory(model, samples, tuning)
    start = copy.deepcopy(model)
    if quantizer.quantizes:
        quantize_model(start, quantizer, widths, windows, kept=untuned, seen=seen)
    some = any(isinstance(module, QuantLinear) for _, module in linear_layers(start))
    if quantizer.quantizes and not some:
        raise LutlabError("tuning finds no quantized layer: skip names all of them; drop tuning")
    facts = tuning.recorded()
    if tuning.block_steps and isinstance(samples, torch.Tensor):
        facts |= blocks.tune_blocks(start, model, samples, tuning, kept=kept)
    if tuning.steps:
        facts |= _tune_end_to_end(start, model, quantizer, samples, tuning, kept)
    layers = {n: m.packed for n, m in linear_layers(start) if isinstance(m, QuantLinear)}
    rest = head_parameters(start) if isinstance(samples, Labelled) else {}
    if not quantizer.quantizes:
        rest = dict(start.named_parameters())
    return layers, {name: parameter.detach() for name, parameter in rest.items()}, facts


def _tune_end_to_end(
    start: PreTrainedModel,
    full: PreTrainedModel,
    quantizer: Method,
    samples: Samples,
    tuning: Tuning,
    kept: TuningStore | None,
) -> dict[str, Any]:
    """Train a quantized copy of a full-precision model in place; returns the curve."""
    trained, held_out = divided(samples, tuning.batch)
    trains = _trains(quantizer, tuning)
    # the loss of step 0 is that of stored layers, which the weights of those that are trained only come near
    first = mean_loss(start, full, tuning.loss, held_out) if trains == "weights" else None
    model = trainable(start)
    quantized = {n: m for n, m in linear_layers(model) if isinstance(m, QuantLinear)}
    packed = {name: module.packed for name, module in quantized.items()}
    # check_tunable refuses methods of other formats
    layers: dict[str, weights.RoundedLinear | scales.ScaledLinear] = {
        n: weights.RoundedLinear(cast("PackedMixed", packed[n]), m.bias, cast("Mixed", quantizer))
        if trains == "weights"
        else scales.ScaledLinear(cast("scales.Coded", packed[n]), m.bias)
        for n, m in quantized.items()
    }
    blocks.put_layers(model, layers)
    moving = blocks.by_path({name: layer.trained() for name, layer in layers.items()})
    units = blocks.by_path({name: layer.units() for name, layer in layers.items()})
    units = {path: _RATE_OF_SCALES / tuning.rate * unit for path, unit in units.items()}
    if trains == "whole":
        moving = dict(model.named_parameters())
    curve = fit(
        trains,
        moving | (head_parameters(model) if isinstance(samples, Labelled) else {}),
        lambda indices: loss(model, full, tuning.loss, trained[indices]),
        len(trained),
        tuning,
        units=units if tuning.learning_rate is None else None,
        held_out=lambda: mean_loss(model, full, tuning.loss, held_out),
        first=first,
        kept=kept,
    )
    if curve["kept_step"]:
        packed = {name: layer.rounded() for name, layer in layers.items()}
    blocks.put_layers(model, {n: QuantLinear(packed[n], m.bias) for n, m in layers.items()})
    return curve


def put(model: PreTrainedModel, parameters: Mapping[str, torch.Tensor]) -> None:
    """Bring tuned parameters into a model, in its dtype."""
    with torch.no_grad():
        for name, tensor in parameters.items():
            model.get_parameter(name).copy_(tensor)


def _checked(model: PreTrainedModel, calibration: Windows | Labelled | None) -> Samples:
    """The samples, if they are such as the model can be tuned on."""
    task, labelled = task_of(model), isinstance(calibration, Labelled)
    if task == CLASSIFIES:
        if not isinstance(calibration, Labelled):
            raise LutlabError(
                "a classifier is tuned on labelled texts: give labels beside calibration"
            )
        classes = model.config.num_labels
        assert classes is not None  # of a classifier
        check_labels(calibration, classes)
    elif task != "causal_lm" or labelled:
        raise LutlabError(
            f"tuning learns the next token, or classes of labelled texts, and this model's task is {task}"
            f"{' and has no labels' if labelled else ''}: drop {'the labels' if labelled else 'tuning'}"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise LutlabError(
            "tuning needs the whole model in memory, and this one is streamed: drop stream=true"
        )
    if not isinstance(calibration, torch.Tensor | Labelled):
        raise LutlabError(
            "tuning trains on windows without padding: give calibration=<token ids [samples, seqlen]>"
        )
    if len(calibration) < 2:
        raise LutlabError(
            "tuning trains on one calibration window and holds another out: give at least 2"
        )
    return calibration


def _check_memory(model: PreTrainedModel, samples: Samples, tuning: Tuning) -> None:
    """Say what tuning takes, and refuse what the device does not hold."""
    modules = [m for _, m in linear_layers(model) if not isinstance(m, QuantLinear)]
    linear = [weight_of(module) for module in modules]
    size = sum(weight.numel() for weight in linear)
    moves = tuning.steps and tuning.trains == "weights"
    at_once = 1 if model.device.type == "cuda" else len(decoder_blocks(model))
    inner = sum(sum(weight.shape) for weight in linear) // len(decoder_blocks(model)) * at_once
    windows = samples.inputs["input_ids"] if isinstance(samples, Labelled) else samples
    tokens = min(tuning.batch, len(windows)) * windows.shape[1]
    parts = {
        "a float32 copy": 4 * sum(parameter.numel() for parameter in model.parameters()),
        "Adam and the best weights": 12 * size if moves else 0,
        "codes and decoded weights": 0
        if moves
        else 5 * size * at_once // len(decoder_blocks(model)),
        "activations": 4 * tokens * (2 * inner + 4 * model.config.vocab_size),
    }
    cure = "lower tuning.batch, or calibration.seqlen, or take a larger device"
    blocks.check_fits("tuning this model", parts, model.device, cure)
