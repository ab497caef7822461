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
from lutlab.base.errors import WRONG_TYPE, LutlabError
from lutlab.base.fields import defaults, spelled
from lutlab.base.kept.files import set_aside, write_atomically
from lutlab.base.specs import ModelRun, RunSpec
from lutlab.experiment.artifact.columns import SIZE, asks_for_quality, free_columns
from lutlab.experiment.plan.plan import ComposedRow, RunnableRow, plan_row
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
    rows: Sequence[ComposedRow], compose: Callable[[Sequence[str]], Row]
) -> list[ComposedRow]:
    """The rows of a sweep, model by model; where one measures quality, its model in full precision comes first."""
    models: dict[str, dict[tuple[str, ...], ComposedRow]] = {}
    for row in rows:
        of_model = models.setdefault(row.row.model.name, {})
        baseline = None
        if _wants_baseline(row.row):
            line = baseline_of(row.line)
            first = ComposedRow(line, compose(line.overrides))
            baseline = of_model.setdefault(tuple(line.overrides), first).row
        of_model[tuple(row.line.overrides)] = dataclasses.replace(row, baseline=baseline)
    return [row for of_model in models.values() for row in of_model.values()]


def plan_sweep(composed: Sequence[ComposedRow], files: Files) -> list[RunnableRow]:
    """Planned rows of a sweep without repetitions, each with its labels.

    Raises:
        LutlabError: a row names something that does not exist, or a budget that no width meets; all texts or the model
            are missing; a stored record is damaged.
    """
    distinct = {_identity(row.row): row for row in reversed(composed)}
    rows = list(reversed(distinct.values()))
    labels = labels_of([(run_of(row.row), row.row) for row in rows])
    keys = {_identity(row.row): row_key(named) for row, named in zip(rows, labels, strict=True)}
    planned = []
    for row, named in zip(rows, labels, strict=True):
        size = [SIZE] if _shows_size(row.row) else []
        columns = free_columns([*dict.fromkeys([*row.row.evaluate, *size])])
        baseline = keys[_identity(row.baseline)] if row.baseline else ""
        line = dataclasses.replace(row.line, key=row_key(named), labels=named)
        planned.append(plan_row(dataclasses.replace(row, line=line), columns, files, baseline))
    return planned


def folder_of(rows: Sequence[RunnableRow], common: Row) -> Path:
    """The folder of the sweep's report, which bears its name; no other sweep is written over.

    Raises:
        LutlabError: `name=` is that of another sweep.
    """
    sweep_id = _id(rows)
    pairs = [(row.spec, row.composed.row) for row in rows]
    folder = common.results / "sweep" / (common.name or sweep_name(pairs, sweep_id))
    earlier, command = _marked(folder / MARK) or (sweep_id, "")
    if earlier != sweep_id:
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
        marked = json.loads(mark.read_text(encoding="utf-8"))
        return marked["id"], marked["command"]
    except (OSError, ValueError, *WRONG_TYPE) as error:
        log.warning(
            "%s is damaged (%s): set aside as %s; it and its report are written again",
            mark,
            type(error).__name__,
            set_aside(mark).name,
        )
        return None


def mark(folder: Path, rows: Sequence[RunnableRow], command: str) -> Path:
    """Write beside the report whose it is."""
    marked = {"id": _id(rows), "command": command}
    return write_atomically(folder / MARK, (json.dumps(marked, indent=1) + "\n").encode())


def _shows_size(row: Row) -> bool:
    return row.baseline and row.model.source != "product" and asks_for_quality(row.evaluate)


def _wants_baseline(row: Row) -> bool:
    """Whether full precision belongs beside a row; a folder that is quantized already has none."""
    return _shows_size(row) and row.method != STORED


def _identity(row: Row) -> Hashable:
    """Identity of a row within a sweep."""
    return run_of(row), row.threads, repr(sorted(row.evaluator.items()))


def _id(rows: Sequence[RunnableRow]) -> str:
    return content_id(
        [
            [to_json(row.spec), [to_json(c.evaluation) for c in row.cells.values()], row.labels]
            for row in rows
        ]
    )


# ---- names ----

_ALWAYS = ("model", "method", "q", "g")
# Keys that q or the model's name says already.
_IMPLIED = ("budget", "candidates", "model.id", "model.source", "model.revision")
_LONGEST = 60  # characters of a name that is made of axes


def row_axes(run: RunSpec, row: Row) -> dict[str, Any]:
    """The axes of a row: those of its run, its evaluators' fields, its threads where they are given."""
    named = axes(run)
    for evaluator, options in row.evaluator.items():
        named |= {f"evaluator.{evaluator}.{key}": value for key, value in options}
    return named | ({"threads": row.threads} if row.threads else {})


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
    axes_of = [row_axes(run, row) for run, row in rows]
    names = [name for name in varied(axes_of) if name not in _ALWAYS]
    labels = _labelled(rows, axes_of, [name for name in names if name not in _IMPLIED])
    distinct = len(set(map(row_key, labels))) == len(rows)
    return labels if distinct else _labelled(rows, axes_of, names)


def row_key(labels: Mapping[str, str]) -> str:
    """Key of a row from its labels: `opt-embedded-s/rtn/4/128`."""
    return "/".join(label or "-" for label in labels.values())


def _labelled(
    rows: Sequence[tuple[RunSpec, Row]], axes_of: Sequence[Mapping[str, Any]], shown: list[str]
) -> list[dict[str, str]]:
    rows_labels = []
    for (run, _), its_axes in zip(rows, axes_of, strict=True):
        budget = run.budget if isinstance(run, ModelRun) else None
        labels = {
            "Model": run.name,
            "Method": _method(run, shown),
            "q": str(run.q) if budget is None else f"budget {budget:g}",
            "g": _group_size(run) if budget is None else "mixed",
        }
        rows_labels.append(labels | {name: _text(its_axes.get(name)) for name in shown})
    return rows_labels


def sweep_name(rows: Sequence[tuple[RunSpec, Row]], sweep_id: str) -> str:
    """The name of a sweep to which none is given: its varied axes, and 8 digits of its id, of all that it asks for."""
    every = [row_axes(run, row) for run, row in rows]
    quantized = [row for row in every if row["method"] != "none"] or every
    parts = varied(quantized) or [str(quantized[0][name]) for name in ("method", "q", "g")]
    return f"{'-'.join(parts)[:_LONGEST].strip('-')}-{sweep_id[:8]}"


def _group_size(run: RunSpec) -> str:
    """Nothing in full precision, which has no groups."""
    return "" if (run.q, run.g) == (16, -1) else str(run.g)


def _method(run: RunSpec, shown: Sequence[str]) -> str:
    """`rtn(variant=awq)`: the method and its parameters that are not at their defaults and in no column."""
    default = defaults(registry.lookup("method", run.method))
    changed = {k: v for k, v in run.options if default[k] != v and f"method.{k}" not in shown}
    if isinstance(run, ModelRun) and run.tuning:
        tuning = {f"tuning.{k}": v for k, v in run.tuning.changed().items()}
        changed |= {k: v for k, v in tuning.items() if k not in shown}
    text = ", ".join(f"{key}={_text(value)}" for key, value in changed.items())
    return run.method + (f"({text})" if text else "")


def _text(value: Any) -> str:
    """A value as the command line writes it; nothing where a row does not have the axis."""
    return "" if value is None else spelled(value)
