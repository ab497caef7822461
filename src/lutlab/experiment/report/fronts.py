"""Rows whose points are on the Pareto fronts of a figure, and the rows that are then shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fnmatch import fnmatchcase

from lutlab.experiment.artifact.artifact import Curve
from lutlab.experiment.artifact.outcome import FRONT, TRIED, ResultTable, Row
from lutlab.experiment.artifact.pareto import Point, front

LONGEST = 60  # rows of a curve that are all shown


def mark_fronts(rows: Sequence[Row], curve: Curve) -> tuple[Row, ...]:
    """The rows, each saying whether its measured point is on the front of its group."""
    groups: dict[str, dict[str, Point]] = {}
    for row in rows:
        x, y = row.cells[curve.x].measured, row.cells[curve.y].measured
        if x is not None and y is not None and not fnmatchcase(row.key, curve.baseline):
            groups.setdefault(curve.front_of(row.key), {})[row.key] = (x, y)
    on_front = {
        list(points)[i]
        for points in groups.values()
        for i in front([*points.values()], curve.larger)
    }
    return tuple(
        dataclasses.replace(
            row,
            on_front=row.key in on_front,
            labels={**row.labels, FRONT: "yes"} if row.key in on_front else row.labels,
        )
        for row in rows
    )


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


def _must_show(row: Row, baseline: str) -> bool:
    tried = any(cell.verdict in TRIED for cell in row.cells.values())
    return fnmatchcase(row.key, baseline) or tried or _is_printed(row)


def _is_printed(row: Row) -> bool:
    return any(cell.published is not None for cell in row.cells.values())
