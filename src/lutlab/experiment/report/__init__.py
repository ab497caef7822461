"""A ResultTable on paper and screen: published | measured | verdict and the claims, all formats from one layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lutlab.base.kept.files import write_atomically, write_sums
from lutlab.experiment.artifact.outcome import ResultTable
from lutlab.experiment.report import csv, figure, html, latex, markdown, terminal
from lutlab.experiment.report.layout import lay_out

if TYPE_CHECKING:
    from rich.console import Console


def write_report(table: ResultTable, folder: Path) -> list[Path]:
    """Write table.{md,csv,tex,html} and figure.{svg,png} into `folder`, and SHA256SUMS of them.

    The same table gives the same bytes.
    """
    layout = lay_out(table)
    svg, png = figure.render(table)
    contents = {
        "table.md": markdown.render(layout).encode(),
        "table.csv": csv.render(table).encode(),
        "table.tex": latex.render(layout).encode(),
        "table.html": html.render(layout, figure.inline(svg)).encode(),
        "figure.svg": svg,
        "figure.png": png,
    }
    paths = [write_atomically(folder / name, content) for name, content in contents.items()]
    return [*paths, write_sums(folder, paths)]


def print_table(table: ResultTable, console: Console) -> None:
    """Print the table, its claims and notes, no wider than the console."""
    terminal.print_layout(lay_out(table), console)
