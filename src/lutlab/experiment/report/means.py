"""Cells that are means of others: a column of averages, or a row that stands for several.

Nothing is run for them, and no record has them: they are taken from the measured cells, each time a table is made.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from lutlab.experiment.artifact.artifact import Artifact
from lutlab.experiment.artifact.columns import ColumnSpec
from lutlab.experiment.artifact.outcome import Cell, Row
from lutlab.experiment.artifact.rows import ArtifactRow

# Verdicts of a number that is compared with the paper's, or has none to be compared with.
_COMPARED = ("match", "within tolerance", "deviates", "measured only")


def is_mean(row: ArtifactRow, spec: ColumnSpec) -> bool:
    """Whether a cell of that row and column is the mean of others."""
    return bool(row.mean_of or spec.mean_of)


def with_means(artifact: Artifact, rows: Sequence[Row], scale: str) -> list[Row]:
    """The rows with their means, of cells that are all measured; others stay as they are."""
    known = {row.key: row for row in artifact.rows(scale)}
    found: dict[str, Row] = {row.key: row for row in rows}
    for key, row in found.items():
        wanted = known[key].mean_of
        if wanted and all(other in found for other in wanted):
            cells = {
                name: _mean(cell, artifact.columns[name], [found[o].cells[name] for o in wanted])
                for name, cell in row.cells.items()
            }
            found[key] = dataclasses.replace(row, cells=cells)
    for key, row in found.items():
        cells = dict(row.cells)
        for name, spec in artifact.columns.items():
            if spec.mean_of:
                cells[name] = _mean(cells[name], spec, [cells[o] for o in spec.mean_of])
        found[key] = dataclasses.replace(row, cells=cells)
    return list(found.values())


def _mean(cell: Cell, spec: ColumnSpec, sources: Sequence[Cell]) -> Cell:
    values = [source.measured for source in sources if source.measured is not None]
    if len(values) < len(sources) or not values:
        return cell
    mean = statistics.mean(values)
    others = [source.verdict for source in sources if source.verdict not in _COMPARED]
    if others:  # a stand-in, or synthetic weights
        return Cell(cell.column, cell.published, mean, others[0], "the mean of such numbers")
    return Cell(cell.column, cell.published, mean, compared(spec, mean, cell.published))


def compared(spec: ColumnSpec, value: float, published: float | str | None) -> str:
    """The verdict of a value of the paper's own model and text, measured on a machine like the paper's."""
    if not isinstance(published, float | int):
        return "measured only"
    distance = abs(value - published) / abs(published)
    if distance <= spec.match:
        return "match"
    return "within tolerance" if distance <= spec.tolerance else "deviates"
