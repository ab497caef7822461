"""A launcher's worker: executes one job, and plans nothing. Each cell is stored as soon as it is measured."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any

from omegaconf import DictConfig

from lutlab import registry
from lutlab.compress.widths import widths
from lutlab.data import calibration_inputs
from lutlab.data.pairs import labelled_pairs
from lutlab.errors import LutlabError
from lutlab.experiment.plan.plan import Job, PlannedCell, cell_name, job_from
from lutlab.experiment.plan.resolve import Files
from lutlab.experiment.row.spelling import to_json
from lutlab.experiment.run import additions
from lutlab.experiment.run.progress import telling
from lutlab.experiment.store.provenance import environment, machine
from lutlab.experiment.store.record import Record
from lutlab.experiment.store.store import Store
from lutlab.kernels import ran
from lutlab.lazy import torch
from lutlab.models.contract import CLASSIFIES
from lutlab.models.families import evaluation_seqlen, kinds, task_of
from lutlab.models.load import load_model
from lutlab.quantizers.contract import make_method
from lutlab.quantizers.stored import STORED
from lutlab.specs import CalibrationSpec, Measurement, ModelRun, Subject, Text

log = logging.getLogger(__name__)
_FILES = Files()  # a process may execute the jobs of many rows
# A model, quantized, and facts that say how, for every record of it.
Prepared = tuple[Subject, dict[str, Any]]


def measure_row(config: DictConfig) -> None:
    """Hydra's task: execute the job that the row's overrides carry.

    Raises:
        LutlabError: there is none, as with hydra.mode=RUN; or as execute.
    """
    if not config.job:
        raise LutlabError("a row runs as a job of the sweeper: drop hydra.mode=RUN")
    additions.add(config.plugins, config.experiments)  # this process may be another than the user's
    execute(job_from(config.job))


def execute(job: Job) -> None:
    """Measure the cells of a job.

    A failure is recorded in every cell it leaves unmeasured; only errors of the store itself are raised.
    """
    if job.threads:
        torch.set_num_threads(job.threads)
    environment()  # noted now: the checkout may move on while this runs
    store = Store(job.results)
    began = time.monotonic()
    try:
        _check_machine(job)
        prepared = prepare(job, _FILES)
    except Exception as error:
        for cell in job.cells:
            store.save(_failure(job, cell, error, time.monotonic() - began))
        return
    for cell in job.cells:
        store.save(_measure(job, cell, prepared))


def _check_machine(job: Job) -> None:
    """The ids of speeds name the machine that they were planned for."""
    if job.machine is None:
        return
    here = machine(job.run.device, job.threads)
    differing = [key for key in here if here[key] != job.machine.get(key)]
    if differing:
        key = differing[0]
        raise LutlabError(
            f"this row measures the machine that it was planned on, {key} {job.machine.get(key)}, and this worker has "
            f"{key} {here[key]}: run the command there, without a launcher"
        )


def _measure(job: Job, cell: PlannedCell, prepared: Prepared) -> Record:
    began = time.monotonic()
    (subject, facts), evaluation = prepared, cell.evaluation
    try:
        text = _FILES.planned_text(evaluation.text, cell.text_sha256) if evaluation.text else None
        if text and subject.tokenizer is None:
            raise LutlabError(
                f"{job.run.name} came without a tokenizer, so no text can be evaluated on it"
            )
        ran.take()  # of calibration, or of the evaluator before
        evaluator = registry.lookup("evaluator", evaluation.evaluator)(**dict(evaluation.options))
        measurement = evaluator.measure(dataclasses.replace(subject, text=text))
    except Exception as error:
        return _failure(job, cell, error, time.monotonic() - began)
    kernels = ran.take()
    facts = facts | ({"kernel": kernels} if kernels else {}) | measurement.facts
    if text:
        facts |= {"text_sha256": text.sha256, "text_origin": text.origin}
        facts |= {"text_differs": text.differs} if text.differs else {}
    if measurement.errors:
        facts |= {"standard_error": dict(measurement.errors)}
    measurement = dataclasses.replace(measurement, facts=facts)
    return _record(job, cell, measurement, "done", time.monotonic() - began)


def _failure(job: Job, cell: PlannedCell, error: Exception, seconds: float) -> Record:
    out_of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
    if not isinstance(error, LutlabError) and not out_of_memory:
        name = cell_name(job.run, cell.evaluation)
        log.error("%s failed", name, exc_info=error)  # not the user's mistake: show where
    reason = f"{error}" if isinstance(error, LutlabError) else f"{type(error).__name__}: {error}"
    nothing = Measurement(values={}, n=0)
    return _record(job, cell, nothing, "oom" if out_of_memory else "failed", seconds, reason)


def _record(
    job: Job,
    cell: PlannedCell,
    measurement: Measurement,
    status: str,
    seconds: float,
    reason: str = "",
) -> Record:
    run, evaluation = job.run, cell.evaluation
    return Record(
        cell_id=cell.cell_id,
        status=status,
        run=to_json(run),
        evaluation=to_json(evaluation),
        values=dict(measurement.values),
        n=measurement.n,
        samples=measurement.samples,
        facts=dict(measurement.facts),
        provenance=environment()
        | {
            "threads": torch.get_num_threads(),
            "identity": cell.identity,
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
        seconds=round(seconds, 3),
        reason=reason,
    )


# ---- the model of a row: loaded, quantized, ready for every evaluator ----


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
