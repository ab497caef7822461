"""Command-line arguments -> rows: an artifact's, or the product of the swept values."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from lutlab.errors import LutlabError, nearest
from lutlab.experiment.artifact.artifact import Artifact, load_artifact
from lutlab.experiment.artifact.catalog import artifact_groups, artifacts
from lutlab.experiment.artifact.rows import ArtifactRow
from lutlab.experiment.plan.settings import Settings

_SELECTABLE = {
    "model"
}  # an axis the command line may replace: the rows are then measured on that model


@dataclass(frozen=True)
class Request:
    """Request of a command line: one artifact or a free sweep (None), and the other overrides."""

    artifact: Artifact | None
    arguments: tuple[str, ...]
    sweeps: tuple[tuple[str, ...], ...]  # free sweep: the override alternatives of each swept key


def parse(arguments: Sequence[str]) -> list[Request]:
    """Split a command line into its artifacts.

    Raises:
        LutlabError: an unknown artifact, or a sweep over values inside an artifact.
    """
    overrides = OverridesParser.create().parse_overrides(list(arguments))
    exp = [o for o in overrides if o.key_or_group == "exp"]
    rest = [o for o in overrides if o.key_or_group != "exp"]
    if not exp:
        fixed = tuple(o.input_line for o in rest if not o.is_sweep_override())
        swept = tuple(tuple(_alternatives(o)) for o in rest if o.is_sweep_override())
        return [Request(None, fixed, swept)]
    if swept := [o.key_or_group for o in rest if o.is_sweep_override()]:
        raise LutlabError(
            f"{swept[0]} is swept, but +exp fixes the rows of a paper's table; drop +exp for a sweep of your own"
        )
    names = [name for o in exp for name in _artifact_names(o)]
    return [Request(load_artifact(n), tuple(o.input_line for o in rest), ()) for n in names]


def _alternatives(override: Override) -> list[str]:
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def _artifact_names(override: Override) -> list[str]:
    values = (
        [str(v) for v in override.sweep_string_iterator()] if override.is_sweep_override() else None
    )
    groups = artifact_groups()
    names = []
    for value in values or [str(override.value())]:
        if value not in groups and value not in artifacts():
            raise LutlabError(
                f"unknown experiment '{value}': {nearest(value, [*artifacts(), *groups])}"
            )
        names += groups.get(value, [value])
    return names


def variant(request: Request, settings: Settings) -> str:
    """The folder of a report: other scales, texts, models and options than the default ones stand beside them."""
    parts, model = [settings.scale], settings.model
    if settings.data.root:
        parts.append(Path(settings.data.root).name)
    if settings.data.limit:
        parts.append(f"first{settings.data.limit}")
    if request.artifact and any(o.startswith("model=") for o in request.arguments):
        kind = "synthetic-" if model.source == "synthetic" else ""
        parts.append(kind + Path(model.name).name.removeprefix(kind))
    for options in settings.evaluators.values():
        parts += [f"{key}-{value}" for key, value in options]
    return "-".join(parts)


def rows_of(request: Request, scale: str, selected: Sequence[str]) -> list[ArtifactRow]:
    """The rows of a request with their complete overrides, command line last so that it wins.

    Raises:
        LutlabError: `rows=` (names or patterns) names no row, or the command line contradicts an axis of the artifact.
    """
    if request.artifact is None:
        combinations = itertools.product(*request.sweeps)
        return [ArtifactRow("", {}, [*request.arguments, *combo]) for combo in combinations]
    artifact = request.artifact
    rows = artifact.rows(scale)
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
    wanted = [r for r in rows if any(fnmatchcase(r.key, p) for p in selected or ["*"])]
    extra = [f"+exp={artifact.name}", *request.arguments]
    return [dataclasses.replace(row, overrides=[*row.overrides, *extra]) for row in wanted]
