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
from collections.abc import Sequence

from lutlab.escapes import mapped_texts, visible
from lutlab.experiment.artifact.outcome import TRIED, Cell, Column, ResultTable, Row
from lutlab.experiment.artifact.predicted import VERDICT
from lutlab.experiment.report import predictions
from lutlab.experiment.report.claims import view
from lutlab.experiment.report.digits import (
    change,
    error_text,
    measured_decimals,
    number,
    printed_decimals,
    superscript,
)
from lutlab.experiment.report.fronts import shortened
from lutlab.experiment.report.parts import DASH, Block, Entry, Grid, Head, Layout, Line

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


class _Footnotes:
    """Numbers distinct texts in the order of their first use."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, text: str) -> str:
        if not text:
            return ""
        if text not in self.texts:
            self.texts.append(text)
        return superscript(self.texts.index(text) + 1)

    def lines(self) -> tuple[str, ...]:
        return tuple(f"{superscript(i)} {text}" for i, text in enumerate(self.texts, 1))


def lay_out(table: ResultTable) -> Layout:
    """Lay out a table: titles, columns, rows and notes.

    Raises:
        ValueError: a row has no cell for a column: no cell may be blank.
    """
    _check(table)
    table, left_out = shortened(table)
    main = [c for c in table.columns if _in_main(table, c)]
    reference = [c for c in table.columns if c not in main]
    axes = tuple(dict.fromkeys(axis for row in table.rows for axis in row.labels))
    foot, grid = _Footnotes(), _Footnotes()
    headed = _headed(table.rows)
    main_grid = _grid(table, main, axes, headed, foot)
    reference_grid = _grid(table, reference, axes, headed, grid)
    reasons = grid.lines()
    if len(reasons) == 1 and _all_marked(reference_grid):
        # One reason for all: say it once, without marks.
        reasons = (grid.texts[0],)
        reference_grid = _grid(table, reference, axes, headed, None)
    from_paper = bool(table.citation) or any(column.published for column in table.columns)
    said = (*reasons, *foot.lines())
    laid_out = Layout(
        artifact=table.artifact,
        title=table.title,
        paper=" · ".join(part for part in (table.citation, table.source) if part and from_paper),
        scale=table.scale,
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
        legend=_legend(main_grid),
        footnotes=foot.lines(),
        claims=tuple(view(claim) for claim in table.claims),
        notes=tuple(note for note in table.notes if not any(note in text for text in said)),
        origins=table.origins,
        provenance=tuple(table.provenance.items()),
    )
    # Reasons and labels are whatever a record or a file says.
    return mapped_texts(laid_out, visible)


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


def _first_label(row: Row) -> str:
    return next(iter(row.labels.values()), "")


def _runs(rows: Sequence[Row]) -> list[list[Row]]:
    """Consecutive rows with the same first label, measured on the same model."""
    keyed = itertools.groupby(rows, key=lambda row: (_first_label(row), row.model, row.stand_in))
    return [list(group) for _, group in keyed]


def _headed(rows: Sequence[Row]) -> bool:
    same_axis = len({next(iter(row.labels), "") for row in rows}) == 1
    several = all(len(row.labels) > 1 for row in rows)
    return same_axis and several and len(_runs(rows)) < len(rows)


def _telling(rows: Sequence[Row], axes: tuple[str, ...]) -> int:
    for n in range(1, len(axes)):
        if len({tuple(row.labels.get(axis) for axis in axes[:n]) for row in rows}) == len(rows):
            return n
    return len(axes)


def _heading(row: Row) -> tuple[str, str]:
    axis, label = next(iter(row.labels.items()))
    name = label if any(c.isalpha() for c in label) else f"{axis} = {label}"
    if row.stand_in:
        return name, f"{row.model} (stand-in)"
    return name, row.model if row.model != label else ""


def _grid(
    table: ResultTable,
    columns: Sequence[Column],
    axes: tuple[str, ...],
    headed: bool,
    foot: _Footnotes | None,
) -> Grid:
    printers = [_printer(table, column, foot) for column in columns]
    blocks = []
    for run in _runs(table.rows) if headed else [list(table.rows)]:
        lines = [
            Line(
                key=row.key,
                labels=tuple(row.labels.get(axis) or DASH for axis in axes),
                model=f"{row.model} (stand-in)" if row.stand_in else row.model or DASH,
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
    if predictions.is_all(row.cells[column.key] for row in table.rows):
        ours = predictions.HEAD
    whose = "" if not column.published else "cited" if column.cited else "paper"
    return Head(column.key, column.title, unit, column.protocol, whose, ours, column.proportion)


def _printer(table: ResultTable, column: Column, foot: _Footnotes | None):
    """A function (row, cell) -> Entry with the column's number of decimals."""
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
            return _beside(cell, ours)
        if cell.verdict == VERDICT:
            return predictions.word(cell, ours)
        return WORDS.get(cell.verdict, cell.verdict)

    def entry(row: Row, cell: Cell) -> Entry:
        paper = number(cell.published, printed) if _is_number(cell.published) else cell.published
        measured = cell.measured is not None
        mark = MARKS.get(cell.verdict, (f"({cell.verdict})", ""))[0] if measured else ""
        comparable = measured and _is_number(cell.published) and cell.verdict in COMPARABLE
        return Entry(
            paper=paper or DASH,
            ours=ours_of(cell),
            mark=mark,
            foot=foot.mark(_reason(row, column, cell)) if foot else "",
            delta=change(cell.published, cell.measured) if comparable else "",
            verdict=cell.verdict,
            note=cell.note,
            measured=measured,
            error="" if cell.difference else error_text(cell.error, ours),
        )

    return entry


def _beside(cell: Cell, decimals: int) -> str:
    """`30.14 (+2.95 ± 0.11)`: a measured number and, in a sweep of one's own, its difference to full precision."""
    text = number(cell.measured, decimals)
    if cell.difference is None:
        return text
    size = number(abs(cell.difference.value), decimals)
    error = error_text(cell.difference_error, decimals)
    return f"{text} ({'-' if cell.difference.value < 0 else '+'}{size}{error and ' '}{error})"


def _is_number(value: float | str | None) -> bool:
    return isinstance(value, int | float)


def _reason(row: Row, column: Column, cell: Cell) -> str:
    """The footnote of a cell: what neither the headings nor the difference printed beside the number say already."""
    said = set(cell.note.split()) <= {"on", row.model, *column.measured_on.split()}
    is_difference = cell.verdict in COMPARABLE and cell.note.rstrip().endswith("%")
    if cell.measured is not None and (said or is_difference):
        return ""
    return f"{cell.verdict}: {cell.note}" if cell.note else ""


def _all_marked(grid: Grid) -> bool:
    return all(e.foot for block in grid.blocks for line in block.lines for e in line.entries)


def _legend(grid: Grid) -> tuple[str, ...]:
    """The marks that the grid uses, explained, in the order of MARKS."""
    entries = [e for block in grid.blocks for line in block.lines for e in line.entries]
    marks = {e.verdict for e in entries if e.measured and e.mark}
    lines = [f"{mark} {text}" for verdict, (mark, text) in MARKS.items() if verdict in marks]
    words = {e.ours for e in entries if not e.measured}
    lines += [text for word, text in WORDS_MEANING.items() if word in words]
    if any(e.verdict == VERDICT for e in entries):
        lines.append(predictions.MEANING)
    return tuple(lines)


def _stand_ins(rows: Sequence[Row]) -> tuple[str, ...]:
    pairs = [f"{_first_label(row)} → {row.model}" for row in rows if row.stand_in]
    return tuple(dict.fromkeys(pairs))
