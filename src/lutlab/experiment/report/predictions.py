"""Predicted cells in a report: their verdict, and the word that no reader takes for a measured number."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from lutlab.experiment.artifact.columns import ColumnSpec
from lutlab.experiment.artifact.outcome import Cell
from lutlab.experiment.artifact.predicted import VERDICT, Asked, because, predicted
from lutlab.experiment.report.digits import number

NOT_YET = "not measured yet"
WORD = "pred."  # before every predicted number, since it stands where a measured one would
MEANING = f"{WORD} predicted, not measured: of the paper's model on the paper's GPUs; in no claim"
HEAD = "predicted"  # in the place of `ours: …`


def with_prediction(cell: Cell, asked: Asked | None, spec: ColumnSpec) -> Cell:
    """The cell with what is predicted for it, which is its verdict where it cannot be measured here."""
    if asked is None:
        return cell
    found = predicted(asked, spec.factor)
    if cell.verdict != "not run" or cell.note == NOT_YET:
        return dataclasses.replace(cell, predicted=found.value)
    note = because(found.note, cell.note)
    return dataclasses.replace(cell, predicted=found.value, verdict=VERDICT, note=note)


def is_all(cells: Iterable[Cell]) -> bool:
    """Whether predictions are all that a column has."""
    verdicts = {cell.verdict for cell in cells}
    return VERDICT in verdicts and verdicts <= {VERDICT, "not run"}


def word(cell: Cell, decimals: int) -> str:
    """A predicted cell in words: `pred. 41.2`, `pred. OOM`."""
    value = cell.predicted
    return f"{WORD} {value if isinstance(value, str) else number(value, decimals)}"
