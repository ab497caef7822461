"""experiments/<paper>/<artifact>.yaml as validated data: axes, columns, published numbers, claims.

An axis entry *is* a list of Hydra overrides (one list, or one a scale). The rows are the product of the axes. A claim
is a predicate over row names, evaluated for every model and column it names, on the paper's numbers and on ours.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lutlab.config import EXPERIMENTS, LEAD_PAPER, artifacts, long_name
from lutlab.errors import LutlabError, nearest

Scale = Literal["embedded", "small", "paper"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AxisEntry(_Strict):
    """One value of an axis: how the paper labels it and the overrides that produce it."""

    labels: dict[str, str]
    overrides: list[str] | dict[Scale, list[str]]

    def at(self, scale: Scale) -> list[str]:
        """The overrides at a scale."""
        return self.overrides if isinstance(self.overrides, list) else self.overrides[scale]


class ColumnSpec(_Strict):
    """One column: an evaluator's metric under one protocol. `text` is the paper's protocol name."""

    title: str
    unit: str
    evaluator: str
    metric: str
    text: str | None = None
    note: str = ""  # e.g. why a protocol is inferred
    published: bool = True
    lower_is_better: bool = True
    match: float = 0.005  # |measured - published| / published up to which a cell is a match
    tolerance: float = 0.02  # and within tolerance


class Claim(_Strict):
    """A claim of the paper. `holds` are predicates over the names of the last axis, e.g. `q4_g32 <= q4_g64`.

    A bare name is the value in the column at hand (`columns`); `name.column` names its own column.
    """

    text: str
    where: str
    holds: list[str]
    columns: list[str] = Field(default_factory=list)
    only: list[str] = Field(default_factory=list)  # entries of the first axis; empty = all


class Artifact(_Strict):
    """One table or figure of a paper."""

    name: str
    title: str
    citation: str
    source: str
    axes: list[dict[str, AxisEntry]]
    columns: dict[str, ColumnSpec]
    published: dict[str, dict[str, dict[str, float | str]]]
    claims: list[Claim] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _published_cells_exist(self) -> Artifact:
        rows = {row.key for row in self.rows("paper")}
        columns = {key for key, column in self.columns.items() if column.published}
        for first, second, column in self.published_cells():
            if f"{first}/{second}" not in rows or column not in columns:
                raise ValueError(f"published {first}/{second}.{column} is not a cell of the table")
        missing = len(rows) * len(columns) - len(list(self.published_cells()))
        if missing:
            raise ValueError(f"{missing} cells of the table have no published value")
        return self

    def published_cells(self) -> Iterator[tuple[str, str, str]]:
        """(first axis entry, second axis entry, column) of every published number."""
        for first, configs in self.published.items():
            for second, values in configs.items():
                yield from ((first, second, column) for column in values)

    def rows(self, scale: Scale) -> list[ArtifactRow]:
        """The product of the axes, first axis slowest."""
        rows = []
        for entries in itertools.product(*(axis.items() for axis in self.axes)):
            labels = {k: v for _, entry in entries for k, v in entry.labels.items()}
            overrides = [o for _, entry in entries for o in entry.at(scale)]
            rows.append(ArtifactRow("/".join(name for name, _ in entries), labels, overrides))
        return rows


@dataclass(frozen=True)
class ArtifactRow:
    """One row: its key (`opt-30b/q4_g32`), the paper's labels, the Hydra overrides that run it."""

    key: str
    labels: dict[str, str]
    overrides: list[str]

    @property
    def axis_keys(self) -> set[str]:
        """Config keys this row decides (`model`, `method`, `q`, `g`)."""
        return {override.partition("=")[0] for override in self.overrides}


def load_artifact(name: str) -> Artifact:
    """Read an artifact by its long or short name.

    An artifact that reprints another's table says `same_as: <paper>/<artifact>` and overrides only what differs, so
    that each published number is typed in once.

    Raises:
        LutlabError: unknown name (suggests the nearest), or the file does not describe a table.
    """
    known = artifacts()
    if name not in known:
        raise LutlabError(f"unknown experiment '{name}': {nearest(name, known)}")
    return _read(known[name])


def _read(path: Path) -> Artifact:
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    if base := data.pop("same_as", None):
        original = yaml.safe_load(artifacts()[base].read_text(encoding="utf-8"))
        data = original | data
    try:
        return Artifact(name=long_name(path), **data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise LutlabError(
            f"{path}: {where}: {first['msg']} ({error.error_count()} errors)"
        ) from error


def cite(key: str) -> str:
    """`Park et al. 2023` from experiments/references.bib.

    Raises:
        LutlabError: no such entry.
    """
    bibliography = (EXPERIMENTS / "references.bib").read_text(encoding="utf-8")
    entry = re.search(rf"@\w+\{{{re.escape(key)},(.*?)^\}}", bibliography, re.DOTALL | re.MULTILINE)
    if entry is None:
        raise LutlabError(f"experiments/references.bib has no entry '{key}'")
    author = re.search(r"author\s*=\s*\{(\w+)", entry[1])[1]
    year = re.search(r"year\s*=\s*\{(\d+)", entry[1])[1]
    several = " et al." if " and " in entry[1] else ""
    return f"{author}{several} {year}"


def command_for(artifact: str) -> str:
    """The command a reader types to get this table."""
    paper, _, name = artifact.partition("/")
    return f"python run.py +exp={name if paper == LEAD_PAPER else artifact}"
