"""Resolved rows and what the store holds of them -> rows of cells to measure: pure data, and the jobs' order.

A column is one metric of one evaluation; several columns may read the same evaluation, which is measured once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lutlab.experiment.artifact.columns import ColumnSpec
from lutlab.experiment.plan.ids import Resolved, cell_identity, of_this_machine
from lutlab.experiment.store.record import Record, content_id
from lutlab.experiment.store.store import Store
from lutlab.specs import EvalSpec, ModelRun, RunSpec


@dataclass(frozen=True)
class PlannedCell:
    """One evaluation of one row. `record` is what the store holds of it; `missing` says why it cannot be run.

    `cell_id` is None where it is missing, and in mode=plan where files must be downloaded before it is known;
    `identity` is what it is the hash of (ids.py).
    """

    evaluation: EvalSpec
    cell_id: str | None
    record: Record | None = None
    missing: str = ""
    identity: Mapping[str, Any] | None = None

    @property
    def done(self) -> bool:
        """Measured already (a failed try is not)."""
        return self.record is not None and self.record.status == "done"


@dataclass(frozen=True)
class PlannedRow:
    """One row: what to run and its cells by column.

    Attributes:
        resolved: all that is known of its files; None of a row that is only reported.
        baseline: key of the same model's row in full precision, of the same sweep; empty where there is none.
    """

    key: str
    labels: Mapping[str, str]
    spec: RunSpec
    columns: Mapping[str, ColumnSpec]
    cells: Mapping[str, PlannedCell]
    resolved: Resolved | None = None
    baseline: str = ""

    @property
    def todo(self) -> dict[str, PlannedCell]:
        """Cells to measure by id: not done, runnable, each evaluation once."""
        return {c.cell_id: c for c in self.cells.values() if c.cell_id and not c.done}

    @property
    def alone(self) -> bool:
        """Whether it measures the machine itself, so that no other row may run at the same time."""
        return any(of_this_machine(cell.evaluation) for cell in self.todo.values())


def plan_row(
    key: str,
    labels: Mapping[str, str],
    columns: Mapping[str, ColumnSpec],
    resolved: Resolved,
    store: Store,
    baseline: str = "",
) -> PlannedRow:
    """One row, its cells with their records.

    Raises:
        LutlabError: a stored record is damaged.
    """
    known = {evaluation: cell_identity(resolved, evaluation) for evaluation in resolved.runnable}
    cells = {}
    for name, evaluation in resolved.evaluations.items():
        missing = resolved.missing.get(name, "")
        identity = None if missing else known.get(evaluation)
        cell_id = identity and content_id(identity)
        cells[name] = PlannedCell(evaluation, cell_id, missing=missing, identity=identity)
    row = PlannedRow(key, labels, resolved.run, columns, cells, resolved, baseline)
    return with_records(row, store)


def with_records(row: PlannedRow, store: Store) -> PlannedRow:
    """The row with what the store holds now.

    Raises:
        LutlabError: a stored record is damaged.
    """
    records = {i: store.load(i) for i in {c.cell_id for c in row.cells.values()} if i}
    cells = {
        name: dataclasses.replace(cell, record=records.get(cell.cell_id))
        for name, cell in row.cells.items()
    }
    return dataclasses.replace(row, cells=cells)


def fresh_cells(rows: Sequence[PlannedRow]) -> list[dict[str, PlannedCell]]:
    """Cells to measure of each row, by id; a cell of several rows goes to the first of them."""
    seen: set[str] = set()
    found = []
    for row in rows:
        found.append({i: cell for i, cell in row.todo.items() if i not in seen})
        seen |= found[-1].keys()
    return found


def cell_name(run: RunSpec, evaluation: EvalSpec) -> str:
    """`opt-embedded-s rtn q=4 g=128: ppl on topics`, for the reader who waits for it."""
    text = f" on {evaluation.text.name}" if evaluation.text else ""
    budget = run.budget if isinstance(run, ModelRun) else None
    width = f"q={run.q} g={run.g}" if budget is None else f"budget={budget:g}"
    return f"{run.name} {run.method} {width}: {evaluation.evaluator}{text}"
