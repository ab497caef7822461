"""Rows to measure: resolved, with what the store holds of their cells, and the job by which a worker measures them.

    ComposedRow, columns -> RunnableRow -> Job

A column is one metric of one evaluation; several columns may read the same evaluation, which is measured once. A job is
complete, so that the worker plans nothing. Every Hydra launcher hands overrides to its workers, and so it travels as
one of the row's own, `job='{...}'`, in JSON, and nothing is left behind on a disk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.specs import EvalSpec, ModelRun, RunSpec
from lutlab.experiment.artifact.columns import ColumnSpec
from lutlab.experiment.artifact.rows import ArtifactRow
from lutlab.experiment.plan.ids import (
    Resolved,
    cell_identity,
    inputs_id,
    of_this_machine,
    quantized_id,
)
from lutlab.experiment.plan.resolve import Files, look, resolve
from lutlab.experiment.row.row import Row
from lutlab.experiment.row.run import run_of
from lutlab.experiment.store.provenance import machine
from lutlab.experiment.store.record import Record, content_id
from lutlab.experiment.store.store import Store
from lutlab.quantizers.stored import STORED


@dataclass(frozen=True)
class ComposedRow:
    """One row of a request, composed.

    Attributes:
        line: its overrides, key and labels.
        row: Row that the overrides are composed to.
        baseline: in a sweep, its row in full precision.
    """

    line: ArtifactRow
    row: Row
    baseline: Row | None = None


@dataclass(frozen=True)
class PlannedCell:
    """One evaluation of one row. `record` is what the store holds of it; `missing` says why it cannot be run.

    `cell_id` is None where it is missing, and in mode=plan where files must be downloaded before it is known;
    `identity` is what it is the hash of (ids.py).
    """

    evaluation: EvalSpec
    cell_id: str | None
    record: Record | None = None
    missing: str = ""
    identity: Mapping[str, Any] | None = None

    @property
    def done(self) -> bool:
        """Measured already (a failed try is not)."""
        return self.record is not None and self.record.status == "done"

    @property
    def text_sha256(self) -> str | None:
        """Hash of the text that it was planned with."""
        return (self.identity or {}).get("text", {}).get("sha256")


@dataclass(frozen=True)
class PlannedRow:
    """One row: its run and its cells by column, planned here or read from what is published.

    Attributes:
        baseline: key of the same model's row in full precision, of the same sweep; empty where there is none.
    """

    key: str
    labels: Mapping[str, str]
    spec: RunSpec
    columns: Mapping[str, ColumnSpec]
    cells: Mapping[str, PlannedCell]
    baseline: str = ""


@dataclass(frozen=True, kw_only=True)
class RunnableRow(PlannedRow):
    """A row that can be run.

    Attributes:
        resolved: all that is known of its files.
        composed: the row of the request.
    """

    resolved: Resolved
    composed: ComposedRow

    @property
    def todo(self) -> dict[str, PlannedCell]:
        """Cells to measure by id: not done, runnable, each evaluation once."""
        return {c.cell_id: c for c in self.cells.values() if c.cell_id and not c.done}

    @property
    def alone(self) -> bool:
        """Whether it measures the machine itself, so that no other row may run at the same time."""
        return any(of_this_machine(cell.evaluation) for cell in self.todo.values())


def plan_row(
    composed: ComposedRow, columns: Mapping[str, ColumnSpec], files: Files, baseline: str = ""
) -> RunnableRow:
    """One row, resolved, its cells with their records.

    Raises:
        LutlabError: the row asks for what does not exist, or for a budget that no width meets; all texts or the
            model are missing; a stored record is damaged.
    """
    resolved = resolve(composed.row, columns, files)
    known = {evaluation: cell_identity(resolved, evaluation) for evaluation in resolved.runnable}
    cells = {}
    for name, evaluation in resolved.evaluations.items():
        missing = resolved.missing.get(name, "")
        identity = None if missing else known.get(evaluation)
        cell_id = None if identity is None else content_id(identity)
        cells[name] = PlannedCell(evaluation, cell_id, missing=missing, identity=identity)
    row = RunnableRow(
        composed.line.key,
        composed.line.labels,
        resolved.run,
        columns,
        cells,
        baseline,
        resolved=resolved,
        composed=composed,
    )
    return with_records(row, Store(composed.row.results))


def with_records(row: RunnableRow, store: Store) -> RunnableRow:
    """The row with what the store holds now.

    Raises:
        LutlabError: a stored record is damaged.
    """
    records = {i: store.load(i) for i in {c.cell_id for c in row.cells.values()} if i}
    cells = {
        name: dataclasses.replace(cell, record=records.get(cell.cell_id or ""))
        for name, cell in row.cells.items()
    }
    return dataclasses.replace(row, cells=cells)


def fresh_cells(rows: Sequence[RunnableRow]) -> list[dict[str, PlannedCell]]:
    """Cells to measure of each row, by id; a cell of several rows goes to the first of them."""
    seen: set[str] = set()
    fresh = []
    for row in rows:
        fresh.append({i: cell for i, cell in row.todo.items() if i not in seen})
        seen |= fresh[-1].keys()
    return fresh


def cell_name(run: RunSpec, evaluation: EvalSpec) -> str:
    """`opt-embedded-s rtn q=4 g=128: ppl on topics`, for the reader who waits for it."""
    text = f" on {evaluation.text.name}" if evaluation.text else ""
    budget = run.budget if isinstance(run, ModelRun) else None
    width = f"q={run.q} g={run.g}" if budget is None else f"budget={budget:g}"
    return f"{run.name} {run.method} {width}: {evaluation.evaluator}{text}"


# ---- jobs ----


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
    cells: tuple[PlannedCell, ...]
    results: Path
    stream: bool
    threads: int | None
    machine: dict[str, Any] | None = None
    quantized: Path | None = None
    untuned: Path | None = None
    inputs: Path | None = None
    calibration_sha256: str | None = None


_JOBS: TypeAdapter[Job] = TypeAdapter(Job)


def job_of(row: RunnableRow, cells: Mapping[str, PlannedCell], threads: int | None) -> Job:
    """The job that measures some cells of a row, by id; threads: number of torch's, None: its own choice."""
    speed = any(cell.evaluation in row.resolved.speeds for cell in cells.values())
    return dataclasses.replace(
        _job(row.resolved, dataclasses.replace(row.composed.row, threads=threads)),
        cells=tuple(dataclasses.replace(cell, record=None) for cell in cells.values()),
        machine=machine(row.spec.device, threads) if speed else None,
    )


def job_of_model(row: Row, files: Files) -> Job:
    """A job without cells: its model is loaded, quantized and stored like that of a table's row.

    Raises:
        LutlabError: q, g, device or an option out of range; no such model or text; or it is a product.
    """
    run = run_of(row)
    if not isinstance(run, ModelRun):
        raise LutlabError("model=product is one product of matrices, and no model: name a model")
    resolved = look(Resolved(run, {}), row.threads, files)
    job = _job(resolved, dataclasses.replace(row, stream=False))
    drives = registry.lookup("method", run.method).quantizes and run.method != STORED
    if job.quantized is None and drives and not run.model.packed:
        job = dataclasses.replace(job, quantized=row.results / "quantized" / quantized_id(resolved))
    return job


def _job(resolved: Resolved, row: Row) -> Job:
    """The job without cells. Blocks are kept of what is calibrated or streamed."""
    run, folder = resolved.run, row.results / "quantized"
    job = Job(run, (), row.results, row.stream, row.threads)
    if not isinstance(run, ModelRun):
        return job
    if run.calibration or row.stream:
        job = dataclasses.replace(job, quantized=folder / quantized_id(resolved))
    if run.tuning:
        plain = dataclasses.replace(resolved, run=dataclasses.replace(run, tuning=None))
        job = dataclasses.replace(job, untuned=folder / quantized_id(plain))
    if run.calibration:
        job = dataclasses.replace(
            job,
            inputs=row.results / "calibration" / inputs_id(resolved),
            calibration_sha256=resolved.texts.get(run.calibration.text),
        )
    return job


def override_of(job: Job) -> str:
    """The job as an override; quotes and dollars, which mean something to Hydra, are escaped as JSON does."""
    text = _JOBS.dump_json(job).decode()
    return "job='{}'".format(text.replace("'", "\\u0027").replace("$", "\\u0024"))


def job_from(text: str) -> Job:
    """The job that `override_of` wrote."""
    return _JOBS.validate_json(text)
