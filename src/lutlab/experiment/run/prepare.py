"""A job's model: loaded, quantized, ready for every evaluator of the row."""

from __future__ import annotations

import time
from typing import Any

from lutlab.compress.widths import widths
from lutlab.data import calibration_inputs
from lutlab.data.pairs import labelled_pairs
from lutlab.errors import LutlabError
from lutlab.experiment.plan.job import Job
from lutlab.experiment.plan.resolve import Files
from lutlab.experiment.run.progress import telling
from lutlab.experiment.store.store import Store
from lutlab.lazy import torch
from lutlab.models.contract import CLASSIFIES
from lutlab.models.families import evaluation_seqlen, kinds, task_of
from lutlab.models.load import load_model
from lutlab.quantizers.contract import make_method
from lutlab.quantizers.stored import STORED
from lutlab.specs import CalibrationSpec, ModelRun, Subject, Text

Prepared = tuple[
    Subject, dict[str, Any]
]  # a model, quantized; facts that say how, for every record of it


def prepare(job: Job, files: Files) -> Prepared:
    """Load and quantize. Calibrated and streamed models are kept block by block, so that nothing is done twice.

    Args:
        job: the row; its cells are not looked at.
        files: the texts that this process has read.
    """
    from lutlab.compress.driver import quantize_model
    from lutlab.compress.kept_blocks import BlockStore, RestStore, StatsStore, TuningStore
    from lutlab.tuning.stages import put

    spec = job.run
    if not isinstance(spec, ModelRun):  # of a product, its evaluator draws the weights
        return Subject(None, None, (), None, 0, spec), {}
    if spec.method == STORED:
        return _stored(spec)
    if spec.model.packed:
        return _drawn(spec)
    loaded = load_model(
        spec.model, getattr(torch, spec.dtype), spec.device, spec.seed, stream=job.stream
    )
    model, seqlen = loaded.model, evaluation_seqlen(loaded.model.config)
    began = time.monotonic()
    kept = BlockStore(job.quantized) if job.quantized else None
    seen = StatsStore(job.inputs) if job.inputs else None
    quantizer = make_method(spec.method, **dict(spec.options))
    task = task_of(model)
    windows = spec.calibration and _windows(job, files, loaded.tokenizer, task, seqlen)
    facts: dict[str, Any] = {}
    if spec.calibration and (differs := files.text(spec.calibration.text).differs):
        facts["calibration_text_differs"] = differs
    if spec.budget is None:
        chosen = widths(kinds(model.config), spec.q, spec.g, spec.sublayers, spec.skip, spec.layers)
    else:
        from lutlab.compress.search import search_widths

        chosen, facts["budget"] = search_widths(
            model, quantizer, spec.candidates, spec.budget, windows, skip=spec.skip, seen=seen
        )
    packed = None
    # A tuned model has calibration text, and so its blocks are kept; all of them are of one tuning.
    states = TuningStore(job.quantized) if spec.tuning else None
    more = task == CLASSIFIES or not quantizer.quantizes  # is tuned than quantized layers
    rest = RestStore(job.quantized) if spec.tuning and more else None
    finished = rest is None or rest.has(0)
    if spec.tuning and not (finished and all(map(kept.has, range(len(loaded.blocks))))):
        kept.forget_from(0)
        samples = _labelled(job, files, loaded.tokenizer, seqlen) if task == CLASSIFIES else windows
        packed, parameters = _tuned(job, model, quantizer, chosen, samples, seen, states)
        if rest:
            rest.save(parameters)
    if rest:
        put(model, rest.load())
    layers = quantize_model(
        model, quantizer, chosen, windows, blocks=loaded.blocks, kept=kept, seen=seen, packed=packed
    )
    if states:
        states.forget()  # what they led to is in the blocks
        if said := states.facts():
            facts["tuning"] = said
    if job.stream:
        loaded.blocks.serve(kept.serve)
    if widened := [layer.name for layer in layers if layer.widened]:
        facts["float32_coefficients"] = widened
    facts["quantize_seconds"] = round(time.monotonic() - began, 3)
    return Subject(model, loaded.tokenizer, layers, None, seqlen, spec), facts


def _tuned(
    job: Job, model: Any, quantizer: Any, chosen: Any, samples: Any, seen: Any, states: Any
) -> tuple[Any, Any]:
    """A tuned model's layers and parameters; how they came about stays in the store."""
    from lutlab.compress.kept_blocks import BlockStore
    from lutlab.tuning.stages import tune

    with telling(Store(job.results), [cell.cell_id for cell in job.cells]) as tell:
        layers, parameters, facts = tune(
            *(model, quantizer, chosen, samples, job.run.tuning),
            seen=seen,
            untuned=BlockStore(job.untuned),
            kept=states,
            report=tell,
        )
    states.note(facts)
    return layers, parameters


def _stored(spec: ModelRun) -> Prepared:
    """A model that is quantized already."""
    from lutlab.checkpoint.stored import load_stored

    loaded, layers, facts = load_stored(spec.model, getattr(torch, spec.dtype), spec.device)
    seqlen = evaluation_seqlen(loaded.model.config)
    return Subject(loaded.model, loaded.tokenizer, layers, None, seqlen, spec), facts


def _drawn(spec: ModelRun) -> Prepared:
    """A synthetic model whose layers are drawn as they are stored."""
    from lutlab.compress.synthetic import load_packed

    began = time.monotonic()
    loaded, layers = load_packed(spec)
    facts = {"weights": "drawn as stored", "draw_seconds": round(time.monotonic() - began, 3)}
    seqlen = evaluation_seqlen(loaded.model.config)
    return Subject(loaded.model, loaded.tokenizer, layers, None, seqlen, spec), facts


def _windows(job: Job, files: Files, tokenizer: Any, task: str, seqlen: int) -> Any:
    """Calibration windows of a job."""
    text, chosen = _calibration(job, files, tokenizer)
    return calibration_inputs(
        task, text, tokenizer, chosen.samples, chosen.seqlen or seqlen, chosen.seed
    )


def _labelled(job: Job, files: Files, tokenizer: Any, seqlen: int) -> Any:
    """The same pairs with their labels, which tuning trains on."""
    from lutlab.tuning.losses import Labelled

    text, chosen = _calibration(job, files, tokenizer)
    return Labelled(
        *labelled_pairs(text, tokenizer, chosen.samples, chosen.seqlen or seqlen, chosen.seed)
    )


def _calibration(job: Job, files: Files, tokenizer: Any) -> tuple[Text, CalibrationSpec]:
    """The text to calibrate on, and how it is drawn from."""
    if tokenizer is None:
        raise LutlabError(
            f"{job.run.name} came without a tokenizer, so it cannot be calibrated on a text"
        )
    chosen = job.run.calibration
    return files.planned_text(chosen.text, job.calibration_sha256), chosen
