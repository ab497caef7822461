"""A sweep of one's own, planned: each row once, beside its model in full precision, in a folder of the sweep's own.

results/sweep/<name>/sweep.json     {"id": <of all that it asks for>, "command": "python run.py …"}
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lutlab.atomic import set_aside, write_atomically
from lutlab.errors import LutlabError
from lutlab.experiment.artifact.columns import SIZE, asks_for_quality, free_columns
from lutlab.experiment.artifact.rows import ArtifactRow
from lutlab.experiment.plan.plan import PlannedRow, plan_row
from lutlab.experiment.plan.resolve import Files, resolve
from lutlab.experiment.row.axes import to_json
from lutlab.experiment.row.naming import labels_of, row_key, sweep_name
from lutlab.experiment.row.row import Row
from lutlab.experiment.row.run import run_of
from lutlab.experiment.row.sweeping import baseline_of
from lutlab.experiment.store.record import content_id
from lutlab.experiment.store.store import Store
from lutlab.quantizers.stored import STORED

log = logging.getLogger(__name__)
MARK = "sweep.json"


@dataclass(frozen=True)
class AskedRow:
    """One row of a request: its overrides, what they are composed to, and in a sweep its row in full precision."""

    row: ArtifactRow
    settings: Row
    baseline: Row | None = None


def beside_full_precision(
    asked: Sequence[AskedRow], compose: Callable[[Sequence[str]], Row]
) -> list[AskedRow]:
    """The rows of a sweep, model by model, after the model in full precision where quality is asked for."""
    found: dict[str, dict[tuple[str, ...], AskedRow]] = {}
    for one in asked:
        rows = found.setdefault(one.settings.model.name, {})
        baseline = None
        if _wants_baseline(one.settings):
            row = baseline_of(one.row)
            first = AskedRow(row, compose(row.overrides))
            baseline = rows.setdefault(tuple(row.overrides), first).settings
        rows[tuple(one.row.overrides)] = dataclasses.replace(one, baseline=baseline)
    return [one for rows in found.values() for one in rows.values()]


def plan_sweep(asked: Sequence[AskedRow], files: Files) -> tuple[list[PlannedRow], list[AskedRow]]:
    """The rows planned, each that is asked for twice once, and what was asked for by each.

    Raises:
        LutlabError: as resolve; a stored record is damaged.
    """
    distinct = {_identity(one.settings): one for one in reversed(asked)}
    rows = list(reversed(distinct.values()))
    labels = labels_of([(run_of(one.settings), one.settings) for one in rows])
    keys = {_identity(one.settings): row_key(own) for one, own in zip(rows, labels, strict=True)}
    found = []
    for one, own in zip(rows, labels, strict=True):
        size = [SIZE] if _shows_size(one.settings) else []
        columns = free_columns([*dict.fromkeys([*one.settings.evaluate, *size])])
        beside = keys[_identity(one.baseline)] if one.baseline else ""
        resolved, store = resolve(one.settings, columns, files), Store(one.settings.results)
        found.append(plan_row(row_key(own), own, columns, resolved, store, beside))
    return found, rows


def folder_of(rows: Sequence[PlannedRow], asked: Sequence[AskedRow], common: Row) -> Path:
    """The folder of the sweep's report, which bears its name; no other sweep is written over.

    Raises:
        LutlabError: `name=` is that of another sweep, or is no file name.
    """
    pairs = [(row.spec, one.settings) for row, one in zip(rows, asked, strict=True)]
    own = _id(rows)
    folder = common.results / "sweep" / sweep_name(pairs, own, common.name)
    earlier, command = _marked(folder / MARK) or (own, "")
    if earlier != own:
        raise LutlabError(
            f"name={common.name} is that of another sweep, '{command}', in {folder}: choose another name, or remove "
            "that folder (its records stay)"
        )
    return folder


def _marked(mark: Path) -> tuple[str, str] | None:
    """Id and command of the sweep whose report lies beside; None where there is none, or a damaged mark."""
    if not mark.exists():
        return None
    try:
        said = json.loads(mark.read_text(encoding="utf-8"))
        return said["id"], said["command"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        log.warning(
            "%s is damaged (%s): set aside as %s; it and its report are written again",
            mark,
            type(error).__name__,
            set_aside(mark).name,
        )
        return None


def mark(folder: Path, rows: Sequence[PlannedRow], command: str) -> Path:
    """Write beside the report whose it is."""
    said = {"id": _id(rows), "command": command}
    return write_atomically(folder / MARK, (json.dumps(said, indent=1) + "\n").encode())


def _shows_size(settings: Row) -> bool:
    is_model = settings.model.source != "product"
    return settings.baseline and is_model and asks_for_quality(settings.evaluate)


def _wants_baseline(settings: Row) -> bool:
    """Whether full precision belongs beside a row; a folder that is quantized already has none."""
    return _shows_size(settings) and settings.method != STORED


def _identity(settings: Row) -> Hashable:
    """All that tells two rows of a sweep apart."""
    return run_of(settings), settings.threads, repr(sorted(settings.evaluators.items()))


def _id(rows: Sequence[PlannedRow]) -> str:
    asked = [
        [to_json(row.spec), [to_json(cell.evaluation) for cell in row.cells.values()], row.labels]
        for row in rows
    ]
    return content_id(asked)
