"""The report in a terminal, as wide as the console: a column is `paper | ours`, and no line is longer than the width.

Each head is one rich column whose cells are already padded halves; so its title spans both. A block of rows is a rich
table of its own under its heading; all have the same column widths. Heads that do not fit go to a further table.

Standard errors stand beside all numbers where one table still holds them, else beside accuracies only: of few examples
these say nothing without. The files have all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from lutlab.experiment.artifact.outcome import FRONT, ClaimResult
from lutlab.experiment.artifact.rows import OURS
from lutlab.experiment.report.layout import Block, Grid, Head, Layout, Line, break_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WRAPS = (22, 16, 12, 9)  # widths at which heads are broken, widest first
SEPARATOR = 3  # ` │ ` between columns
STYLES = {
    "match": "green",
    "within tolerance": "green",
    "deviates": "yellow",
    "stand-in": "cyan",
    "synthetic weights": "cyan",
    "measured only": "cyan",
    "predicted": "magenta",
    "failed": "bold red",
    "OOM": "bold red",
}
MOST_ORIGINS = 4  # lines of where numbers come from
MOST_NAMED = 3  # instances of a claim that are printed, of those that fail and of those below noise


class Column(NamedTuple):
    """A column of a rich table: its head, a text for each line, and the width at which none is cut."""

    head: Text
    texts: Mapping[Line, Text | str]
    width: int
    justify: Literal["left", "right"] = "left"


def print_layout(layout: Layout, console: Console) -> None:
    """Print the whole report."""
    from rich.text import Text

    _say(console, Text(layout.title, style="bold"))
    if layout.paper:
        _say(console, Text(f"paper: {layout.paper}", style="dim"))
    _say(console, Text(f"ours: {layout.measured}, {layout.command}", style="dim"))
    if layout.stand_ins:
        names = ", ".join(layout.stand_ins)
        _say(console, Text(f"stand-ins, not comparable in value: {names}", style="cyan"))
    if layout.main.heads:
        _print_grid(layout, layout.main, console, measured=True)
        for line in filter(None, (layout.left_out, *layout.legend, *layout.footnotes)):
            _say(console, Text(line, style="dim"), indent=2)
    if layout.reference.heads:
        console.print()
        _say(console, Text("Published, not measured here", style="bold"))
        _print_grid(layout, layout.reference, console, measured=False)
        for line in layout.reasons:
            _say(console, Text(line, style="dim"), indent=2)
    _print_claims(layout, console)
    for line in layout.notes:
        _say(console, Text(f"note: {line}", style="dim"))
    for line in _origins(layout.origins):
        _say(console, Text(f"measured: {line}", style="dim"))


def _origins(lines: Sequence[str]) -> list[str]:
    """Origins of the measured numbers; of many the first."""
    others = len(lines) - MOST_ORIGINS
    if others <= 1:
        return list(lines)
    return [*lines[:MOST_ORIGINS], f"and in {others} other ways, which table.md names"]


def _say(console: Console, text: Text, indent: int = 0) -> None:
    from rich.padding import Padding

    console.print(Padding(text, (0, 0, 0, indent), expand=False), highlight=False)


def _print_claims(layout: Layout, console: Console) -> None:
    from rich.text import Text

    for heading, claims in layout.claims:
        console.print()
        _say(console, Text(heading, style="bold"))
        for claim in claims:
            _print_claim(claim, console)


def _print_claim(claim: ClaimResult, console: Console) -> None:
    from rich.text import Text

    style = {"✓": "green", "✗": "bold red"}.get(claim.sign, "dim")
    counts = Text.assemble((claim.paper, "dim"), " · ", (claim.ours, style))
    counts.append(f" {claim.instances(MOST_NAMED)}".rstrip())
    _say(console, Text(f"{claim.text} ({claim.where})"))
    _say(console, counts, indent=2)


# ---- grids ----


def _print_grid(layout: Layout, grid: Grid, console: Console, measured: bool) -> None:
    lines = [line for block in grid.blocks for line in block.lines]
    # Too wide: better without the axes that tell nothing more.
    for n in (len(layout.axes), layout.telling):
        axes = _axes(layout, lines, n, measured)
        room = console.width - 1 - sum(axis.width + SEPARATOR for axis in axes)
        tables = _fit(grid, lines, room, measured)
        if len(tables) == 1:
            break
    for columns in tables:
        console.print()
        if layout.headed:
            console.print(_rich_table([*axes, *columns], show_header=True))
        for block in grid.blocks:
            _print_block(block, [*axes, *columns], console, measured)


def _axes(layout: Layout, lines: Sequence[Line], n: int, measured: bool) -> list[Column]:
    """The first `n` axes and those of ours, but not the one that stands in the headings of the blocks.

    Numbers and dashes are right-aligned, words left-aligned.
    """
    from rich.text import Text

    texts = {
        title: [line.labels[i] for line in lines]
        for i, title in enumerate(layout.axes)
        if i < n or title in (OURS, FRONT)
    }
    if layout.headed:
        del texts[layout.axes[0]]
    if measured and layout.show_model and not layout.headed:
        texts["ours on"] = [line.model for line in lines]
    return [
        Column(
            Text(title),
            dict(zip(lines, labels, strict=True)),
            max(map(len, [title, *labels])),
            "left" if any(char.isalpha() for label in labels for char in label) else "right",
        )
        for title, labels in texts.items()
    ]


def _print_block(block: Block, columns: Sequence[Column], console: Console, measured: bool) -> None:
    from rich.text import Text

    if block.heading:
        heading = Text(block.heading, style="bold")
        if measured and block.measured_on:
            heading.append(f" · ours: {block.measured_on}", style="not bold cyan")
        _say(console, heading)
    table = _rich_table(columns, show_header=not block.heading)
    for line in block.lines:
        table.add_row(*(column.texts[line] for column in columns))
    console.print(table)


def _rich_table(columns: Sequence[Column], show_header: bool) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.MINIMAL, show_edge=False, show_header=show_header, header_style="")
    for column in columns:
        width = column.width
        table.add_column(column.head, justify=column.justify, min_width=width, max_width=width)
    return table


def _fit(grid: Grid, lines: Sequence[Line], room: int, measured: bool) -> list[list[Column]]:
    """Columns for one table at the widest heads that fit, best with all errors; else for as many tables as it takes."""
    for errors, wrap in itertools.product((True, False), WRAPS):
        columns = [
            _column(head, i, lines, wrap, measured, errors) for i, head in enumerate(grid.heads)
        ]
        if sum(column.width + SEPARATOR for column in columns) - SEPARATOR <= room:
            return [columns]
    tables: list[list[Column]] = [[]]
    for column in columns:
        used = sum(fitted.width + SEPARATOR for fitted in tables[-1])
        if tables[-1] and used + column.width > room:
            tables.append([])
        tables[-1].append(column)
    return tables


def _column(
    head: Head, index: int, lines: Sequence[Line], wrap: int, measured: bool, errors: bool
) -> Column:
    """`paper | ours`: numbers right-aligned, errors and marks after them left."""
    from rich.text import Text

    entries = [line.entries[index] for line in lines]
    # Of each: its head's lines, its texts, their styles.
    halves: list[tuple[Sequence[str], list[str], list[str]]] = []
    if head.paper:
        marks = _left(["" if measured else e.foot for e in entries])
        texts = _joined([e.paper for e in entries], marks, 5 + len(marks[0]))
        halves.append(([head.paper] if measured else [], texts, [""] * len(lines)))
    if measured or not head.paper:
        after = [f" {e.error}" if e.error and (errors or head.proportion) else "" for e in entries]
        marks = _left([e.ours_mark for e in entries])
        tails = [error + mark for error, mark in zip(_left(after), marks, strict=True)]
        words = [e.ours for e in entries]
        needed = max(map(len, words)) + len(tails[0])
        ours = break_lines(head.ours, max(wrap, needed))
        texts = _joined(words, tails, max(map(len, ours)))
        halves.append((ours, texts, [STYLES.get(e.verdict, "dim") for e in entries]))
    widths = [len(texts[0]) for _, texts, _ in halves]
    both = sum(width + 1 for width in widths) - 1
    title = break_lines(head.name, max(wrap, both))
    shown = Text("\n".join(title), style="bold")
    for line in itertools.zip_longest(*(half[0] for half in halves), fillvalue=""):
        padded = (word.rjust(width) for word, width in zip(line, widths, strict=True))
        shown.append("\n" + " ".join(padded), style="not bold dim")
    cells = (zip(texts, styles, strict=True) for _, texts, styles in halves)
    joined = [Text(" ").join(Text(*half) for half in cell) for cell in zip(*cells, strict=True)]
    return Column(shown, dict(zip(lines, joined, strict=True)), max(both, *map(len, title)))


def _left(texts: Sequence[str]) -> list[str]:
    """Texts of one width, left-aligned."""
    width = max(map(len, texts))
    return [text.ljust(width) for text in texts]


def _joined(words: Sequence[str], tails: Sequence[str], least: int) -> list[str]:
    """Words right-aligned before tails of one width, at least so wide."""
    width = max(least, max(map(len, words)) + len(tails[0]))
    return [word.rjust(width - len(tail)) + tail for word, tail in zip(words, tails, strict=True)]
