"""A sweep of one's own as a table: measured beside full precision, quality over stored size with its front."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lutlab.experiment.artifact.columns import SIZE
from lutlab.experiment.artifact.outcome import Cell, Curve, ResultTable, Row
from lutlab.experiment.plan.plan import PlannedRow
from lutlab.experiment.report import origins
from lutlab.experiment.report.compare import (
    column_here,
    options,
    records_of,
    row_of,
    told_of,
)
from lutlab.experiment.report.fronts import mark_fronts


def tabulate_sweep(name: str, rows: Sequence[PlannedRow], scale: str, command: str) -> ResultTable:
    """The table of a sweep.

    Args:
        name: name of the sweep and of its folder.
        rows: rows with their plans and records, those in full precision among them.
        scale: embedded, small or paper.
        command: the one that was typed.
    """
    columns = tuple(column_here(key, spec, rows) for key, spec in rows[0].columns.items())
    found = {row.key: row_of(None, row, scale) for row in rows}
    # a size has no such difference
    of_text = [key for key, spec in rows[0].columns.items() if spec.text]
    table_rows = tuple(_beside(found[row.key], found.get(row.baseline), of_text) for row in rows)
    curve, records = _size_against_quality(rows), records_of(rows)
    if curve:
        table_rows = mark_fronts(table_rows, curve)
    return ResultTable(
        artifact=f"sweep/{name}",
        title=f"Sweep {name}",
        citation="",
        source="no paper: a sweep of your own",
        scale=scale,
        command=command,
        columns=columns,
        rows=table_rows,
        claims=(),
        notes=tuple(options(told_of(rows))),
        origins=origins.lines(records),
        provenance=origins.facts(records),
        curve=curve,
    )


def _beside(row: Row, baseline: Row | None, columns: Sequence[str]) -> Row:
    """The row with the full-precision numbers of its model in some columns."""
    if baseline is None:
        return row
    found = {key: _difference(row.cells[key], baseline.cells[key]) for key in columns}
    return dataclasses.replace(row, cells={**row.cells, **found})


def _difference(cell: Cell, baseline: Cell) -> Cell:
    if cell.number is None or baseline.number is None:
        return cell
    difference = cell.number - baseline.number
    return dataclasses.replace(cell, baseline=baseline.measured, difference=difference)


def _size_against_quality(rows: Sequence[PlannedRow]) -> Curve | None:
    """The first quality over the stored size, a front a model; None where the sweep has not both."""
    columns = rows[0].columns
    quality = next((key for key, spec in columns.items() if spec.text), None)
    if quality is None or SIZE not in columns:
        return None
    larger = tuple(not columns[key].lower_is_better for key in (SIZE, quality))
    several = len({row.spec.name for row in rows}) > 1
    own = [axis for axis in rows[0].labels if axis not in ("Model", "q", "g")]  # what else differs
    series = ("Model", *own) if several else tuple(own)
    return Curve(SIZE, quality, series, larger, per=1, baseline="*/none/*", degradation=False)
