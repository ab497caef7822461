"""A launcher's worker: executes one job, and plans nothing. Each cell is stored as soon as it is measured."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any, cast

from omegaconf import DictConfig

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch
from lutlab.base.progress import heard
from lutlab.base.specs import EvalSpec, Measurement, ModelRun, ProductRun, Subject, Text
from lutlab.experiment.plan.plan import Job, PlannedCell, cell_name, job_from
from lutlab.experiment.plan.resolve import Files
from lutlab.experiment.row.spelling import to_json
from lutlab.experiment.run import additions
from lutlab.experiment.run.prepared import prepare
from lutlab.experiment.run.progress import telling
from lutlab.experiment.store.provenance import environment, machine
from lutlab.experiment.store.record import Record
from lutlab.experiment.store.store import Store
from lutlab.kernels import ran

log = logging.getLogger(__name__)
_FILES = Files()  # a process may execute the jobs of many rows
# A model, quantized, or a product, whose evaluator draws the weights; and facts that say how.
_Prepared = tuple[Subject | ProductRun, dict[str, Any]]


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
    began, run = time.monotonic(), job.run
    prepared: _Prepared
    with telling(store, [cell.cell_id for cell in job.cells if cell.cell_id]) as tell, heard(tell):
        try:
            _check_machine(job)
            prepared = prepare(run, job, _FILES) if isinstance(run, ModelRun) else (run, {})
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
    facts = machine(job.run.device, job.threads)
    if differing := [key for key in facts if facts[key] != job.machine.get(key)]:
        key = differing[0]
        raise LutlabError(
            f"this row measures the machine that it was planned on, {key} {job.machine.get(key)}, and this worker has "
            f"{key} {facts[key]}: run the command there, without a launcher"
        )


def _measure(job: Job, cell: PlannedCell, prepared: _Prepared) -> Record:
    began = time.monotonic()
    (subject, facts), evaluation = prepared, cell.evaluation
    try:
        text = _FILES.planned_text(evaluation.text, cell.text_sha256) if evaluation.text else None
        ran.take()  # of calibration, or of the evaluator before
        evaluator = registry.lookup("evaluator", evaluation.evaluator)(**dict(evaluation.options))
        if isinstance(subject, Subject):
            subject = _reading(subject, text, evaluation)
        measurement = evaluator.measure(subject)
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


def _reading(subject: Subject, text: Text | None, evaluation: EvalSpec) -> Subject:
    """The subject with an evaluation's text and window."""
    if text and subject.tokenizer is None:
        raise LutlabError(
            f"{subject.run.name} came without a tokenizer, so no text can be evaluated on it"
        )
    window = evaluation.text and evaluation.text.window
    return dataclasses.replace(subject, text=text, seqlen=window or subject.seqlen)


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
        cell_id=cast("str", cell.cell_id),  # a job is of cells that have one
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
