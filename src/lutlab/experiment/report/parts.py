"""Parts of a laid-out report: strings in their places. layout.py fills these, the formats print them."""

from __future__ import annotations

from dataclasses import dataclass

from lutlab.experiment.report.claims import ClaimView

DASH = "–"


@dataclass(frozen=True)
class Head:
    """A column. `ours` heads the measured half; `paper` the published one: `paper`, `cited`, '' where there is none."""

    key: str
    title: str
    unit: str
    protocol: str
    paper: str
    ours: str
    proportion: bool = False  # accuracies, which are never without their error

    @property
    def name(self) -> str:
        """Title and unit, unless the title says the unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True)
class Entry:
    """A cell. `ours` holds the measured number, or the word that says why there is none; `foot` numbers its reason.

    `error` is the number's standard error, `± 0.05`; empty where it has none.
    """

    paper: str
    ours: str
    mark: str
    foot: str
    delta: str
    verdict: str
    note: str
    measured: bool
    error: str = ""

    @property
    def ours_mark(self) -> str:
        """Marks after the number or word: ` †²`, `¹` or nothing."""
        mark = f"{self.mark}{self.foot}"
        return f" {mark}" if mark and self.measured else mark

    @property
    def ours_text(self) -> str:
        """Number or word with its error and mark: `12.34 ± 0.05 †²`, `not run¹`."""
        return f"{self.ours}{f' {self.error}' if self.error else ''}{self.ours_mark}"


@dataclass(frozen=True)
class Line:
    """A row: its key, its labels in the order of the axes, the model measured, one entry per head of its grid."""

    key: str
    labels: tuple[str, ...]
    model: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Block:
    """Rows under one heading (none: ''). `measured_on` says which model ours are of, where the heading does not."""

    heading: str
    measured_on: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Grid:
    """Heads over blocks of lines. Where blocks have headings, the first axis stands there and can be left out."""

    heads: tuple[Head, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Layout:
    """All strings of a report, in reading order."""

    artifact: str
    title: str
    paper: str  # citation and place; empty where no column is a paper's
    scale: str
    command: str
    stand_ins: tuple[str, ...]
    axes: tuple[str, ...]
    headed: bool  # blocks have headings
    telling: int  # so many axes, from the first on, tell all rows apart
    show_model: bool  # the model measured is not one of the labels
    main: Grid
    reference: Grid
    reasons: tuple[str, ...]  # why the reference grid has no measured half
    left_out: str  # which rows of a long table are not among the lines
    legend: tuple[str, ...]
    footnotes: tuple[str, ...]
    claims: tuple[ClaimView, ...]
    notes: tuple[str, ...]
    origins: tuple[str, ...]  # where the measured numbers come from, in lines, and fact by fact
    provenance: tuple[tuple[str, str], ...]
