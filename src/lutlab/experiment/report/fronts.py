"""A figure's curve as its artifact describes it, the points on its fronts, and the rows that are then shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fnmatch import fnmatchcase

from lutlab.experiment.artifact.artifact import Artifact
from lutlab.experiment.artifact.outcome import FRONT, TRIED, Curve, ResultTable, Row
from lutlab.experiment.artifact.pareto import Point, front

LONGEST = 60  # rows of a curve that are all shown


def curve_of(artifact: Artifact, scale: str) -> Curve | None:
    """The figure of an artifact at a scale; None where it has none."""
    if (spec := artifact.figure) is None:
        return None
    y = spec.y_at.get(scale, spec.y)
    larger = tuple(not artifact.columns[column].lower_is_better for column in (spec.x, y))
    return Curve(
        spec.x,
        y,
        tuple(spec.series),
        larger,
        spec.per,
        spec.baseline,
        spec.degradation,
        spec.panel,
        spec.rowwise,
        spec.front,
        tuple(spec.beside),
        spec.y if y != spec.y else "",
    )


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
