"""The terminal: never wider than the console, every number there, copied text readable."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.experiment.report.example import example_table

from lutlab.experiment.artifact.outcome import ResultTable
from lutlab.experiment.report import print_table
from lutlab.experiment.report.layout import break_lines, lay_out


def printed(table: ResultTable, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_table(table, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_fits_and_is_complete(width: int) -> None:
    table = example_table()
    text = printed(table, width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    layout = lay_out(table)
    for block in (*layout.main.blocks, *layout.reference.blocks):
        for line in block.lines:
            for entry in line.entries:
                assert entry.paper in text
                assert entry.ours_text in text or block in layout.reference.blocks
    for word in (
        "ours: opt-embedded-s (stand-in)",
        "† stand-in",
        "¹ failed: RuntimeError",
        "pydocs",
    ):
        assert word in text
    assert text.count("needs an NVIDIA GPU") == 1
    assert "✓ paper 12/12 · ✗ ours 11 hold, 1 fails, 0 below noise" in " ".join(text.split())


@pytest.mark.parametrize("width", [80, 100])
def test_four_measured_columns_stand_in_one_table(width: int) -> None:
    text = printed(example_table(), width)
    assert text.count("OPT-66B · ours") == 1
    rows = [line for line in text.splitlines() if "41.93 †" in line]
    assert all(number in rows[0] for number in ("9.71", "89.77 †", "16.16", "56.10 †", "4.625"))


def test_numbers_of_a_column_are_aligned() -> None:
    lines = printed(example_table(), 100).splitlines()
    dots = {
        line.index(".", line.index(n) - 1)
        for line in lines
        for n in ("41.07 †", "57.25 †")
        if n in line
    }
    assert len(dots) == 1


def test_a_sweep_without_a_paper_prints() -> None:
    table = example_table()
    columns = tuple(c for c in table.columns if not c.published)
    table = dataclasses.replace(table, columns=columns, claims=(), citation="", notes=())
    text = printed(table, 80)
    assert "4.625" in text
    assert "Claims" not in text
    assert "Published" not in text
    assert "paper" not in text


def test_heads_break_after_separators_and_long_words_are_cut() -> None:
    assert break_lines("ours: lambada-joined [inferred]", 12) == (
        "ours:",
        "lambada-",
        "joined",
        "[inferred]",
    )
    assert break_lines("last word (accuracy)", 4) == ("last word", "(accuracy)")
    assert break_lines("a" * 20, 4) == ("a" * 14, "a" * 6)


def with_errors(column: str, proportion: bool) -> ResultTable:
    table = example_table()
    rows = [
        dataclasses.replace(
            row,
            cells={
                key: dataclasses.replace(cell, n=176, shares={"text": (0.031,)})
                if key == column
                else cell
                for key, cell in row.cells.items()
            },
        )
        for row in table.rows
    ]
    columns = [
        dataclasses.replace(c, proportion=proportion) if c.key == column else c
        for c in table.columns
    ]
    return dataclasses.replace(table, rows=tuple(rows), columns=tuple(columns))


@pytest.mark.parametrize(
    ("width", "proportion", "shown"),
    [(160, False, True), (60, False, False), (60, True, True)],
)
def test_errors_stand_where_they_fit_and_always_beside_accuracies(
    width: int, proportion: bool, shown: bool
) -> None:
    text = printed(with_errors("lambada", proportion), width)
    assert ("57.02 ± 0.03 †" in text) == shown
    assert ("n=176" in text) == proportion
    assert max(cell_len(line) for line in text.splitlines()) <= width
