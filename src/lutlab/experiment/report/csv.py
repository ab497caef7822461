"""The table in long form for other programs: one metric a row, numbers unrounded, no number: an empty field."""

from __future__ import annotations

import csv
import io

from lutlab.experiment.artifact.outcome import ResultTable


def render(table: ResultTable) -> str:
    """RFC 4180 text; the header names the keys of `ResultTable.long_form`."""
    cells = table.long_form()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(cells[0]) if cells else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    return text.getvalue()
