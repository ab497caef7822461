"""A sweep of one's own, planned: each row once, beside its model in full precision, in a folder of the sweep's own.

A row is named by whatever differs between rows, the sweep by its axes:

    method=rtn,bcq q=2,3 calibration.samples=8,32     ─▶  rows   opt-embedded-s/rtn/2/128/8, …
                                                          sweep  method-q-calibration.samples-1f0c27aa

results/sweep/<name>/sweep.json     {"id": <of all that it asks for>, "command": "python run.py …"}
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.fields import defaults, spelled
from lutlab.base.kept.files import set_aside, write_atomically
from lutlab.base.specs import ModelRun, RunSpec
from lutlab.experiment.artifact.columns import SIZE, asks_for_quality, free_columns
from lutlab.experiment.plan.plan import AskedRow, PlannedRow, plan_row
from lutlab.experiment.plan.resolve import Files
from lutlab.experiment.row.row import Row
from lutlab.experiment.row.run import run_of
from lutlab.experiment.row.spelling import axes, differing, to_json
from lutlab.experiment.row.sweeping import baseline_of
from lutlab.experiment.store.record import content_id
from lutlab.quantizers.stored import STORED

log = logging.getLogger(__name__)
MARK = "sweep.json"


def beside_full_precision(
    asked: Sequence[AskedRow], compose: Callable[[Sequence[str]], Row]
) -> list[AskedRow]:
    """The rows of a sweep, model by model; where one measures quality, its model in full precision comes first."""
    found: dict[str, dict[tuple[str, ...], AskedRow]] = {}
    for one in asked:
        rows = found.setdefault(one.row.model.name, {})
        baseline = None
        if _wants_baseline(one.row):
            line = baseline_of(one.line)
            first = AskedRow(line, compose(line.overrides))
            baseline = rows.setdefault(tuple(line.overrides), first).row
        rows[tuple(one.line.overrides)] = dataclasses.replace(one, baseline=baseline)
    return [one for rows in found.values() for one in rows.values()]


def plan_sweep(asked: Sequence[AskedRow], files: Files) -> list[PlannedRow]:
    """Planned rows of a sweep without repetitions, each with its labels.

    Raises:
        LutlabError: a row names something that does not exist, or a budget that no width meets; all texts or the model
            are missing; a stored record is damaged.
    """
    distinct = {_identity(one.row): one for one in reversed(asked)}
    rows = list(reversed(distinct.values()))
    labels = labels_of([(run_of(one.row), one.row) for one in rows])
    keys = {_identity(one.row): row_key(own) for one, own in zip(rows, labels, strict=True)}
    found = []
    for one, own in zip(rows, labels, strict=True):
        size = [SIZE] if _shows_size(one.row) else []
        columns = free_columns([*dict.fromkeys([*one.row.evaluate, *size])])
        beside = keys[_identity(one.baseline)] if one.baseline else ""
        line = dataclasses.replace(one.line, key=row_key(own), labels=own)
        found.append(plan_row(dataclasses.replace(one, line=line), columns, files, beside))
    return found


def folder_of(rows: Sequence[PlannedRow], common: Row) -> Path:
    """The folder of the sweep's report, which bears its name; no other sweep is written over.

    Raises:
        LutlabError: `name=` is that of another sweep.
    """
    own = _id(rows)
    pairs = [(row.spec, row.asked.row) for row in rows]
    folder = common.results / "sweep" / (common.name or sweep_name(pairs, own))
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


def _shows_size(row: Row) -> bool:
    return row.baseline and row.model.source != "product" and asks_for_quality(row.evaluate)


def _wants_baseline(row: Row) -> bool:
    """Whether full precision belongs beside a row; a folder that is quantized already has none."""
    return _shows_size(row) and row.method != STORED


def _identity(row: Row) -> Hashable:
    """Identity of a row within a sweep."""
    return run_of(row), row.threads, repr(sorted(row.evaluator.items()))


def _id(rows: Sequence[PlannedRow]) -> str:
    asked = [
        [to_json(row.spec), [to_json(cell.evaluation) for cell in row.cells.values()], row.labels]
        for row in rows
    ]
    return content_id(asked)


# ---- names ----

_ALWAYS = ("model", "method", "q", "g")
# Keys that q or the model's name says already.
_SAID = ("budget", "candidates", "model.id", "model.source", "model.revision")
_LONGEST = 60  # characters of a name that is made of axes


def row_axes(run: RunSpec, row: Row) -> dict[str, Any]:
    """The axes of a row: those of its run, its evaluators' fields, its threads where they are given."""
    found = axes(run)
    for evaluator, options in row.evaluator.items():
        found |= {f"evaluator.{evaluator}.{key}": value for key, value in options}
    return found | ({"threads": row.threads} if row.threads else {})


def varied(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The axes that differ between rows of one method, and model and method where those differ.

    What only one of several methods has is no difference: it goes with the method.
    """
    methods = dict.fromkeys(row["method"] for row in rows)
    groups = [[row for row in rows if row["method"] == method] for method in methods]
    beside = differing({k: row[k] for k in ("model", "method")} for row in rows)
    return list(dict.fromkeys([*beside, *(name for group in groups for name in differing(group))]))


def labels_of(rows: Sequence[tuple[RunSpec, Row]]) -> list[dict[str, str]]:
    """Labels of the rows of a sweep: model, method, q, g, and every axis that is not the same in all of them."""
    own = [row_axes(run, row) for run, row in rows]
    more = [name for name in varied(own) if name not in _ALWAYS]
    short = [name for name in more if name not in _SAID]
    found = _labelled(rows, own, short)
    return found if len(set(map(row_key, found))) == len(rows) else _labelled(rows, own, more)


def row_key(labels: Mapping[str, str]) -> str:
    """Key of a row from its labels: `opt-embedded-s/rtn/4/128`."""
    return "/".join(label or "-" for label in labels.values())


def _labelled(
    rows: Sequence[tuple[RunSpec, Row]], own: Sequence[Mapping[str, Any]], shown: list[str]
) -> list[dict[str, str]]:
    found = []
    for (run, _), row in zip(rows, own, strict=True):
        budget = run.budget if isinstance(run, ModelRun) else None
        labels = {
            "Model": run.name,
            "Method": _method(run, shown),
            "q": str(run.q) if budget is None else f"budget {budget:g}",
            "g": _group_size(run) if budget is None else "mixed",
        }
        found.append(labels | {name: _text(row.get(name)) for name in shown})
    return found


def sweep_name(rows: Sequence[tuple[RunSpec, Row]], own: str) -> str:
    """The name of a sweep to which none is given: its varied axes, and 8 digits of its id, of all that it asks for."""
    found = [row_axes(run, row) for run, row in rows]
    chosen = [row for row in found if row["method"] != "none"] or found
    parts = varied(chosen) or [str(chosen[0][name]) for name in ("method", "q", "g")]
    return f"{'-'.join(parts)[:_LONGEST].strip('-')}-{own[:8]}"


def _group_size(run: RunSpec) -> str:
    """Nothing in full precision, which has no groups."""
    return "" if (run.q, run.g) == (16, -1) else str(run.g)


def _method(run: RunSpec, shown: Sequence[str]) -> str:
    """`rtn(variant=awq)`: the method and its parameters that are not at their defaults and in no column."""
    default = defaults(registry.lookup("method", run.method))
    own = {k: v for k, v in run.options if default[k] != v and f"method.{k}" not in shown}
    if isinstance(run, ModelRun) and run.tuning:
        tuning = {f"tuning.{k}": v for k, v in run.tuning.changed().items()}
        own |= {k: v for k, v in tuning.items() if k not in shown}
    changed = ", ".join(f"{key}={_text(value)}" for key, value in own.items())
    return run.method + (f"({changed})" if changed else "")


def _text(value: Any) -> str:
    """A value as the command line writes it; nothing where a row does not have the axis."""
    return "" if value is None else spelled(value)
