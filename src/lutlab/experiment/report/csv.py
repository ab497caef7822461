"""The table in long form for other programs: one metric a row, numbers unrounded, no number: an empty field."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from lutlab.experiment.artifact.outcome import ResultTable


def render(table: ResultTable) -> str:
    """RFC 4180 text; the header names the keys of `ResultTable.long_form`."""
    return _text(table.long_form())


def render_variants(tables: Mapping[str, ResultTable]) -> str:
    """The tables of an artifact, one below the other; the first field names the variant."""
    return _text(
        [{"variant": name} | cell for name, table in tables.items() for cell in table.long_form()]
    )


def parse(text: str) -> list[dict[str, str]]:
    """The rows of a rendered text by the names of the header; every value is a string."""
    return list(csv.DictReader(io.StringIO(text, newline="")))


def _text(cells: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(cells[0]) if cells else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    return text.getvalue()
