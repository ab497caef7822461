"""experiments/<paper>/<artifact>.yaml as validated data: axes, columns, published numbers, claims, curves.

An axis entry *is* a list of Hydra overrides (one list, or one a scale). The rows are the product of the axes, block by
block. A claim is a predicate over row names, evaluated on the paper's numbers and on ours. experiments/README.md
describes the file for those who write one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.dataclasses import dataclass

from lutlab import predict
from lutlab.base.errors import LutlabError, nearest
from lutlab.experiment.artifact.catalog import artifacts, cite, long_name
from lutlab.experiment.artifact.columns import ColumnSpec, PredictSpec, Strict, as_value_error
from lutlab.experiment.artifact.predicted import Prediction, prediction
from lutlab.experiment.artifact.rows import ArtifactRow, Axis, AxisEntry, Scale, row_of
from lutlab.experiment.artifact.yaml_file import read_yaml

_CONFIG = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class CurveSpec:
    """A figure: column y over column x, a point a row, a line for each value of the `series` labels.

    `beside` are further columns on the axis of x, contestants of it. `y_at`: another y at a scale, where the paper's
    says nothing on the models of that scale. One Pareto front for each value of the first `per` axes (0: one front).
    `baseline` matches the keys of the full-precision rows: drawn as a level, or subtracted from y where the paper draws
    the degradation.
    """

    x: str
    y: str
    series: tuple[str, ...]
    beside: tuple[str, ...] = ()
    y_at: dict[Scale, str] = Field(default_factory=dict)
    per: int = 0
    baseline: str = ""
    degradation: bool = False
    panel: str = ""  # label whose values have a panel each
    rowwise: str = ""  # keys of row-wise points, which are drawn hollow
    front: bool = True  # false: a series is a line, nothing is traded off


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class Curve(CurveSpec):
    """The figure at a scale.

    larger: for x and y, whether the larger value is the better one. in_place_of: the paper's y, where another is drawn;
    empty where y is the paper's.
    """

    larger: tuple[bool, bool]
    in_place_of: str = ""

    def front_of(self, key: str) -> str:
        """The rows that share a front with this row, by the first parts of their keys."""
        return "/".join(key.split("/")[: self.per])


# Kinds of claims and their headings, by how `where` begins, after the name of another paper.
_PAPER = r"^(?:[\w.]+(?: et al\.)?(?: \d{4})?,? )?"
CLAIM_KINDS = {
    "sentence": "Sentences of the paper (what is in brackets is ours)",
    "reading": "What the paper's table or figure shows, as we read it",
    "ours": "Claims of ours",
}
_BEGINNINGS = {
    "sentence": re.compile(rf"{_PAPER}(?:Section|Appendix|Abstract)"),
    "reading": re.compile(rf"{_PAPER}(?:Table|Figure)"),
    "ours": re.compile("^ours"),
}


def claim_kind(where: str) -> str:
    """The kind of a claim, of CLAIM_KINDS, by its place.

    >>> claim_kind("Section 4.4, conclusion 1"), claim_kind("Table 4"), claim_kind("ours, on Table 4")
    ('sentence', 'reading', 'ours')

    Raises:
        ValueError: the place is none of the three.
    """
    for kind, beginning in _BEGINNINGS.items():
        if beginning.search(where):
            return kind
    raise ValueError(
        f"where: {where!r} begins with neither Section, Appendix or Abstract (a sentence of a paper), nor Table or "
        "Figure (what we read from it), nor ours"
    )


class Claim(Strict):
    """A claim as predicates (claims.py): every one of `holds` and `fronts` is to be true.

    where: the place, which says whether it is a sentence of the paper, our reading of its table, or ours.
    holds: over the entries of a row's last axis, e.g. `q4_g32 <= q4_g64`, for each value of the axes before it. A bare
    name is the value in the column at hand (`columns`); `name.column` names its own column.
    fronts: over the points of the figure, e.g. `on_front("g*") > 0`, for each front.
    device: of a GPU's speed or energy, `gpu`; it is not judged on numbers of a CPU, which stand in for none.
    """

    text: str
    where: str
    device: Literal["any", "gpu"] = "any"
    holds: list[str] = Field(default_factory=list)
    fronts: list[str] = Field(default_factory=list)
    columns: list[str] = Field(default_factory=list)
    only: list[str] = Field(default_factory=list)  # patterns of the leading entries; empty = all

    @property
    def kind(self) -> str:
        """Key of CLAIM_KINDS."""
        return claim_kind(self.where)

    @field_validator("where")
    @classmethod
    def _is_of_a_kind(cls, where: str) -> str:
        claim_kind(where)
        return where


class Artifact(Strict):
    """One table or figure of a paper."""

    name: str
    title: str
    citation: str
    source: str
    axes: list[Axis] = Field(default_factory=list)
    blocks: list[list[Axis]] = Field(default_factory=list)  # where the rows are not one product
    columns: dict[str, ColumnSpec]
    # Row key, part by part -> column -> number.
    published: dict[str, Any] = Field(default_factory=dict)
    claims: list[Claim] = Field(default_factory=list)
    figure: CurveSpec | None = None
    one_axis: list[str] = Field(default_factory=list)  # columns of one unit that share panels
    notes: list[str] = Field(default_factory=list)
    predict: PredictSpec | None = None  # the GPU and the engine of its predicted columns

    @model_validator(mode="after")
    def _published_cells_exist(self) -> Artifact:
        if bool(self.axes) == bool(self.blocks):
            raise ValueError("an artifact has either axes or blocks")
        rows = self.rows("paper")
        keys = [row.key for row in rows]
        columns = {key for key, column in self.columns.items() if column.published}
        numbers = self.numbers()
        if len(set(keys)) < len(keys):
            raise ValueError("two rows have the same key")
        for row, values in numbers.items():
            for column in values:
                if row not in keys or column not in columns:
                    raise ValueError(f"published {row}.{column} is not a cell of the table")
        printed = sum(row.published for row in rows)
        missing = printed * len(columns) - sum(map(len, numbers.values()))
        if missing:
            raise ValueError(f"{missing} cells of the table have no published value")
        return self

    @model_validator(mode="after")
    def _means_are_of_what_is_there(self) -> Artifact:
        rows = self.rows("paper")
        keys = {row.key for row in rows}
        for row in rows:
            if unknown := set(row.mean_of) - keys:
                raise ValueError(f"{row.key} is the mean of '{min(unknown)}', which is not a row")
            self.columns_of(row)
        for key, column in self.columns.items():
            if unknown := set(column.mean_of) - set(self.columns):
                raise ValueError(f"{key} is the mean of '{min(unknown)}', which is not a column")
        return self

    @model_validator(mode="after")
    def _references_exist(self) -> Artifact:
        entries = [e for axes in self.blocks or [self.axes] for axis in axes for e in axis.values()]
        cited = [*(c.cited for c in self.columns.values()), *(e.cited for e in entries)]
        with as_value_error():
            for key in filter(None, (self.citation, *cited)):
                cite(key)
        return self

    @model_validator(mode="after")
    def _figure_draws_columns(self) -> Artifact:
        drawn = set(self.one_axis)
        if self.figure:
            drawn |= {self.figure.x, self.figure.y, *self.figure.beside, *self.figure.y_at.values()}
        if unknown := drawn - set(self.columns):
            raise ValueError(f"figure draws '{min(unknown)}', which is not a column")
        if any(claim.fronts for claim in self.claims) and not (self.figure and self.figure.front):
            raise ValueError("a claim about fronts needs a figure")
        return self

    @model_validator(mode="after")
    def _predictions_can_be_made(self) -> Artifact:
        with as_value_error():
            for settings in self.predictions().values():
                predict.latency(**settings)
        return self

    def predictions(self) -> dict[tuple[str, str], Prediction]:
        """(row key, column) -> what is predicted for it, of the paper's model."""
        specs = {key: column.predict for key, column in self.columns.items() if column.predict}
        if not specs:
            return {}
        return {
            (row.key, key): prediction(row.overrides, self.predict, spec, *row.predict)
            for row in self.rows("paper")
            for key, spec in specs.items()
            if row.predict is not None and not row.mean_of
        }

    def curve(self, scale: Scale) -> Curve | None:
        """The figure at a scale; None where it has none."""
        if (spec := self.figure) is None:
            return None
        y = spec.y_at.get(scale, spec.y)
        larger = tuple(not self.columns[column].lower_is_better for column in (spec.x, y))
        at_scale = {"y": y, "larger": larger, "in_place_of": spec.y if y != spec.y else ""}
        return Curve(**vars(spec) | at_scale)

    def numbers(self) -> dict[str, dict[str, float | str]]:
        """Row key -> column -> published number."""
        return dict(_flatten(self.published))

    def rows(self, scale: Scale) -> list[ArtifactRow]:
        """The product of the axes, first axis slowest, also across blocks; without what the scale cannot run.

        At scale=real, whose models are one, a model of the paper all of whose rows would run as those of another has
        none of its own; of the others each keeps its rows, so that its claims can be judged.
        """
        rows = [
            row_of(combination, scale)
            for combination in self._combinations()
            if all(entry.at(scale) is not None for _, entry in combination)
        ]
        if scale == "real":
            rows = _of_one_model(rows)
        firsts = list(dict.fromkeys(row.first for row in rows))
        return sorted(rows, key=lambda row: firsts.index(row.first))

    def columns_of(self, row: ArtifactRow) -> dict[str, ColumnSpec]:
        """The columns as a row has them: not run where it is not, and with the metrics that it names.

        Raises:
            ValueError: it names a column that is not there, or a metric that its evaluator does not have.
        """
        if unknown := set(row.metrics) - set(self.columns):
            raise ValueError(f"{row.key} has a metric of '{min(unknown)}', which is not a column")
        return {
            key: column.of_row(row.not_run, row.metrics.get(key))
            for key, column in self.columns.items()
        }

    def absent(self, scale: Scale) -> list[str]:
        """Labels of the axis entries that the scale has nothing to run for."""
        entries = [e for c in self._combinations() for _, e in c if e.at(scale) is None]
        return list(dict.fromkeys(" ".join(entry.labels.values()) for entry in entries))

    def _combinations(self) -> Iterator[tuple[tuple[str, AxisEntry], ...]]:
        for axes in self.blocks or [self.axes]:
            yield from itertools.product(*(axis.items() for axis in axes))


def _of_one_model(rows: list[ArtifactRow]) -> list[ArtifactRow]:
    """Rows whose models have become one, without those of a first entry that runs nothing of its own.

    Rows that nobody measures stay, as they are the paper's alone.
    """
    runs: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        runs.setdefault(row.first, set()).update([] if row.not_run else [tuple(row.overrides)])
    firsts = list(runs)
    repeated = {
        first
        for i, first in enumerate(firsts)
        if any(runs[first] < runs[other] for other in firsts)
        or runs[first] in [runs[other] for other in firsts[:i]]
    }
    return [r for r in rows if r.first not in repeated or (r.not_run and not r.mean_of)]


def _flatten(
    tree: Mapping[str, Any], key: tuple[str, ...] = ()
) -> Iterator[tuple[str, dict[str, float | str]]]:
    """Leaves of nested mappings: (`opt-30b/q4_g32`, {column: number}); raises ValueError: a row is none."""
    if not isinstance(tree, Mapping):
        raise ValueError(
            f"published has {tree!r} for {'/'.join(key)}, no mapping from columns to numbers"
        )
    if not any(isinstance(value, Mapping) for value in tree.values()):
        if tree:
            yield "/".join(key), dict(tree)
        return
    for name, inner in tree.items():
        yield from _flatten(inner, (*key, name))


def load_artifact(name: str) -> Artifact:
    """Read an artifact by its long or short name.

    An artifact that reprints another's table says `same_as: <paper>/<artifact>` and overrides only what differs, so
    that each published number is typed in once; `keep` names the axis entries that it reprints, if not all.

    Raises:
        LutlabError: unknown name (suggests the nearest), or the file does not describe a table.
    """
    path = _file_of(name)
    data = _mapping(path)
    if base := data.pop("same_as", None):
        data = _mapping(_file_of(base)) | data
    if keep := data.pop("keep", None):
        _leave_out(data, keep)
    data.pop("shared", None)  # YAML anchors only
    try:
        return Artifact(name=long_name(path), **data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise LutlabError(
            f"{path}: {where}: {first['msg']} ({error.error_count()} errors)"
        ) from error


def _file_of(name: str) -> Path:
    known = artifacts()
    if name not in known:
        raise LutlabError(f"unknown experiment '{name}': {nearest(name, known)}")
    return known[name]


def _mapping(path: Path) -> dict[str, Any]:
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise LutlabError(f"{path} is no table: give its keys (experiments/README.md)")
    return data


def _leave_out(data: dict[str, Any], keep: list[str]) -> None:
    """Keep only the named entries of each axis that has some of them, in the axes and the published numbers."""
    gone = {name for axis in data["axes"] if not set(keep).isdisjoint(axis) for name in axis}
    gone -= set(keep)
    data["axes"] = [{k: v for k, v in axis.items() if k not in gone} for axis in data["axes"]]

    def pruned(tree: dict[str, Any]) -> dict[str, Any]:
        return {
            name: pruned(inner) if isinstance(inner, dict) else inner
            for name, inner in tree.items()
            if name not in gone
        }

    data["published"] = pruned(data["published"])
