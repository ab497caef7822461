"""Command-line arguments -> rows: an artifact's, or the product of the swept values."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from lutlab.base import registry
from lutlab.base.errors import LutlabError, nearest
from lutlab.experiment.artifact.artifact import Artifact, load_artifact
from lutlab.experiment.artifact.catalog import artifact_groups, artifacts
from lutlab.experiment.artifact.rows import ArtifactRow, Scale
from lutlab.experiment.row.row import Row
from lutlab.experiment.row.spelling import OF_NO_NUMBER, is_one_of

# Axes that the command line may replace: the rows are then measured on that model.
_SELECTABLE = {"model"}


# Settings of the weights: a row in full precision has none of them.
_OF_WEIGHTS = (
    "method", "q", "g", "mu", "budget", "candidates", "sublayers", "layers", "skip", "tuning", "calibration",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """Request of a command line: one artifact or a free sweep (None), and the other overrides.

    Attributes:
        arguments: overrides of every row.
        sweeps: override alternatives of each swept key, in a free sweep.
        of_methods: alternatives of `method.<name>.<field>=` in a free sweep, each as (method, override).
        typed: overrides that decide numbers, as they were typed, for the table's command.
    """

    artifact: Artifact | None
    arguments: tuple[str, ...]
    sweeps: tuple[tuple[str, ...], ...] = ()
    of_methods: tuple[tuple[tuple[str, str], ...], ...] = ()
    typed: tuple[str, ...] = ()


def parse(arguments: Sequence[str]) -> list[Request]:
    """Split a command line into its artifacts.

    Raises:
        LutlabError: an unknown artifact, or a sweep over values inside an artifact.
    """
    overrides = OverridesParser.create().parse_overrides(list(arguments))
    exp = [o for o in overrides if o.key_or_group == "exp"]
    rest = [o for o in overrides if o.key_or_group != "exp"]
    typed = tuple(_typed(o) for o in rest if not is_one_of(o.key_or_group, OF_NO_NUMBER))
    if not exp:
        fields = tuple(_of_method(o) for o in rest if _method_of(o))
        others = [o for o in rest if not _method_of(o)]
        fixed = tuple(_line(o) for o in others if not o.is_sweep_override())
        swept = tuple(tuple(_alternatives(o)) for o in others if o.is_sweep_override())
        return [Request(None, fixed, swept, fields, typed)]
    if keys := [o.key_or_group for o in rest if o.is_sweep_override()]:
        raise LutlabError(
            f"{keys[0]} is swept, but +exp fixes the rows of a paper's table; drop +exp for a sweep of your own"
        )
    names = [name for o in exp for name in _artifact_names(o)]
    fixed = tuple(map(_line, rest))
    return [Request(load_artifact(name), fixed, typed=typed) for name in names]


def _line(override: Override) -> str:
    """An override as Hydra read it; one that was parsed has such a line."""
    return override.input_line or ""


def _typed(override: Override) -> str:
    """The override as a reader types it: a choice of values as the values."""
    return re.sub(r"=choice\((.*)\)$", r"=\1", _line(override)).lstrip("+")


def _method_of(override: Override) -> str:
    """`method.bcq.offset=true` -> bcq, a field of one of several swept methods; empty for any other override."""
    parts = override.key_or_group.split(".")
    known = len(parts) == 3 and parts[0] == "method" and parts[1] in registry.classes("method")
    return parts[1] if known else ""


def _of_method(override: Override) -> tuple[tuple[str, str], ...]:
    """The alternatives of `method.bcq.offset=true,false`: (`bcq`, `method.offset=true`), …"""
    method = _method_of(override)
    lines = _alternatives(override) if override.is_sweep_override() else [_line(override)]
    return tuple((method, line.replace(f"method.{method}.", "method.", 1)) for line in lines)


def _alternatives(override: Override) -> list[str]:
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def _artifact_names(override: Override) -> list[str]:
    swept, groups = override.is_sweep_override(), artifact_groups()
    values = override.sweep_string_iterator() if swept else [override.value()]
    names = []
    for value in map(str, values):
        if value not in groups and value not in artifacts():
            known = nearest(value, [*artifacts(), *groups])
            raise LutlabError(f"unknown experiment '{value}': {known}")
        names += groups.get(value, [value])
    return names


def variant(request: Request, row: Row) -> str:
    """The folder of a report: another scale, text, model, calibration or option stands beside the default one."""
    model = row.model
    parts: list[str] = [row.scale]
    if row.data.root:
        parts.append(Path(row.data.root).name)
    if row.data.window:
        parts.append(f"window{row.data.window}")
    if row.data.limit:
        parts.append(f"first{row.data.limit}")
    if row.data.examples:
        parts.append(f"{row.data.examples}examples")
    if request.artifact and any(o.startswith("model=") for o in request.arguments):
        kind = "synthetic-" if model.source == "synthetic" else ""
        parts.append(kind + Path(model.name).name.removeprefix(kind))
    typed = (argument.partition("=") for argument in request.arguments if request.artifact)
    calibrated = [(key, value) for key, _, value in typed if key.startswith("calibration.")]
    parts += [f"{key.removeprefix('calibration.')}-{value}" for key, value in calibrated]
    for options in row.evaluator.values():
        parts += [f"{key}-{value}" for key, value in options]
    return "-".join(parts)


def without_rows(request: Request, scale: Scale) -> str:
    """The reason why an artifact has no rows at a scale, as a table of single products has none of a real model.

    Empty where it has, and of a free sweep.
    """
    if request.artifact is None or request.artifact.rows(scale):
        return ""
    others = [known for known in get_args(Scale) if request.artifact.rows(known)]
    return (
        f"{request.artifact.name} has no rows at scale={scale}: it is of single products, or of shapes without "
        f"weights; give scale={', '.join(others[:-1])} or {others[-1]}"
    )


def rows_of(request: Request, common: Row) -> list[ArtifactRow]:
    """The rows of a request with their complete overrides, command line last so that it wins.

    Args:
        request: one request of the command line.
        common: the values that all its rows have in common.

    Raises:
        LutlabError: `rows=` (names or patterns) names no row, the command line contradicts an axis of the artifact, or
            a field is given of a method that no row has.
    """
    if request.artifact is None:
        return _free_rows(request, common.method)
    artifact, selected = request.artifact, common.rows
    rows = artifact.rows(common.scale)
    keys = {override.lstrip("+").partition("=")[0] for override in request.arguments}
    fixed = set().union(*(row.axis_keys for row in rows))
    if clash := sorted((fixed & keys) - _SELECTABLE):
        raise LutlabError(
            f"{clash[0]}= contradicts {artifact.name}, whose rows fix it; choose rows with rows=[{rows[0].key},…] or "
            "drop +exp for a sweep of your own"
        )
    known = [row.key for row in rows]
    for pattern in selected:
        if not any(fnmatchcase(key, pattern) for key in known):
            raise LutlabError(
                f"rows= names '{pattern}', which is not a row of {artifact.name}: {nearest(pattern, known)}"
            )
    chosen = [r for r in rows if any(fnmatchcase(r.key, p) for p in selected or ["*"])]
    extra = [f"+exp={artifact.name}", *request.arguments]
    return [dataclasses.replace(row, overrides=[*row.overrides, *extra]) for row in chosen]


def _free_rows(request: Request, default: str) -> list[ArtifactRow]:
    """The product of the swept values; a field of one method only in the rows of that method."""
    rows: dict[tuple[str, ...], ArtifactRow] = {}
    methods = set()
    for combination in itertools.product(*request.sweeps):
        line = [*request.arguments, *combination]
        chosen = [o.partition("=")[2] for o in line if o.startswith("method=")]
        method = chosen[-1] if chosen else default
        methods.add(method)
        for fields in itertools.product(*request.of_methods):
            overrides = [*line, *(override for owner, override in fields if owner == method)]
            rows.setdefault(tuple(overrides), ArtifactRow("", {}, overrides))
    for owner, override in itertools.chain.from_iterable(request.of_methods):
        if owner not in methods:
            field = override.removeprefix("method.")
            raise LutlabError(
                f"method.{owner}.{field}: no row of this sweep has method={owner}, but {', '.join(sorted(methods))}"
            )
    return list(rows.values())


def baseline_of(row: ArtifactRow) -> ArtifactRow:
    """The same row in full precision: without the settings of its weights."""
    keys = {override: override.lstrip("+").partition("=")[0] for override in row.overrides}
    others = [override for override, key in keys.items() if not is_one_of(key, _OF_WEIGHTS)]
    return dataclasses.replace(row, overrides=[*others, "method=none"])
