"""Names of a sweep of one's own and of its rows: a row is named by whatever differs between rows, a sweep by its axes.

method=rtn,bcq q=2,3 calibration.samples=8,32     ─▶  rows   opt-embedded-s/rtn/2/128/8, …
sweep  method-q-calibration.samples-1f0c27aa
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lutlab import registry
from lutlab.errors import LutlabError
from lutlab.experiment.row.axes import axes, differing
from lutlab.experiment.row.row import Row
from lutlab.specs import ModelRun, RunSpec

_ALWAYS = ("model", "method", "q", "g")
# Keys that q or the model's name says already.
_SAID = ("budget", "candidates", "model.id", "model.source", "model.revision")
_NAME = re.compile(r"[\w][\w.+=-]*")
_LONGEST_GIVEN = 100  # of one that is given: a folder's name has 255 bytes
_LONGEST = 60  # characters of a name that is made of axes


def row_axes(run: RunSpec, settings: Row) -> dict[str, Any]:
    """The axes of a row: those of its run, its evaluators' fields, its threads where they are given."""
    found = axes(run)
    for evaluator, options in settings.evaluators.items():
        found |= {f"evaluator.{evaluator}.{key}": value for key, value in options}
    return found | ({"threads": settings.threads} if settings.threads else {})


def varied(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The axes that differ between rows of one method, and model and method where those differ.

    What only one of several methods has is no difference: it goes with the method.
    """
    methods = dict.fromkeys(row["method"] for row in rows)
    groups = [[row for row in rows if row["method"] == method] for method in methods]
    return list(
        dict.fromkeys(
            [
                *differing({k: row[k] for k in ("model", "method")} for row in rows),
                *(name for group in groups for name in differing(group)),
            ]
        )
    )


def labels_of(rows: Sequence[tuple[RunSpec, Row]]) -> list[dict[str, str]]:
    """Labels of the rows of a sweep: model, method, q, g, and every axis that is not the same in all of them."""
    own = [row_axes(run, settings) for run, settings in rows]
    more = [name for name in varied(own) if name not in _ALWAYS]
    short = [name for name in more if name not in _SAID]
    found = _labelled(rows, own, short)
    return found if len(set(map(row_key, found))) == len(rows) else _labelled(rows, own, more)


def row_key(labels: Mapping[str, str]) -> str:
    """`opt-embedded-s/rtn/4/128`."""
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


def sweep_name(rows: Sequence[tuple[RunSpec, Row]], own: str, given: str | None) -> str:
    """The name of a sweep: the one that is given, or its varied axes and 8 digits of its id.

    Args:
        rows: run and settings of each.
        own: the id, of all that the sweep asks for.
        given: `name=`, or None.

    Raises:
        LutlabError: the given name is no file name.
    """
    if given is not None:
        if not _NAME.fullmatch(given) or len(given) > _LONGEST_GIVEN:
            raise LutlabError(
                f"name={given}: give letters, digits, '.', '_', '-', '+' or '=', at most {_LONGEST_GIVEN}, as it "
                "names a folder"
            )
        return given
    found = [row_axes(run, settings) for run, settings in rows]
    chosen = [row for row in found if row["method"] != "none"] or found
    parts = varied(chosen) or [str(chosen[0][name]) for name in ("method", "q", "g")]
    return f"{'-'.join(parts)[:_LONGEST].strip('-')}-{own[:8]}"


def _group_size(run: RunSpec) -> str:
    """Nothing in full precision, which has no groups."""
    return "" if (run.q, run.g) == (16, -1) else str(run.g)


def _method(run: RunSpec, shown: Sequence[str]) -> str:
    """`rtn(variant=awq)`: the method and its parameters that are not at their defaults and in no column."""
    method = registry.lookup("method", run.method)
    defaults = {field.name: field.default for field in dataclasses.fields(method)}
    own = [(k, v) for k, v in run.options if defaults[k] != v and f"method.{k}" not in shown]
    changed = [f"{key}={_text(value)}" for key, value in own]
    if isinstance(run, ModelRun) and run.tuning:
        tuning = run.tuning.changed().items()
        changed += [f"tuning.{k}={_text(v)}" for k, v in tuning if f"tuning.{k}" not in shown]
    return run.method + (f"({', '.join(changed)})" if changed else "")


def _text(value: Any) -> str:
    """A value as the command line writes it; nothing where a row does not have the axis."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
