"""A table without what hides its message: rows of a long curve, columns that repeat others, a machine in every head.

Each takes a table and returns it with the words that say what it left out.
"""

from __future__ import annotations

import dataclasses
import re
from fnmatch import fnmatchcase

from lutlab.experiment.artifact.outcome import TRIED, Column, PublishedRow, ResultTable

LONGEST = 60  # rows of a curve that are all shown


def shortened(table: ResultTable) -> tuple[ResultTable, str]:
    """The table without the rows that would hide its message, and the sentence that says so."""
    if table.curve is None or len(table.rows) <= LONGEST or not any(r.on_front for r in table.rows):
        return table, ""
    baseline = table.curve.baseline
    shown = tuple(row for row in table.rows if row.on_front or _must_show(row, baseline))
    printed = " or stands in a paper" if any(map(_is_printed, table.rows)) else ""
    sentence = (
        f"{len(shown)} of {len(table.rows)} rows shown: full precision, the Pareto front, and what failed{printed}; "
        "table.csv has all"
    )
    return dataclasses.replace(table, rows=shown), sentence


def _must_show(row: PublishedRow, baseline: str) -> bool:
    tried = any(cell.verdict in TRIED for cell in row.cells.values())
    return fnmatchcase(row.key, baseline) or tried or _is_printed(row)


def _is_printed(row: PublishedRow) -> bool:
    return any(cell.published is not None for cell in row.cells.values())


def without_repeated(table: ResultTable) -> tuple[ResultTable, list[str]]:
    """The table without columns of ours that have the numbers of an earlier one in every row, and a note of each."""
    kept: dict[tuple[object, ...], Column] = {}
    notes = []
    for column in table.columns:
        cells = [row.cells[column.key] for row in table.rows]
        numbers = tuple(cell.measured for cell in cells)
        same = kept.get((column.unit, *numbers))
        if same and not column.published and any(number is not None for number in numbers):
            notes.append(f"{column.title}: as {same.title} in every row")
        else:
            kept.setdefault((column.unit, *numbers), column)
    columns = tuple(c for c in table.columns if c in kept.values() or c.published)
    return dataclasses.replace(table, columns=columns), notes


def without_place(table: ResultTable) -> tuple[ResultTable, str]:
    """The table without the machine in its heads, and that machine, where it is one for all speeds."""
    ends = {match[0] for c in table.columns if (match := re.search(r"\bon .*", c.machine))}
    if len(ends) != 1:
        return table, ""
    (place,) = ends
    columns = (
        dataclasses.replace(c, machine=c.machine.removesuffix(place).rstrip())
        for c in table.columns
    )
    return dataclasses.replace(table, columns=tuple(columns)), place
