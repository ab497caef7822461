"""Cells that are means of others: a column of averages, or a row that stands for several.

Nothing is run for them, and no record has them: they are taken from the measured cells, each time a table is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from lutlab.experiment.artifact.artifact import Artifact
from lutlab.experiment.artifact.columns import ColumnSpec
from lutlab.experiment.artifact.outcome import Cell, Column, PublishedRow
from lutlab.experiment.artifact.rows import ArtifactRow, Scale
from lutlab.experiment.artifact.uncertain import mean as mean_of


def is_mean(row: ArtifactRow, spec: ColumnSpec) -> bool:
    """Whether a cell of that row and column is the mean of others."""
    return bool(row.mean_of or spec.mean_of)


def with_means(
    artifact: Artifact, columns: Sequence[Column], rows: Sequence[PublishedRow], scale: Scale
) -> list[PublishedRow]:
    """The rows with their means, of cells that are all measured; others stay as they are."""
    known = {row.key: row for row in artifact.rows(scale)}
    other_text = {c.key for c in columns if c.measured_on != c.protocol}
    by_key = {row.key: row for row in rows}

    def mean(row: PublishedRow, cell: Cell, sources: Sequence[Cell]) -> Cell:
        other = row.stand_in or not other_text.isdisjoint(source.column for source in sources)
        return _mean(cell, artifact.columns[cell.column], sources, row.model if other else "")

    for key, row in by_key.items():
        others = known[key].mean_of
        if others and all(other in by_key for other in others):
            cells = {
                name: mean(row, cell, [by_key[other].cells[name] for other in others])
                for name, cell in row.cells.items()
            }
            by_key[key] = dataclasses.replace(row, cells=cells)
    for key, row in by_key.items():
        cells = {
            name: mean(row, cell, [row.cells[other] for other in spec.mean_of])
            if (spec := artifact.columns[name]).mean_of
            else cell
            for name, cell in row.cells.items()
        }
        by_key[key] = dataclasses.replace(row, cells=cells)
    return list(by_key.values())


def _mean(cell: Cell, spec: ColumnSpec, sources: Sequence[Cell], stand_in: str) -> Cell:
    """The cell as the mean of its sources; `stand_in` names the model where it or the text is not the paper's."""
    numbers = [source.number for source in sources if source.number is not None]
    if len(numbers) < len(sources) or not numbers:
        return cell
    mean = mean_of(numbers)
    verdict, note = compared(spec, mean.value, cell.published), ""
    if "synthetic weights" in {source.verdict for source in sources}:
        verdict = "synthetic weights"
    elif stand_in and verdict != "measured only":
        verdict, note = "stand-in", stand_in
    chance: dict[str, Any] = {"sources": mean.sources, "shares": mean.shares}
    return Cell(cell.column, cell.published, mean.value, verdict, note, **chance)


def compared(spec: ColumnSpec, value: float, published: float | str | None) -> str:
    """The verdict of a value of the paper's own model and text, measured on a machine like the paper's."""
    if not isinstance(published, float | int):
        return "measured only"
    distance = abs(value - published) / abs(published)
    if distance <= spec.match:
        return "match"
    return "within tolerance" if distance <= spec.tolerance else "deviates"
