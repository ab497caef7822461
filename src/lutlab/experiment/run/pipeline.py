"""The user's process, which sees all stages: settings -> plan -> jobs -> a launcher's workers -> compare -> report."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import remove_leftovers
from lutlab.base.lazy import torch
from lutlab.experiment.plan import free, plan
from lutlab.experiment.plan.cost import History
from lutlab.experiment.plan.plan import ComposedRow, PlannedCell, RunnableRow
from lutlab.experiment.plan.resolve import Files
from lutlab.experiment.records import dashboard
from lutlab.experiment.report import compare, print_table, write_report
from lutlab.experiment.report.planned import print_plan
from lutlab.experiment.row import sweeping
from lutlab.experiment.row.row import Mode, Row
from lutlab.experiment.row.spelling import table_command
from lutlab.experiment.run import progress
from lutlab.experiment.run.ending import RowsFailed, Terminated
from lutlab.experiment.run.tracked import runs_reported
from lutlab.experiment.run.tracking import Tracker, fill, open_tracker
from lutlab.experiment.store.store import Store

log = logging.getLogger(__name__)
Compose = Callable[[Sequence[str]], Row]
Launch = Callable[[Sequence[Sequence[str]]], list[Any]]


def sweep(arguments: Sequence[str], compose: Compose, launch: Launch) -> None:
    """Run what a command line asks for: every artifact, or one free sweep.

    Raises:
        LutlabError: a mistake or a limit the user can act on; nothing measured is lost.
        RowsFailed: some rows failed, after everything else was measured and reported.
    """
    failed, files = 0, Files()
    requests = sweeping.parse(arguments)
    for request in requests:
        common = compose(request.arguments)
        if common.mode is Mode.dashboard:
            _draw(request, common)
            continue
        if obstacle := sweeping.without_rows(request, common.scale):
            if len(requests) == 1:
                raise LutlabError(obstacle)
            log.warning("left out: %s", obstacle)
            continue
        if common.mode is Mode.run:
            store = Store(common.results)
            store.check_writable()
            remove_leftovers(common.results, "**/.*")
        logger = common.logger
        tracker = open_tracker(logger.mode, common.results / "wandb", logger.project)
        if common.mode is Mode.track:
            fill(tracker, logger, common.results, request, Console())
            continue
        planned, folder = _plan(request, common, compose, files)
        if common.mode is Mode.plan:
            print_plan(request.artifact, planned, common.results, Console(), files)
            continue
        if common.mode is Mode.run:
            try:
                _measure(planned, common, launch, files)
            except (KeyboardInterrupt, Terminated):
                _report(request, _with_records(planned, common), common, folder, None)
                Console().print(
                    f"go on: {_command(request, common)}", highlight=False, soft_wrap=True
                )
                raise
            planned = _with_records(planned, common)
        failed += _report(request, planned, common, folder, tracker)
    if failed:
        raise RowsFailed(f"{failed} cells failed; the table says why; run again to try them again")


def _with_records(planned: Sequence[RunnableRow], common: Row) -> list[RunnableRow]:
    store = Store(common.results)
    return [plan.with_records(row, store) for row in planned]


def _command(request: sweeping.Request, common: Row) -> str:
    """The command that gives the table again, in the same folder."""
    name = [f"name={common.name}"] if common.name else []
    return table_command(request.artifact.name if request.artifact else "", [*request.typed, *name])


def _draw(request: sweeping.Request, common: Row) -> None:
    """mode=dashboard: one page of all that was measured, whichever table it stands in."""
    if request.artifact or request.sweeps or request.of_methods:
        raise LutlabError(
            "mode=dashboard draws all that was measured, and its page has filters: leave out +exp and swept values"
        )
    page = common.dashboard
    folders = [Path(folder) for folder in page.of or [common.results]]
    if not page.tracked:
        cells, claims = dashboard.of_records(*folders)
        source = ", ".join(map(str, folders))
    else:
        cells, claims, source = dashboard.of_tracked(page.tracked), [], str(page.tracked)
    path = page.output or common.results / "dashboard.html"
    dashboard.write(path, cells, claims, source)
    size = path.stat().st_size / 1e6
    Console().print(
        f"{len(cells)} cells, {len(claims)} claims: {path} ({size:.1f} MB), which any browser opens",
        highlight=False,
        soft_wrap=True,
    )


def _plan(
    request: sweeping.Request, common: Row, compose: Compose, files: Files
) -> tuple[list[RunnableRow], Path]:
    """Planned rows, and the folder of their report."""
    rows = [ComposedRow(r, compose(r.overrides)) for r in sweeping.rows_of(request, common)]
    if request.artifact is None:
        planned = free.plan_sweep(free.beside_full_precision(rows, compose), files)
        return planned, free.folder_of(planned, common)
    if common.name is not None:
        raise LutlabError(f"name={common.name} is of a sweep of your own: drop it, or +exp")
    artifact = request.artifact
    planned = [plan.plan_row(row, artifact.columns_of(row.line), files) for row in rows]
    return planned, common.results / artifact.name / sweeping.variant(request, common)


def _measure(rows: Sequence[RunnableRow], common: Row, launch: Launch, files: Files) -> None:
    """Launch a job for each row that misses a cell and that `alone` selects; a cell that several rows ask for is
    measured once.

    Rows that measure the machine follow one at a time, with as many threads as this process has.
    """
    together: list[list[str]] = []
    alone: list[list[str]] = []
    history = History.of(Store(common.results).all().values())
    waiting: dict[str, tuple[str, float]] = {}
    for row, cells in zip(rows, plan.fresh_cells(rows), strict=True):
        if not cells or common.alone not in (None, row.alone):
            continue
        threads = row.composed.row.threads or (torch.get_num_threads() if row.alone else None)
        job = plan.job_of(row, cells, threads)
        jobs = alone if row.alone else together
        jobs.append([*row.composed.line.overrides, plan.override_of(job)])
        waiting |= {
            i: (plan.cell_name(row.spec, c.evaluation), _weight(history, row, c, files))
            for i, c in cells.items()
        }
    if waiting:
        with progress.watch(Store(common.results), waiting):
            for jobs in filter(None, [together, *([job] for job in alone)]):
                launch(jobs)


def _weight(history: History, row: RunnableRow, cell: PlannedCell, files: Files) -> float:
    """The cell's seconds, for its share of the whole; 1 where they are unknown."""
    try:
        return history.cell_seconds(row.spec, cell.evaluation, files) or 1.0
    except LutlabError:
        # The model's files: the row fails by itself when it is loaded, and the others go on.
        return 1.0


def _report(
    request: sweeping.Request,
    rows: Sequence[RunnableRow],
    common: Row,
    folder: Path,
    tracker: Tracker | None,
) -> int:
    """Render the table, print it, track it; returns how many cells failed."""
    scale, artifact = common.scale, request.artifact
    command = _command(request, common)
    if artifact:
        table = compare.tabulate(artifact, rows, scale)
        table = dataclasses.replace(table, command=command)
    else:
        table = compare.tabulate_sweep(folder.name, rows, scale, command)
    console = Console()
    remove_leftovers(folder)
    paths = write_report(table, folder)
    if not artifact:
        free.mark(folder, rows, command)
    print_table(table, console)
    console.print(
        f"written to {folder}: {', '.join(p.name for p in paths)}", highlight=False, soft_wrap=True
    )
    if tracker:
        cells = [cell for row in rows for cell in row.cells.values()]
        records = {c.cell_id: c.record for c in cells if c.cell_id and c.record}
        runs = runs_reported(table, folder, records, common.logger.project)
        tracker.log(f"{table.artifact} {folder.name}", runs)
    return sum(c.verdict in ("failed", "OOM") for row in table.rows for c in row.cells.values())
