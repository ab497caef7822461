"""Tables into Weights & Biases: each when it is measured, or, with `mode=track`, from tables and records alone.

    python run.py mode=track                                        all of results/
    python run.py mode=track logger.records=results/published       all that is published, of every machine
    python run.py +exp=table4 mode=track logger=online              all variants of one artifact

mode=track measures nothing and reads neither models nor texts. Cells without a record are named.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lutlab.errors import LutlabError
from lutlab.experiment.artifact.catalog import artifacts
from lutlab.experiment.artifact.outcome import ResultTable
from lutlab.experiment.records.frame import Shelf, shelves
from lutlab.experiment.report import figure
from lutlab.experiment.report.published import Published
from lutlab.experiment.row.row import Logger
from lutlab.experiment.row.sweeping import Request
from lutlab.experiment.run.tracked import TrackedRun, runs_of, shelf_of
from lutlab.experiment.run.tracking import NullTracker, Tracker
from lutlab.experiment.store.record import Record

if TYPE_CHECKING:
    from rich.console import Console

# All that mode=track reads.
_READ = ("mode", "logger", "results", "hydra", "plugins", "experiments")


def copy(
    tracker: Tracker,
    project: str,
    table: ResultTable,
    folder: Path,
    records: Mapping[str, Record],
) -> None:
    """Copy a table that was just reported, and its rows: those measured now and those measured before.

    Args:
        tracker: tracker of the command line.
        project: project of Weights & Biases.
        table: the table that was reported.
        folder: folder of its report, which has its figure.
        records: cell id -> record.
    """

    def runs() -> Iterator[TrackedRun]:
        png = (folder / "figure.png").read_bytes()
        yield from runs_of(shelf_of(table, folder, records), project, table, png)

    tracker.log(f"{table.artifact} {folder.name}", runs())


def fill(
    tracker: Tracker,
    logger: Logger,
    results: Path,
    request: Request,
    console: Console,
) -> None:
    """mode=track: copy what tables and records hold; say what they lack.

    Args:
        tracker: tracker of the command line.
        logger: its settings; `records` names the folder that is copied.
        results: folder that is copied where `records` names none.
        request: all variants of its artifact are copied; without one, all tables and sweeps.
        console: console of the report, a line a table.

    Raises:
        LutlabError: logger=none; an argument that chooses rows, which mode=track does not; no such folder, or none of
            its tables is of the artifact; a damaged record.
    """
    if isinstance(tracker, NullTracker):
        raise LutlabError(
            "mode=track copies records to Weights & Biases, and logger=none copies nothing: drop it, or give "
            "logger=offline or logger=online"
        )
    given = [*request.arguments, *(one[0] for one in request.sweeps)]
    given += [override for some in request.of_methods for _, override in some]
    if other := [one for one in given if re.split(r"[=./]", one)[0] not in _READ]:
        raise LutlabError(
            f"mode=track copies whole tables as they were measured, and {other[0]} does not choose one: drop it; "
            "+exp=<artifact> copies its variants, logger.records=<folder> another folder's tables"
        )
    source, name = Path(logger.records or results), request.artifact and request.artifact.name
    found = [table for shelf in shelves(source) for table in _tables(shelf, name)]
    if not found:
        raise LutlabError(
            f"no table {'of ' + name if name else ''} under {source}: measure one first, or name a folder that has "
            "some, as logger.records=results/published"
        )
    for table in found:
        title = " ".join(filter(None, [*_name(table), table.machine]))
        done = tracker.log(title, _runs(table, logger.project))
        console.print(f"{title}: {done} runs{_missing(table)}", highlight=False, soft_wrap=True)


def _tables(shelf: Shelf, artifact: str | None) -> Iterator[Shelf]:
    """A shelf a table: one variant of one artifact, or a sweep."""
    tables: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for cell in shelf.cells:
        if artifact in (None, cell["artifact"]):
            tables.setdefault((cell["artifact"], cell["variant"]), []).append(cell)
    for (of, _), cells in tables.items():
        own = shelf.records_of(of)
        known = {cell["cell_id"] for cell in cells} & own.keys()
        records = {cell: own[cell] for cell in sorted(known)}
        yield dataclasses.replace(shelf, cells=tuple(cells), records=records)


def _name(table: Shelf) -> tuple[str, str]:
    return table.cells[0]["artifact"], table.cells[0]["variant"]


def _runs(table: Shelf, project: str) -> Iterator[TrackedRun]:
    """Claims and figure are those of today's artifact; a sweep has no claims, and the figure of its report."""
    name, variant = _name(table)
    if name in artifacts():
        result = Published(name, {variant: table.cells}, table.records).tables({})
        yield from runs_of(table, project, result[variant], figure.render(result[variant])[1])
    else:
        drawn = sorted(table.folder.glob(f"*/{variant}/figure.png"))
        yield from runs_of(table, project, None, drawn[0].read_bytes() if drawn else b"")


def _missing(table: Shelf) -> str:
    """`; 30 of 90 cells are not measured (not run: 30)`."""
    words: dict[str, int] = {}
    for cell in table.cells:
        if cell["cell_id"] not in table.records:
            words[cell["verdict"]] = words.get(cell["verdict"], 0) + 1
    if not words:
        return ""
    said = ", ".join(f"{word}: {count}" for word, count in sorted(words.items()))
    return f"; {sum(words.values())} of {len(table.cells)} cells have no record ({said})"
