"""Weights & Biases: one run for each row of a table and one for the table, offline unless logger=online.

Offline needs neither an account nor a network: runs lie in the folder, and `wandb sync` uploads them later. Tracking is
a copy: what was measured is in the records of `results/`, so a failure in here is a logged warning and costs nothing.

A run has the same id each time. Offline, wandb makes another folder for an id that it has, so the older ones of the row
are removed when the new one is finished; a run whose content is the same is left as it is. Online the id is
sent again from its first step (resume=None; `allow` would append to its charts).

A table is copied when it is measured, or, with `mode=track`, from tables and records alone (`fill`):

    python run.py mode=track                                        all of results/
    python run.py mode=track logger.records=results/published       all that is published, of every machine
    python run.py +exp=table4 mode=track logger=online              all variants of one artifact

mode=track measures nothing and reads neither models nor texts. Cells without a record are named.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from lutlab.base.errors import LutlabError, nearest
from lutlab.experiment.artifact.catalog import artifacts
from lutlab.experiment.records.frame import Shelf, shelves
from lutlab.experiment.report import figure
from lutlab.experiment.report.published import Published
from lutlab.experiment.row.row import Logger, Logging
from lutlab.experiment.row.sweeping import Request
from lutlab.experiment.run.tracked import Points, TrackedRun, runs_of
from lutlab.experiment.store.record import LINES, content_id, encode, write_lines

if TYPE_CHECKING:
    from rich.console import Console
    from wandb.sdk.wandb_run import Run

CONTENT = "lutlab.sha256"  # in the folder of a finished run: hash of what it is a copy of
log = logging.getLogger(__name__)
# All that mode=track reads.
_READ = ("mode", "logger", "results", "hydra", "plugins", "experiments")


def open_tracker(logger: Logging, folder: Path, project: str) -> Tracker | None:
    """The tracker that `logger` names: offline or online; None of none. Before the first copy nothing is imported.

    Raises:
        LutlabError: unknown name; the message suggests the nearest one.
    """
    if logger not in (known := get_args(Logging)):
        raise LutlabError(f"unknown logger '{logger}': {nearest(logger, known)}")
    return None if logger == "none" else Tracker(logger, Path(folder), project)


class Tracker:
    """Copies runs to Weights & Biases under `folder`. No method raises."""

    def __init__(self, mode: Literal["offline", "online"], folder: Path, project: str) -> None:
        self.mode = mode
        self.folder = folder
        self.project = project

    def log(self, name: str, runs: Iterable[TrackedRun]) -> int:
        """Copy runs as they come; returns how many are there now. `name` is what warnings call them all."""
        done = 0
        try:
            for run in runs:
                done += self._copied(run)
        except Exception as error:
            _warn(name, error)
        return done

    def _copied(self, tracked: TrackedRun) -> bool:
        try:
            self._copy(tracked)
        except Exception as error:
            _warn(tracked.name, error)
            return False
        return True

    def _copy(self, tracked: TrackedRun) -> None:
        """Open a run, fill it, close it; offline, put it in the place of the row's earlier ones."""
        earlier = self._earlier(tracked.id) if self.mode == "offline" else []
        content = _content(tracked)
        if any(_content_of(folder) == content for folder in earlier[-1:]):
            return
        run = self._open(tracked)
        folder = Path(run.dir).parent
        try:
            _fill(run, tracked)
        except BaseException:
            run.finish(exit_code=1)
            raise
        run.finish()
        (folder / CONTENT).write_text(content, encoding="ascii")
        for old in earlier:
            shutil.rmtree(old)

    def _earlier(self, run_id: str) -> list[Path]:
        """The folders of this run, oldest first; an id ends in its hash, so no other row's fits."""
        name = re.compile(rf"offline-run-\d{{8}}_\d{{6}}-{re.escape(run_id)}(-\d{{1,3}})?")
        folders = (self._root() / "wandb").glob(f"offline-run-*-{run_id}*")
        return sorted(path for path in folders if name.fullmatch(path.name))

    def _root(self) -> Path:
        """The folder in which wandb makes one of its own, `wandb`; absolute, as it notes the files of artifacts so."""
        folder = self.folder.absolute()
        return folder.parent if folder.name == "wandb" else folder

    def _open(self, tracked: TrackedRun) -> Run:
        if self.mode == "offline":  # offline promises that nothing is sent: no crash reports either
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        root = self._root()
        root.mkdir(parents=True, exist_ok=True)
        return wandb.init(
            project=self.project,
            id=tracked.id,
            name=tracked.name,
            group=tracked.group,
            job_type=tracked.kind,
            tags=tracked.tags,
            config=dict(tracked.config),
            dir=str(root),
            mode=self.mode,
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,  # the commit is in the config, from the records' provenance
                disable_code=True,
                save_code=False,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
        )


def _warn(name: str, error: Exception) -> None:
    log.warning(
        "Weights & Biases did not take '%s' (%s: %s); the measurements themselves are kept in the records. "
        "logger=none switches tracking off",
        name,
        type(error).__name__,
        error,
    )


# ---- mode=track ----


def fill(
    tracker: Tracker | None,
    logger: Logger,
    results: Path,
    request: Request,
    console: Console,
) -> None:
    """mode=track: copy what tables and records hold; say what they lack, a line a table.

    All variants of the request's artifact are copied, without one all tables and sweeps: of the folder that the
    logger's settings name under `records`, else of the results.

    Raises:
        LutlabError: logger=none; an argument that chooses rows, which mode=track does not; no such folder, or none of
            its tables is of the artifact; a damaged record.
    """
    if tracker is None:
        raise LutlabError(
            "mode=track copies records to Weights & Biases, and logger=none copies nothing: drop it, or give "
            "logger=offline or logger=online"
        )
    overrides = [*request.arguments, *(swept[0] for swept in request.sweeps)]
    overrides += [override for some in request.of_methods for _, override in some]
    if other := [line for line in overrides if re.split(r"[=./]", line)[0] not in _READ]:
        raise LutlabError(
            f"mode=track copies whole tables as they were measured, and {other[0]} does not choose one: drop it; "
            "+exp=<artifact> copies its variants, logger.records=<folder> another folder's tables"
        )
    source = Path(logger.records or results)
    name = request.artifact.name if request.artifact else None
    tables = [table for shelf in shelves(source) for table in _tables(shelf, name)]
    if not tables:
        raise LutlabError(
            f"no table {'of ' + name if name else ''} under {source}: measure one first, or name a folder that has "
            "some, as logger.records=results/published"
        )
    for table in tables:
        title = " ".join(filter(None, [*_name(table), table.machine]))
        done = tracker.log(title, _runs(table, logger.project))
        console.print(f"{title}: {done} runs{_missing(table)}", highlight=False, soft_wrap=True)


def _tables(shelf: Shelf, artifact: str | None) -> Iterator[Shelf]:
    """A shelf a table: one variant of one artifact, or a sweep."""
    tables: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for cell in shelf.cells:
        if artifact in (None, cell["artifact"]):
            tables.setdefault((cell["artifact"], cell["variant"]), []).append(cell)
    for (name, _), cells in tables.items():
        known = shelf.records_of(name)
        ids = {cell["cell_id"] for cell in cells} & known.keys()
        records = {cell: known[cell] for cell in sorted(ids)}
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
    counts = ", ".join(f"{word}: {count}" for word, count in sorted(words.items()))
    return f"; {sum(words.values())} of {len(table.cells)} cells have no record ({counts})"


# ---- offline folders ----


def _content(tracked: TrackedRun) -> str:
    """Hash of everything that is copied."""
    tables = {name: list(rows) for name, rows in tracked.tables.items()}
    about = [tracked.name, tracked.group, tracked.tags, tracked.config, tracked.summary, tables]
    charts = {name: list(points) for name, points in tracked.charts.items()}
    records = [encode(record)["sha256"] for record in tracked.records]
    return content_id([*about, charts, hashlib.sha256(tracked.figure).hexdigest(), records])


def _content_of(folder: Path) -> str:
    """Empty of a run that was not finished."""
    path = folder / CONTENT
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        log.warning("%s is damaged (%s): its run is written again", path, type(error).__name__)
        return ""


# ---- what a run is filled with ----


def _fill(run: Run, tracked: TrackedRun) -> None:
    """Charts first: the summary then holds what is measured, not the last point of a chart."""
    for step in dict.fromkeys(name.partition("/")[0] for name in tracked.charts):
        run.define_metric(step, summary="none", hidden=True)
        run.define_metric(f"{step}/*", step_metric=step, summary="none")
    for row in log_rows(tracked.charts):
        run.log(row)
    run.summary.update(dict(tracked.summary))
    with _staged_in(Path(run.dir).parent):
        if media := _media(run, tracked):
            run.log(media)
        if tracked.records:
            _log_records(run, tracked)


@contextmanager
def _staged_in(folder: Path) -> Iterator[None]:
    """Wandb stages the files of artifacts in the user's data folder, for good; here they go with the run."""
    before = os.environ.get("WANDB_DATA_DIR")
    os.environ["WANDB_DATA_DIR"] = str(folder / "staged")
    try:
        yield
    finally:
        if before is None:
            del os.environ["WANDB_DATA_DIR"]
        else:
            os.environ["WANDB_DATA_DIR"] = before


def _media(run: Run, tracked: TrackedRun) -> dict[str, object]:
    import wandb

    media: dict[str, object] = {
        name: wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        for name, rows in tracked.tables.items()
        if rows
    }
    if tracked.figure:
        path = Path(run.dir).parent / "figure.png"
        path.write_bytes(tracked.figure)
        media["figure"] = wandb.Image(str(path))
    return media


def _log_records(run: Run, tracked: TrackedRun) -> None:
    """Write the records as one file, `records.jsonl`, in the run's own folder; immutable, it is copied nowhere."""
    import wandb

    path = write_lines(Path(run.dir) / LINES, tracked.records)
    artifact = wandb.Artifact(f"records-{tracked.id}", type="records")
    artifact.add_file(str(path), policy="immutable", skip_cache=True)
    run.log_artifact(artifact)


def log_rows(charts: Mapping[str, Points]) -> Iterator[dict[str, float]]:
    """Values to log, call by call: the n-th point of every chart in one, each beside its own step.

    >>> list(log_rows({"layer/bits": [(0, 4.5), (1, 3.5)], "round/latency_s": [(1, 0.25)]}))
    [{'layer': 0, 'layer/bits': 4.5, 'round': 1, 'round/latency_s': 0.25}, {'layer': 1, 'layer/bits': 3.5}]
    """
    by_step: dict[str, dict[float, dict[str, float]]] = {}
    for name, points in charts.items():
        step = name.partition("/")[0]
        for at, value in points:
            by_step.setdefault(step, {}).setdefault(at, {step: at})[name] = value
    for some in itertools.zip_longest(*(rows.values() for rows in by_step.values()), fillvalue={}):
        yield {name: value for row in some for name, value in row.items()}
