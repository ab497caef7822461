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

from lutlab.experiment.plan.ids import inputs_id, quantized_id
from lutlab.experiment.plan.plan import PlannedCell, PlannedRow, of_this_machine
from lutlab.experiment.plan.resolve import cached_text
from lutlab.experiment.plan.settings import Settings
from lutlab.experiment.store.machine import machine
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
    """All that a worker needs.

    Attributes:
        run: a model to quantize, or a product.
        cells: to measure.
        results: folder of the store.
        stream: whether blocks stay on disk until they are opened.
        threads: of torch; None: its own choice.
        machine: that a speed or a memory peak is planned for; None where none is measured.
        quantized: folder of the kept blocks; None keeps none.
        untuned: of a tuned row, folder of the kept blocks that tuning starts from; None: it has no tuning.
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
    row: PlannedRow,
    cells: Mapping[str, PlannedCell],
    settings: Settings,
    threads: int | None,
) -> Job:
    """The job that measures some cells of a row.

    Args:
        row: as planned.
        cells: its cells to measure, by id.
        settings: of the row.
        threads: of torch.
    """
    run, folder = row.spec, settings.results
    calibration = run.calibration if isinstance(run, ModelRun) else None
    keep = calibration or (settings.stream and isinstance(run, ModelRun))
    speed = any(of_this_machine(cell.evaluation) for cell in cells.values())
    return Job(
        run=run,
        cells=tuple(
            JobCell(i, dict(c.identity), c.evaluation, row.texts.get(c.evaluation.text))
            for i, c in cells.items()
        ),
        results=folder,
        stream=settings.stream,
        threads=threads,
        machine=machine(run.device, threads) if speed else None,
        quantized=folder / "quantized" / quantized_id(run) if keep else None,
        untuned=_untuned(run, folder),
        inputs=folder / "calibration" / inputs_id(run) if calibration else None,
        calibration_sha256=row.texts.get(calibration.text) if calibration else None,
    )


def job_of_model(run: ModelRun, settings: Settings) -> Job:
    """A job without cells: a model that is loaded and quantized, and kept as that of a table's row is."""
    calibration = run.calibration
    return Job(
        run=run,
        cells=(),
        results=settings.results,
        stream=False,
        threads=settings.threads,
        machine=None,
        quantized=settings.results / "quantized" / quantized_id(run) if calibration else None,
        untuned=_untuned(run, settings.results),
        inputs=settings.results / "calibration" / inputs_id(run) if calibration else None,
        calibration_sha256=cached_text(calibration.text).sha256 if calibration else None,
    )


def _untuned(run: RunSpec, results: Path) -> Path | None:
    """Where the same row without tuning keeps its blocks."""
    if not isinstance(run, ModelRun) or not run.tuning:
        return None
    return results / "quantized" / quantized_id(dataclasses.replace(run, tuning=None))


def override_of(job: Job) -> str:
    """The job as an override; quotes and dollars, which mean something to Hydra, are escaped as JSON does."""
    text = _JOBS.dump_json(job).decode()
    return "job='{}'".format(text.replace("'", "\\u0027").replace("$", "\\u0024"))


def job_from(text: str) -> Job:
    """The job that `override_of` wrote."""
    return _JOBS.validate_json(text)
