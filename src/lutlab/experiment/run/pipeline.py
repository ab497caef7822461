"""The user's process, which sees all stages: settings -> plan -> jobs -> a launcher's workers -> compare -> report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from lutlab.experiment.artifact.columns import free_columns
from lutlab.experiment.artifact.rows import ArtifactRow
from lutlab.experiment.plan import plan, sweeping
from lutlab.experiment.plan.job import Job, job_of, override_of
from lutlab.experiment.plan.plan import PlannedCell, PlannedRow
from lutlab.experiment.plan.resolve import resolve
from lutlab.experiment.plan.schema import Mode
from lutlab.experiment.plan.settings import Settings
from lutlab.experiment.report import compare
from lutlab.experiment.run import track
from lutlab.experiment.run.cli import RowsFailed
from lutlab.experiment.run.tracking import Tracker, open_tracker
from lutlab.experiment.store.provenance import environment
from lutlab.experiment.store.store import Store

Compose = Callable[[Sequence[str]], Settings]
Launch = Callable[[Sequence[Sequence[str]]], list[Any]]


@dataclass(frozen=True)
class AskedRow:
    """One row of a request: its overrides and what they are composed to."""

    row: ArtifactRow
    settings: Settings


def sweep(arguments: Sequence[str], compose: Compose, launch: Launch) -> None:
    """Run what a command line asks for: every artifact, or one free sweep.

    Raises:
        LutlabError: a mistake or a limit the user can act on; nothing measured is lost.
        RowsFailed: some rows failed, after everything else was measured and reported.
    """
    failed = 0
    for request in sweeping.parse(arguments):
        common = compose(request.arguments)
        if common.mode is Mode.run:
            Store(common.results).check_writable()
        logger = common.logger
        tracker = open_tracker(logger.mode, common.results / "wandb", logger.project)
        if common.mode is Mode.track:
            track.fill(tracker, logger, common.results, request, Console())
            continue
        rows = sweeping.rows_of(request, common.scale, common.rows)
        asked = [AskedRow(row, compose(row.overrides)) for row in rows]
        planned = _plan(request, asked)
        if common.mode is Mode.plan:
            from lutlab.experiment.plan.view import print_plan

            print_plan(request.artifact, planned, common.results, Console())
            continue
        if common.mode is Mode.run:
            _measure(planned, asked, common, launch)
            store = Store(common.results)
            planned = [plan.with_records(row, store) for row in planned]
        failed += _report(request, planned, common, tracker)
    if failed:
        raise RowsFailed(f"{failed} cells failed; the table says why; run again to try them again")


def _plan(request: sweeping.Request, asked: Sequence[AskedRow]) -> list[PlannedRow]:
    artifact, planned = request.artifact, []
    show_options = any(one.settings.evaluators for one in asked)
    for one in asked:
        settings = one.settings
        columns = artifact.columns_of(one.row) if artifact else free_columns(settings.evaluate)
        resolved = resolve(settings, columns)
        key, labels = one.row.key, one.row.labels
        if artifact is None:
            labels = plan.free_labels(resolved.run, settings, show_options)
            key = "/".join(labels.values())
        store = Store(settings.results)
        planned.append(plan.plan_row(key, labels, columns, resolved, settings.threads, store))
    return planned


def _measure(
    rows: Sequence[PlannedRow], asked: Sequence[AskedRow], common: Settings, launch: Launch
) -> None:
    """Launch a job for each row that misses a cell and that `alone` selects; a cell that several rows ask for is
    measured once.

    Rows that measure the machine follow one at a time, with as many threads as this process has.
    """
    together, alone = [], []
    waiting: dict[str, tuple[str, float]] = {}
    for row, cells, one in zip(rows, plan.fresh_cells(rows), asked, strict=True):
        if not cells or common.alone not in (None, row.alone):
            continue
        job = _job(row, cells, one.settings)
        chosen = alone if row.alone else together
        chosen.append([*one.row.overrides, override_of(job)])
        waiting |= {
            i: (plan.cell_name(row.spec, c.evaluation), _weight(row, c)) for i, c in cells.items()
        }
    if waiting:
        from lutlab.experiment.run import progress

        with progress.watch(Store(common.results), waiting):
            for jobs in filter(None, [together, *([job] for job in alone)]):
                launch(jobs)


def _job(row: PlannedRow, cells: dict[str, PlannedCell], settings: Settings) -> Job:
    import torch

    threads = torch.get_num_threads() if row.alone and not settings.threads else settings.threads
    return job_of(row, cells, settings, threads)


def _weight(row: PlannedRow, cell: PlannedCell) -> float:
    from lutlab.experiment.plan import cost

    return cost.predict(row.spec, cell).seconds


def _report(
    request: sweeping.Request, rows: Sequence[PlannedRow], common: Settings, tracker: Tracker
) -> int:
    """Render the table, print it, track it; returns how many cells failed."""
    from lutlab.experiment.report import print_table, write_report

    artifact = request.artifact
    table = compare.tabulate(artifact, rows, common.scale, environment())
    name = artifact.name if artifact else "sweep"
    folder = common.results / name / sweeping.variant(request, common)
    console = Console()
    paths = write_report(table, folder)
    print_table(table, console)
    console.print(
        f"written to {folder}: {', '.join(p.name for p in paths)}", highlight=False, soft_wrap=True
    )
    records = {c.cell_id: c.record for row in rows for c in row.cells.values() if c.record}
    track.copy(tracker, common.logger.project, table, folder, records)
    return sum(c.verdict in ("failed", "OOM") for row in table.rows for c in row.cells.values())
