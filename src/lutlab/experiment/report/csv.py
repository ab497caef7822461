"""The table in long form for other programs: one metric a row, numbers unrounded, no number: an empty field.

A text that a spreadsheet would compute (`=…`, `+…`, `-…`, `@…`, after a tab too) has an apostrophe before it, by which
spreadsheets know a text, and which `parse` takes off again. Numbers are left alone: -3.5 is one. Control characters
are escapes.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from typing import Any

from lutlab.base.escapes import visible
from lutlab.experiment.artifact.outcome import ResultTable

_FORMULA = re.compile(r"'*[=+\-@\t].")  # a lone character is none


def guarded(value: Any) -> Any:
    """A field as it is written: with an apostrophe before a text that a spreadsheet would compute.

    >>> guarded("=1+1"), guarded(-3.5), guarded("-3.5"), guarded("-")
    ("'=1+1", -3.5, '-3.5', '-')
    """
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if _is_computed(text) else text


def _bare(text: str) -> str:
    """The text that `guarded` wrote."""
    return text[1:] if text[:1] == "'" and _is_computed(text[1:]) else text


def _is_computed(text: str) -> bool:
    if not _FORMULA.match(text):
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False


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
    rows = csv.DictReader(io.StringIO(text, newline=""))
    return [
        {name: _bare(v) if isinstance(v, str) else v for name, v in row.items()} for row in rows
    ]


def _text(cells: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(cells[0]) if cells else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: guarded(value) for name, value in cell.items()} for cell in cells)
    return text.getvalue()
