"""Weights & Biases: one run for each row of a table and one for the table, offline unless logger=online.

Offline needs neither an account nor a network: runs lie in the folder, and `wandb sync` uploads them later. Tracking is
a copy: what was measured is in the records of `results/`, so a failure in here is a logged warning and costs nothing.

A run has the same id each time. Offline, wandb makes another folder for an id that it has, so the older ones of the row
are removed when the new one is finished; a run whose content is the same is left as it is. Online the id is
sent again from its first step (resume=None; `allow` would append to its charts).
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, get_args

from lutlab.errors import LutlabError, nearest
from lutlab.experiment.row.row import Logging
from lutlab.experiment.run.histories import log_rows
from lutlab.experiment.run.tracked import TrackedRun
from lutlab.experiment.store.record import LINES, content_id, encode, write_lines

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run

CONTENT = "lutlab.sha256"  # in the folder of a finished run: hash of what it is a copy of
log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Receiver of copies. No method raises."""

    def log(self, name: str, runs: Iterable[TrackedRun]) -> int:
        """Copy runs as they come; `name` is what warnings call them all. Returns how many are there now."""


def open_tracker(logger: str, folder: Path, project: str) -> Tracker:
    """The tracker that `logger` names: none, offline or online. Nothing is imported or started before the first copy.

    Raises:
        LutlabError: unknown name; the message suggests the nearest one.
    """
    if logger not in (known := get_args(Logging)):
        raise LutlabError(f"unknown logger '{logger}': {nearest(logger, known)}")
    return NullTracker() if logger == "none" else WandbTracker(logger, Path(folder), project)


class NullTracker:
    """Copies nothing, and does not even ask for it."""

    def log(self, name: str, runs: Iterable[TrackedRun]) -> int:
        """Nothing to do."""
        return 0


class WandbTracker:
    """Copies to Weights & Biases under `folder`."""

    def __init__(self, mode: str, folder: Path, project: str) -> None:
        self.mode = mode
        self.folder = folder
        self.project = project

    def log(self, name: str, runs: Iterable[TrackedRun]) -> int:
        """Copy runs; say what failed."""
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
        own = re.compile(rf"offline-run-\d{{8}}_\d{{6}}-{re.escape(run_id)}(-\d{{1,3}})?")
        found = (self._root() / "wandb").glob(f"offline-run-*-{run_id}*")
        return sorted(path for path in found if own.fullmatch(path.name))

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

    found: dict[str, object] = {
        name: wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        for name, rows in tracked.tables.items()
        if rows
    }
    if tracked.figure:
        path = Path(run.dir).parent / "figure.png"
        path.write_bytes(tracked.figure)
        found["figure"] = wandb.Image(str(path))
    return found


def _log_records(run: Run, tracked: TrackedRun) -> None:
    """Write the records as one file, `records.jsonl`, in the run's own folder; immutable, it is copied nowhere."""
    import wandb

    path = write_lines(Path(run.dir) / LINES, tracked.records)
    artifact = wandb.Artifact(f"records-{tracked.id}", type="records")
    artifact.add_file(str(path), policy="immutable", skip_cache=True)
    run.log_artifact(artifact)
