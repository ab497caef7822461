"""Rows of an artifact: the entries of its axes, and what a combination of them runs.

An axis entry *is* a list of Hydra overrides (one list, or one a scale). experiments/README.md describes it for those
who write one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from pydantic import Field, field_validator

from lutlab.experiment.artifact.catalog import cite
from lutlab.experiment.artifact.columns import PredictSpec, Strict

Scale = Literal["embedded", "small", "real", "paper"]
OURS = "Ours"  # label: what a row really runs, where that is not what the paper ran
# The model of scale=real, in the place of each that a paper names: the one that is to be had without the hub.
REAL = "smollm2-135m"
# Keys that a row may set, and what lies below them: what is measured, never where results go or whose code runs.
ROW_KEYS = (
    "model", "method", "q", "g", "mu", "kernel", "knobs", "sublayers", "layers", "budget", "candidates", "skip",
    "calibration", "tuning", "stream", "data", "evaluator", "device", "dtype", "threads", "seed",
)  # fmt: skip
_GROUPS = ("model", "method", "data")  # whose value names a preset, a file
_OVERRIDE = re.compile(
    r"(?P<key>(?:\+(?=knobs\.))?[a-z]\w*(?:\.\w+)*)=(?P<value>[^$\\]*)", re.DOTALL
)
# What differs of these from the paper's is no width: models are named, and notes say how long and how fast was tuned.
_UNSAID = ("model", "calibration.", "tuning.")
_PRESET = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*")


class AxisEntry(Strict):
    """One value of an axis: how the paper labels it and the overrides that produce it.

    At scale=real, where an entry says nothing else, it is what it is at scale=paper with another model, REAL. A single
    product, or the shapes of a model without its weights, which model.id tells, is not at that scale.

    `public: false` is a model whose weights nobody can have: its row runs on a stand-in at every scale.
    """

    labels: dict[str, str]
    overrides: list[str] | dict[Scale, list[str]]
    public: bool = True
    published: bool = True  # false: a row of ours, which the paper does not print
    cited: str = ""  # whose method it is, where lutlab does not have it: its rows are not run
    not_run: str = ""  # why nobody measures its rows here
    metrics: dict[str, str] = Field(default_factory=dict)  # column -> another metric than its own
    mean_of: list[str] = Field(default_factory=list)  # entries of the same axis; nothing is run
    predict: PredictSpec | Literal[False] | None = None  # what differs in its rows; false: nothing

    @field_validator("overrides")
    @classmethod
    def _are_data(cls, overrides: list[str] | dict[Scale, list[str]]) -> Any:
        lists = [overrides] if isinstance(overrides, list) else [*overrides.values()]
        for override in itertools.chain.from_iterable(lists):
            _check_override(override)
        return overrides

    def at(self, scale: Scale) -> list[str] | None:
        """The overrides at a scale; None where the entry has nothing to run there."""
        by_scale = {scale: self.overrides} if isinstance(self.overrides, list) else self.overrides
        if scale != "real":
            return by_scale.get(scale)
        papers = by_scale.get("paper", ())
        theirs = [f"model={REAL}" if o.startswith("model=") else o for o in papers]
        overrides = by_scale.get("real", theirs if "paper" in by_scale else None)
        return None if any(o.startswith("model.id=") for o in overrides or ()) else overrides


def _check_override(override: str) -> None:
    """Refuse all of Hydra's grammar that does more than give a value to a key of ROW_KEYS.

    Raises:
        ValueError: another key; a package (`@`), a deletion (`~`) or `+` but of a knob; `$` or a backslash, by which a
            value would be looked up when it is read (`${oc.env:…}`); a preset outside of its folder.
    """
    match = _OVERRIDE.fullmatch(override)
    if not match:
        raise ValueError(
            f"override '{override}' is no plain <key>=<value>: a row sets values, without $, backslash, ~, @ or +"
        )
    key, value = match["key"].lstrip("+"), match["value"]
    if key.partition(".")[0] not in ROW_KEYS:
        raise ValueError(
            f"override '{override}' sets no key of a row, which are {', '.join(ROW_KEYS)}: give others on the command "
            "line"
        )
    if key in _GROUPS and not _PRESET.fullmatch(value):
        raise ValueError(f"override '{override}' names no preset: give a name, as {key}=<name>")


Axis = dict[str, AxisEntry]


@dataclass(frozen=True)
class ArtifactRow:
    """One row: its key (`opt-30b/q4_g32`), the paper's labels, the Hydra overrides that run it.

    Attributes:
        public: the paper's own model can be had, so that at scale=paper the row runs on it.
        published: the paper prints it.
        not_run: why nobody measures it here; empty where it is run.
        metrics: column -> the metric of this row, where it is not the column's.
        mean_of: keys of the rows whose mean it is; () where it is run itself.
        predict: settings of predictions from its entries, the later over the earlier; None: none is made.
    """

    key: str
    labels: dict[str, str]
    overrides: list[str]
    public: bool = True
    published: bool = True
    not_run: str = ""
    metrics: Mapping[str, str] = field(default_factory=dict)
    mean_of: tuple[str, ...] = ()
    predict: tuple[PredictSpec, ...] | None = ()

    @property
    def first(self) -> str:
        """The entry of the first axis."""
        return self.key.partition("/")[0]

    @property
    def axis_keys(self) -> set[str]:
        """Config keys this row decides (`model`, `method`, `q`, `g`)."""
        return {override.lstrip("+").partition("=")[0] for override in self.overrides}


def scale_of(variant: str) -> Scale:
    """The scale that the name of a variant begins with."""
    return cast("Scale", variant.partition("-")[0])  # of another word no artifact has a row


def row_of(combination: Sequence[tuple[str, AxisEntry]], scale: Scale) -> ArtifactRow:
    """The row of one entry an axis, each with its name."""
    entries = [entry for _, entry in combination]
    labels = {k: v for entry in entries for k, v in entry.labels.items()}
    overrides = [o for entry in entries for o in entry.at(scale) or []]
    papers = {o for entry in entries for o in entry.at("paper") or []}
    differing = [o for o in overrides if o not in papers and not o.startswith(_UNSAID)]
    if differing:
        labels[OURS] = " ".join(map(_short, differing))
    names = [name for name, _ in combination]
    return ArtifactRow(
        "/".join(names),
        labels,
        overrides,
        public=all(entry.public for entry in entries),
        published=all(entry.published for entry in entries),
        not_run=next(filter(None, map(_not_run, entries)), ""),
        metrics={k: v for entry in entries for k, v in entry.metrics.items()},
        mean_of=tuple(
            "/".join([*names[:i], other, *names[i + 1 :]])
            for i, entry in enumerate(entries)
            for other in entry.mean_of
        ),
        predict=_predict(entries),
    )


def _predict(entries: Sequence[AxisEntry]) -> tuple[PredictSpec, ...] | None:
    if any(entry.predict is False for entry in entries):
        return None
    return tuple(entry.predict for entry in entries if entry.predict)


def _not_run(entry: AxisEntry) -> str:
    """The reason why rows of an entry are not run; empty where they are."""
    if entry.cited:
        return f"the method of {cite(entry.cited)} is no part of lutlab"
    if entry.mean_of:
        return f"the mean of {', '.join(entry.mean_of)}, of which not all are measured"
    return entry.not_run


def _short(override: str) -> str:
    """Short form of an override: `sublayers.feed_forward.g=64` -> `ffn:g=64`."""
    for prefix, short in (("sublayers.attention.", "att:"), ("sublayers.feed_forward.", "ffn:")):
        override = override.replace(prefix, short)
    return override
