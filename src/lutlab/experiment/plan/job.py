"""A job: one row as a worker measures it, complete, so that the worker plans nothing. It travels as JSON.

The JSON is one override, `job='{...}'`, of the row's own: every Hydra launcher hands overrides to its workers, and
nothing is left behind on a disk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from lutlab.errors import LutlabError
from lutlab.experiment.plan.ids import Resolved, inputs_id, quantized_id
from lutlab.experiment.plan.plan import PlannedCell, PlannedRow
from lutlab.experiment.plan.resolve import Files, look
from lutlab.experiment.row.row import Row
from lutlab.experiment.row.run import run_of
from lutlab.experiment.store.provenance import machine
from lutlab.specs import EvalSpec, ModelRun, RunSpec


@dataclass(frozen=True)
class JobCell:
    """A cell to measure, with what its id is the hash of and the hash of the text that it was planned with."""

    cell_id: str
    identity: dict[str, Any]
    evaluation: EvalSpec
    text_sha256: str | None


@dataclass(frozen=True)
class Job:
    """Work of one row for a worker, with paths, hashes and threads.

    Attributes:
        run: the model to quantize, or the product.
        cells: cells to measure.
        results: folder of the store.
        stream: whether blocks stay on disk until they are opened.
        threads: number of torch's threads; None: its own choice.
        machine: machine that a speed or a memory peak is planned for; None where none is measured.
        quantized: folder of the kept blocks; None keeps none.
        untuned: folder of the kept blocks that a tuned row starts from; None: it has no tuning.
        inputs: folder of what calibration sees of the full-precision model; None without calibration.
        calibration_sha256: hash of the calibration text.
    """

    run: RunSpec
    cells: tuple[JobCell, ...]
    results: Path
    stream: bool
    threads: int | None
    machine: dict[str, Any] | None
    quantized: Path | None
    untuned: Path | None
    inputs: Path | None
    calibration_sha256: str | None


_JOBS: TypeAdapter[Job] = TypeAdapter(Job)


def job_of(
    row: PlannedRow, cells: Mapping[str, PlannedCell], asked: Row, threads: int | None
) -> Job:
    """The job that measures some cells of a row.

    Args:
        row: the planned row.
        cells: its cells to measure, by id.
        asked: the row on the command line.
        threads: number of torch's threads; None: its own choice.
    """
    texts = row.resolved.texts
    speed = any(cell.evaluation in row.resolved.speeds for cell in cells.values())
    measured = tuple(
        JobCell(i, dict(c.identity), c.evaluation, texts.get(c.evaluation.text))
        for i, c in cells.items()
    )
    known = machine(row.spec.device, threads) if speed else None
    return _job(row.resolved, measured, asked, threads, known, keep=asked.stream)


def job_of_model(asked: Row, files: Files) -> Job:
    """A job without cells: its model is loaded, quantized and stored like that of a table's row.

    Raises:
        LutlabError: q, g, device or an option out of range; no such model or text; or it is a product.
    """
    run = run_of(asked)
    if not isinstance(run, ModelRun):
        raise LutlabError("model=product is one product of matrices, and no model: name a model")
    row = look(Resolved(run, {}), asked.threads, files)
    return dataclasses.replace(_job(row, (), asked, asked.threads, None), stream=False)


def _job(
    row: Resolved,
    cells: tuple[JobCell, ...],
    asked: Row,
    threads: int | None,
    known: dict[str, Any] | None,
    *,
    keep: bool = False,
) -> Job:
    run, folder = row.run, asked.results
    is_model = isinstance(run, ModelRun)
    calibration = run.calibration if is_model else None
    untuned = dataclasses.replace(run, tuning=None) if is_model and run.tuning else None
    quantized = folder / "quantized"
    return Job(
        run=run,
        cells=cells,
        results=folder,
        stream=asked.stream,
        threads=threads,
        machine=known,
        quantized=quantized / quantized_id(row) if calibration or (keep and is_model) else None,
        untuned=quantized / quantized_id(dataclasses.replace(row, run=untuned))
        if untuned
        else None,
        inputs=folder / "calibration" / inputs_id(row) if calibration else None,
        calibration_sha256=row.texts.get(calibration.text) if calibration else None,
    )


def override_of(job: Job) -> str:
    """The job as an override; quotes and dollars, which mean something to Hydra, are escaped as JSON does."""
    text = _JOBS.dump_json(job).decode()
    return "job='{}'".format(text.replace("'", "\\u0027").replace("$", "\\u0024"))


def job_from(text: str) -> Job:
    """The job that `override_of` wrote."""
    return _JOBS.validate_json(text)
