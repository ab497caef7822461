"""The table in long form for other programs: one metric a row, numbers unrounded, no number: an empty field."""

from __future__ import annotations

import csv
import io

from lutlab.records import ResultTable

FIELDS = (
    "artifact",
    "row",
    "labels",
    "column",
    "unit",
    "protocol",
    "published",
    "measured",
    "measured_on",
    "model",
    "stand_in",
    "verdict",
    "note",
    "cell_id",
)


def render(table: ResultTable) -> str:
    """RFC 4180 text with the header FIELDS; `labels` reads `Model=OPT-30B; q=4; g=32`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    writer.writerows(records(table))
    return text.getvalue()


def records(table: ResultTable) -> list[tuple[object, ...]]:
    """One tuple of FIELDS per cell, row by row. None where there is no number."""
    return [
        (
            table.artifact,
            row.key,
            "; ".join(f"{axis}={label}" for axis, label in row.labels.items()),
            column.key,
            column.unit,
            column.protocol,
            row.cells[column.key].published,
            row.cells[column.key].measured,
            column.measured_on,
            row.model,
            row.stand_in,
            row.cells[column.key].verdict,
            row.cells[column.key].note,
            row.cells[column.key].cell_id,
        )
        for row in table.rows
        for column in table.columns
    ]
