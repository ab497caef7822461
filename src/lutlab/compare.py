"""Join an artifact's published numbers with the measured cells: verdicts, claims, one ResultTable for the report.

A number measured on a stand-in (another model, or another text) is never compared with the paper's as if it were the
same: its verdict is `stand-in` and only the claims are judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lutlab.claims import Numbers, judge
from lutlab.data.protocols import PROTOCOLS
from lutlab.plan import PlannedCell, PlannedRow
from lutlab.records import Cell, Column, ResultTable, Row
from lutlab.tables import Artifact, ColumnSpec, cite, command_for


def tabulate(
    artifact: Artifact | None,
    rows: Sequence[PlannedRow],
    scale: str,
    environment: Mapping[str, Any],
) -> ResultTable:
    """Published beside measured. `artifact` is None for a free sweep, which has only measured columns."""
    columns = rows[0].columns
    table_rows = tuple(_row(artifact, row, scale) for row in rows)
    protocol_notes = [f"{c.title}: {c.note}" for c in columns.values() if c.note]
    return ResultTable(
        artifact=artifact.name if artifact else "sweep",
        title=artifact.title if artifact else "Sweep",
        citation=cite(artifact.citation) if artifact else "",
        source=artifact.source if artifact else "no paper: a sweep of your own",
        scale=scale,
        command=command_for(artifact.name) if artifact else "python run.py …",
        columns=tuple(_column(key, spec, rows[0]) for key, spec in columns.items()),
        rows=table_rows,
        claims=_claims(artifact, table_rows) if artifact else (),
        notes=(*(artifact.notes if artifact else ()), *protocol_notes),
        provenance=environment,
    )


def _column(key: str, spec: ColumnSpec, row: PlannedRow) -> Column:
    text = row.cells[key].evaluation.text
    return Column(
        key=key,
        title=spec.title,
        unit=spec.unit,
        protocol=_protocol_label(spec.text),
        measured_on=_protocol_label(text and text.protocol),
        published=spec.published,
        lower_is_better=spec.lower_is_better,
    )


def _protocol_label(protocol: str | None) -> str:
    """The protocol's name, and that we inferred it where no paper or code states it."""
    if protocol is None:
        return ""
    return protocol if PROTOCOLS[protocol].attested else f"{protocol} [inferred]"


def _row(artifact: Artifact | None, row: PlannedRow, scale: str) -> Row:
    cells = {
        key: _cell(key, spec, row.cells[key], row, _published(artifact, row.key, key), scale)
        for key, spec in row.columns.items()
    }
    stand_in = artifact is not None and scale != "paper"
    return Row(row.key, row.labels, row.spec.model.name, stand_in, cells)


def _published(artifact: Artifact | None, row: str, column: str) -> float | str | None:
    if artifact is None:
        return None
    first, _, second = row.partition("/")
    return artifact.published.get(first, {}).get(second, {}).get(column)


def _cell(
    key: str,
    spec: ColumnSpec,
    cell: PlannedCell,
    row: PlannedRow,
    published: float | str | None,
    scale: str,
) -> Cell:
    if cell.missing:
        return Cell(key, published, None, "not run", cell.missing)
    if cell.record is None:
        return Cell(key, published, None, "not run", "not measured yet", cell.cell_id)
    if cell.record.status != "done":
        verdict = "OOM" if cell.record.status == "oom" else "failed"
        return Cell(key, published, None, verdict, cell.record.reason, cell.cell_id)
    value = cell.record.values[spec.metric]
    verdict, note = _verdict(spec, cell, row, value, published, scale)
    return Cell(key, published, value, verdict, note, cell.cell_id)


def _verdict(
    spec: ColumnSpec,
    cell: PlannedCell,
    row: PlannedRow,
    value: float,
    published: float | str | None,
    scale: str,
) -> tuple[str, str]:
    if row.spec.model.source == "synthetic":
        return "synthetic weights", row.spec.model.name
    if not isinstance(published, float | int):
        return "measured only", ""
    text = cell.evaluation.text
    if scale != "paper" or (text and text.protocol != spec.text):
        return "stand-in", row.spec.model.name + (f" on {text.protocol}" if text else "")
    distance = abs(value - published) / abs(published)
    if distance <= spec.match:
        return "match", ""
    return ("within tolerance" if distance <= spec.tolerance else "deviates"), ""


def _claims(artifact: Artifact, rows: Sequence[Row]) -> tuple:
    published: dict[str, dict[str, dict[str, float | None]]] = {}
    measured: dict[str, dict[str, dict[str, float | None]]] = {}
    for row in rows:
        first, _, second = row.key.partition("/")
        values = {key: cell.published for key, cell in row.cells.items()}
        published.setdefault(first, {})[second] = {k: _number(v) for k, v in values.items()}
        measured.setdefault(first, {})[second] = {k: cell.measured for k, cell in row.cells.items()}
    blank: Numbers = {
        name: dict.fromkeys(artifact.columns) for name in artifact.axes[-1]
    }  # rows left out of a partial run are undecidable, not unknown
    names = list(artifact.axes[0])
    return tuple(
        judge(
            claim,
            {m: blank | published.get(m, {}) for m in names},
            {m: blank | measured.get(m, {}) for m in names},
        )
        for claim in artifact.claims
    )


def _number(value: float | str | None) -> float | None:
    return float(value) if isinstance(value, float | int) else None
