"""The one place that turns a ResultTable into strings: every format prints this layout, none looks at the table again.

A column is shown in the main grid when something of it was measured here (or was tried and failed), or when no paper
has numbers for it: published and measured side by side, the measured one headed by the text it was measured on. The
other columns, which only the paper has numbers for, make the `reference` grid, with the reasons below it. Rows that
share their first label (the model) and the model measured make a block under one heading. A published number never
stands in a measured place.

A figure of very many points is a table of its Pareto front; the CSV file has all rows.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from lutlab.base.escapes import mapped_texts, visible
from lutlab.experiment.artifact.artifact import CLAIM_KINDS
from lutlab.experiment.artifact.outcome import (
    TRIED,
    Cell,
    ClaimResult,
    Column,
    PublishedRow,
    ResultTable,
)
from lutlab.experiment.artifact.predicted import VERDICT
from lutlab.experiment.report.digits import (
    change,
    error_text,
    measured_decimals,
    number,
    printed_decimals,
    sized,
    superscript,
)
from lutlab.experiment.report.trimmed import shortened, without_place, without_repeated
from lutlab.experiment.store.noise import OF_PRODUCT

DASH = "–"
LONGEST_WORD = 14  # of a head; longer words are cut
PREDICTION = "pred."  # before every predicted number, since it stands where a measured one would
ERROR_MEANING = (
    "± standard error; in brackets: the difference to full precision, sample by sample where records "
    "have them"
)
ROUND_MEANING = "± after a time of a product, and after what is over it: the deviation of one round"
PREDICTION_MEANING = (
    f"{PREDICTION} predicted, not measured: of the paper's model on the paper's GPUs; in no claim"
)
# verdict of a measured number -> (mark, what the mark says below the table)
MARKS = {
    "match": ("=", "match: equal to the paper's number in every printed digit"),
    "within tolerance": ("≈", "within tolerance of the paper's number"),
    "deviates": ("≠", "deviates from the paper's number by more than the tolerance"),
    "stand-in": (
        "†",
        "stand-in: measured on another model, text or device, not comparable with the paper's number",
    ),
    "synthetic weights": (
        "‡",
        "synthetic weights: real shapes, random values; of a model cut to fewer layers, speed and memory are scaled "
        "to all of them",
    ),
    "cited by the paper": ("§", "the paper cites its number from elsewhere"),
    "measured only": ("", ""),
}
COMPARABLE = ("match", "within tolerance", "deviates")
# Shorter words for "no number of ours".
WORDS = {"published only": DASH, "cited by the paper": "cited"}
WORDS_MEANING = {
    DASH: f"{DASH} published only: nothing to measure here",
    "cited": "cited: by the paper",
}


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

    def halves(self, pairs: bool) -> list[str]:
        """Heads of its halves; without `pairs`, of the paper's alone, or of ours where there is no other."""
        return [self.paper, self.ours] if self.paper and pairs else [self.paper or self.ours]


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

    def halves(self, head: Head, pairs: bool, delta: bool = False) -> list[str]:
        """Texts of a column's halves; a published number that stands alone has the footnote.

        delta: whether ours is followed by its relative difference.
        """
        ours = f"{self.ours_text} {self.delta}".rstrip() if delta else self.ours_text
        if head.paper and pairs:
            return [self.paper, ours]
        return [self.paper + self.foot] if head.paper and not pairs else [ours]


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
    place: str  # where all speeds were measured, as `on AMD EPYC, 2 threads`; empty: heads say it, or there are none
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
    claims: tuple[tuple[str, tuple[ClaimResult, ...]], ...]  # by kind: heading, claims
    notes: tuple[str, ...]
    origins: tuple[str, ...]  # where the measured numbers come from, in lines, and fact by fact
    provenance: tuple[tuple[str, str], ...]

    @property
    def measured(self) -> str:
        """`scale embedded; speeds on AMD EPYC, 2 threads`."""
        return f"scale {self.scale}" + (f"; speeds {self.place}" if self.place else "")


def _by_kind(claims: Sequence[ClaimResult]) -> tuple[tuple[str, tuple[ClaimResult, ...]], ...]:
    kinds = {claim.kind for claim in claims}
    return tuple(
        (heading, tuple(claim for claim in claims if claim.kind == kind))
        for kind, heading in CLAIM_KINDS.items()
        if kind in kinds
    )


def lay_out(table: ResultTable) -> Layout:
    """Lay out a table: titles, columns, rows and notes."""
    _check(table)
    table, left_out = shortened(table)
    table, repeated = without_repeated(table)
    table, place = without_place(table)
    main = [c for c in table.columns if _in_main(table, c)]
    reference = [c for c in table.columns if c not in main]
    axes = tuple(dict.fromkeys(axis for row in table.rows for axis in row.labels))
    foot: dict[str, str] = {}  # text -> its mark, in the order of their first use
    foot_of_reference: dict[str, str] = {}
    headed = _headed(table.rows)
    main_grid = _grid(table, main, axes, headed, foot)
    reference_grid = _grid(table, reference, axes, headed, foot_of_reference)
    reasons = _footnotes(foot_of_reference)
    if len(reasons) == 1 and _all_marked(reference_grid):
        # One reason for all: say it once, without marks.
        reasons = tuple(foot_of_reference)
        reference_grid = _grid(table, reference, axes, headed, None)
    own = table.artifact.startswith("lutlab/")
    whose = "those that a row or column cites" if own else table.citation
    from_paper = bool(table.citation) or any(column.published for column in table.columns)
    footnotes = _footnotes(foot)
    texts = (*reasons, *footnotes)
    laid_out = Layout(
        artifact=table.artifact,
        title=table.title,
        paper=" · ".join(part for part in (whose, table.source) if part and from_paper),
        scale=table.scale,
        place=place,
        command=table.command,
        stand_ins=_stand_ins(table.rows),
        axes=axes,
        headed=headed,
        telling=_telling(table.rows, axes),
        show_model=any(row.model and row.model not in row.labels.values() for row in table.rows),
        main=main_grid,
        reference=reference_grid,
        reasons=reasons,
        left_out=left_out,
        legend=_legend(main_grid, main),
        footnotes=footnotes,
        claims=_by_kind(table.claims),
        notes=(
            *(note for note in table.notes if not any(note in text for text in texts)),
            *repeated,
        ),
        origins=table.origins,
        provenance=tuple(table.provenance.items()),
    )
    # Reasons and labels are whatever a record or a file says.
    return mapped_texts(laid_out, visible)


def _footnotes(foot: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"{mark} {text}" for text, mark in foot.items())


def _mark(foot: dict[str, str] | None, text: str) -> str:
    """The footnote's mark of a text, a new one at its first use."""
    if foot is None or not text:
        return ""
    return foot.setdefault(text, superscript(len(foot) + 1))


def _check(table: ResultTable) -> None:
    for row, column in itertools.product(table.rows, table.columns):
        if column.key not in row.cells or not row.cells[column.key].verdict:
            raise ValueError(
                f"{table.artifact}: row '{row.key}' has no cell with a verdict in column '{column.key}'"
            )


def _in_main(table: ResultTable, column: Column) -> bool:
    cells = [row.cells[column.key] for row in table.rows]
    tried = any(cell.measured is not None or cell.verdict in (*TRIED, VERDICT) for cell in cells)
    return tried or all(cell.published in (None, "") for cell in cells)


def _first_label(row: PublishedRow) -> str:
    return next(iter(row.labels.values()), "")


def _runs(rows: Sequence[PublishedRow]) -> list[list[PublishedRow]]:
    """Consecutive rows with the same first label, measured on the same model."""
    keyed = itertools.groupby(rows, key=lambda row: (_first_label(row), row.model, row.stand_in))
    return [list(group) for _, group in keyed]


def _headed(rows: Sequence[PublishedRow]) -> bool:
    same_axis = len({next(iter(row.labels), "") for row in rows}) == 1
    several = all(len(row.labels) > 1 for row in rows)
    return same_axis and several and len(_runs(rows)) < len(rows)


def _telling(rows: Sequence[PublishedRow], axes: tuple[str, ...]) -> int:
    for n in range(1, len(axes)):
        if len({tuple(row.labels.get(axis) for axis in axes[:n]) for row in rows}) == len(rows):
            return n
    return len(axes)


def _heading(row: PublishedRow) -> tuple[str, str]:
    axis, label = next(iter(row.labels.items()))
    name = label if any(c.isalpha() for c in label) else f"{axis} = {label}"
    if _stands_in(row):
        return name, f"{row.model} (stand-in)"
    return name, row.model if row.model != label else ""


def _grid(
    table: ResultTable,
    columns: Sequence[Column],
    axes: tuple[str, ...],
    headed: bool,
    foot: dict[str, str] | None,
) -> Grid:
    printers = [_printer(table, column, foot) for column in columns]
    blocks = []
    for run in _runs(table.rows) if headed else [list(table.rows)]:
        lines = [
            Line(
                key=row.key,
                labels=tuple(row.labels.get(axis) or DASH for axis in axes),
                model=f"{row.model} (stand-in)" if _stands_in(row) else row.model or DASH,
                entries=tuple(
                    entry(row, row.cells[column.key])
                    for entry, column in zip(printers, columns, strict=True)
                ),
            )
            for row in run
        ]
        heading, measured_on = _heading(run[0]) if headed else ("", "")
        blocks.append(Block(heading, measured_on, tuple(lines)))
    return Grid(tuple(_head(table, column) for column in columns), tuple(blocks))


def _head(table: ResultTable, column: Column) -> Head:
    unit = "" if column.unit in column.title else column.unit
    where = column.measured_on or column.machine
    ours = f"ours: {where}" if where else "ours"
    counts = {cell.n for row in table.rows if (cell := row.cells[column.key]).n is not None}
    if column.proportion and counts:
        ours += f", n={' to '.join(map(str, sorted({min(counts), max(counts)})))}"
    if _is_predicted(row.cells[column.key] for row in table.rows):
        ours = VERDICT
    whose = "" if not column.published else "cited" if column.cited else "paper"
    return Head(column.key, column.title, unit, column.protocol, whose, ours, column.proportion)


def _is_predicted(cells: Iterable[Cell]) -> bool:
    """Whether predictions are all that a column has."""
    verdicts = {cell.verdict for cell in cells}
    return VERDICT in verdicts and verdicts <= {VERDICT, "not run"}


_Printer = Callable[[PublishedRow, Cell], Entry]


def _printer(table: ResultTable, column: Column, foot: dict[str, str] | None) -> _Printer:
    """What makes entries with the column's number of decimals."""
    cells = [row.cells[column.key] for row in table.rows]
    printed = printed_decimals(cell.published for cell in cells)
    ours = measured_decimals(
        column.unit,
        printed if column.published else None,
        [v for cell in cells for v in (cell.measured, cell.predicted) if _is_number(v)],
        [cell.error for cell in cells if cell.error] if column.proportion else [],
    )

    def ours_of(cell: Cell) -> str:
        if cell.measured is not None:
            return f"{sized(cell.measured, ours, column.unit)}{_difference(cell, ours)}"
        if cell.verdict == VERDICT:
            value = cell.predicted
            return f"{PREDICTION} {number(value, ours) if _is_number(value) else value}"
        return WORDS.get(cell.verdict, cell.verdict)

    def entry(row: PublishedRow, cell: Cell) -> Entry:
        paper, delta = cell.published, ""
        if isinstance(paper, int | float):
            if cell.measured is not None and cell.verdict in COMPARABLE:
                delta = change(paper, cell.measured)
            paper = number(paper, printed)
        measured = cell.measured is not None
        mark = MARKS.get(cell.verdict, (f"({cell.verdict})", ""))[0] if measured else ""
        return Entry(
            paper=paper or DASH,
            ours=ours_of(cell),
            mark=mark,
            foot=_mark(foot, _reason(row, column, cell)),
            delta=delta,
            verdict=cell.verdict,
            note=cell.note,
            measured=measured,
            error="" if cell.difference else error_text(cell.error, ours),
        )

    return entry


def _difference(cell: Cell, decimals: int) -> str:
    """` (+2.95 ± 0.11)`, after a number of a sweep of one's own: its difference to full precision."""
    if cell.difference is None:
        return ""
    size = number(abs(cell.difference.value), decimals)
    error = error_text(cell.difference_error, decimals)
    return f" ({'-' if cell.difference.value < 0 else '+'}{size}{error and ' '}{error})"


def _is_number(value: float | str | None) -> TypeGuard[float]:
    return isinstance(value, int | float)


def _reason(row: PublishedRow, column: Column, cell: Cell) -> str:
    """The footnote of a cell: what neither the headings nor the difference printed beside the number say already."""
    is_heading = set(cell.note.split()) <= {"on", row.model, *column.measured_on.split()}
    is_difference = cell.verdict in COMPARABLE and cell.note.rstrip().endswith("%")
    if cell.measured is not None and (is_heading or is_difference):
        return ""
    return f"{cell.verdict}: {cell.note}" if cell.note else ""


def _all_marked(grid: Grid) -> bool:
    return all(e.foot for block in grid.blocks for line in block.lines for e in line.entries)


def _legend(grid: Grid, columns: Sequence[Column]) -> tuple[str, ...]:
    """The marks that the grid uses, explained, in the order of MARKS."""
    entries = [e for block in grid.blocks for line in block.lines for e in line.entries]
    marks = {e.verdict for e in entries if e.measured and e.mark}
    lines = [f"{mark} {text}" for verdict, (mark, text) in MARKS.items() if verdict in marks]
    words = {e.ours for e in entries if not e.measured}
    lines += [text for word, text in WORDS_MEANING.items() if word in words]
    if any(e.verdict == VERDICT for e in entries):
        lines.append(PREDICTION_MEANING)
    of_product = [bool(OF_PRODUCT.fullmatch(column.metric)) for column in columns]
    errors = {  # whether of a product
        of_product[i]
        for block in grid.blocks
        for line in block.lines
        for i, e in enumerate(line.entries)
        if "±" in f"{e.ours}{e.error}"
    }
    lines += [ERROR_MEANING] if False in errors else []
    lines += [ROUND_MEANING] if True in errors else []
    return tuple(lines)


def _stands_in(row: PublishedRow) -> bool:
    """Whether another model than the paper's is run in the row's place; none is in a row that nobody runs."""
    return row.stand_in and any(
        cell.verdict != "not run" or cell.cell_id for cell in row.cells.values()
    )


def _stand_ins(rows: Sequence[PublishedRow]) -> tuple[str, ...]:
    pairs = [f"{_first_label(row)} → {row.model}" for row in rows if _stands_in(row)]
    return tuple(dict.fromkeys(pairs))


def break_lines(text: str, width: int) -> tuple[str, ...]:
    """Break a head after blanks, `/`, `_` and `-`. A longer word makes its column wider, or is cut after LONGEST_WORD.

    >>> break_lines("ours: pydocs/library", 9)
    ('ours:', 'pydocs/', 'library')
    """
    words = re.findall(rf"[^\s/_-]{{1,{LONGEST_WORD}}}[/_-]?\s*|[/_-]\s*", text)
    width = max(width, *(len(word.rstrip()) for word in words))
    lines = [""]
    for word in words:
        if len((lines[-1] + word).rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += word
    return tuple(line.rstrip() for line in lines)
