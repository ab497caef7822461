"""The report in a terminal, as wide as the console: a column is `paper | ours`, and no line is longer than the width.

Each head is one rich column whose cells are already padded halves; so its title spans both. A block of rows is a rich
table of its own under its heading; all have the same column widths. Heads that do not fit go to a further table.

Standard errors stand beside all numbers where one table still holds them, else beside accuracies only: of few examples
these say nothing without. The files have all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lutlab.experiment.artifact.outcome import FRONT, OURS
from lutlab.experiment.report.layout import Block, Entry, Grid, Head, Layout, Line, break_lines

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


@dataclass(frozen=True)
class Half:
    """One half of a column: the lines of its head, its width, and of that of the errors and marks after the numbers."""

    head: tuple[str, ...]
    width: int
    marks: int
    ours: bool
    errors: int = 0

    def text(self, entry: Entry, alone: bool) -> str:
        """Numbers right-aligned, what follows them left. A published number `alone` carries the reason's footnote."""
        if self.ours:
            word, error, mark = entry.ours, entry.error if self.errors else "", entry.ours_mark
        else:
            word, error, mark = entry.paper, "", entry.foot if alone else ""
        after = f" {error}".ljust(self.errors) if self.errors else ""
        return word.rjust(self.width - self.errors - self.marks) + after + mark.ljust(self.marks)


@dataclass(frozen=True)
class ColumnPlan:
    """A column: the lines of its title, where its entries are in a line, its halves with a blank between them."""

    title: tuple[str, ...]
    index: int
    halves: tuple[Half, ...]
    width: int


@dataclass(frozen=True)
class Axis:
    """A column of labels."""

    title: str
    width: int
    labels: Mapping[Line, str]

    @property
    def numeric(self) -> bool:
        """Numbers and dashes are right-aligned, words left-aligned."""
        return not any(char.isalpha() for label in self.labels.values() for char in label)


def print_layout(layout: Layout, console: Console) -> None:
    """Print the whole report."""
    from rich.text import Text

    _say(console, Text(layout.title, style="bold"))
    if layout.paper:
        _say(console, Text(f"paper: {layout.paper}", style="dim"))
    _say(console, Text(f"ours: scale {layout.scale}, {layout.command}", style="dim"))
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
    more = len(lines) - MOST_ORIGINS
    if more <= 1:
        return list(lines)
    return [*lines[:MOST_ORIGINS], f"and in {more} other ways, which table.md names"]


def _say(console: Console, text: Text, indent: int = 0) -> None:
    from rich.padding import Padding

    console.print(Padding(text, (0, 0, 0, indent), expand=False), highlight=False)


def _print_claims(layout: Layout, console: Console) -> None:
    from rich.text import Text

    if layout.claims:
        console.print()
        _say(console, Text("Claims of the paper", style="bold"))
    for claim in layout.claims:
        style = {"✓": "green", "✗": "bold red"}.get(claim.sign, "dim")
        counts = Text.assemble((claim.paper, "dim"), " · ", (claim.ours, style))
        counts.append(f" {claim.instances(MOST_NAMED)}".rstrip())
        _say(console, Text(f"{claim.text} ({claim.where})"))
        _say(console, counts, indent=2)


# ---- grids ----


def _print_grid(layout: Layout, grid: Grid, console: Console, measured: bool) -> None:
    lines = [line for block in grid.blocks for line in block.lines]
    axes = _axes(layout, lines, len(layout.axes), measured)
    tables = _fit(grid, lines, axes, console.width, measured)
    # Too wide: better without the axes that tell nothing more.
    if len(tables) > 1 and layout.telling < len(layout.axes):
        axes = _axes(layout, lines, layout.telling, measured)
        tables = _fit(grid, lines, axes, console.width, measured)
    for plans in tables:
        console.print()
        if layout.headed:
            console.print(_rich_table(axes, plans, show_header=True))
        for block in grid.blocks:
            _print_block(block, axes, plans, console, measured)


def _axes(layout: Layout, lines: Sequence[Line], n: int, measured: bool) -> list[Axis]:
    """The first `n` axes and those of ours, but not the one that stands in the headings of the blocks."""
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
        Axis(title, max(map(len, [title, *labels])), dict(zip(lines, labels, strict=True)))
        for title, labels in texts.items()
    ]


def _print_block(
    block: Block,
    axes: Sequence[Axis],
    plans: Sequence[ColumnPlan],
    console: Console,
    measured: bool,
) -> None:
    from rich.text import Text

    if block.heading:
        heading = Text(block.heading, style="bold")
        if measured and block.measured_on:
            heading.append(f" · ours: {block.measured_on}", style="not bold cyan")
        _say(console, heading)
    table = _rich_table(axes, plans, show_header=not block.heading)
    for line in block.lines:
        table.add_row(*(axis.labels[line] for axis in axes), *(_cell(plan, line) for plan in plans))
    console.print(table)


def _rich_table(axes: Sequence[Axis], plans: Sequence[ColumnPlan], show_header: bool) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.MINIMAL, show_edge=False, show_header=show_header, header_style="")
    for axis in axes:
        justify = "right" if axis.numeric else "left"
        table.add_column(
            Text(axis.title), justify=justify, min_width=axis.width, max_width=axis.width
        )
    for plan in plans:
        table.add_column(_header(plan), min_width=plan.width, max_width=plan.width)
    return table


def _fit(
    grid: Grid, lines: Sequence[Line], axes: Sequence[Axis], width: int, measured: bool
) -> list[list[ColumnPlan]]:
    """Columns for one table at the widest heads that fit, best with all errors; else for as many tables as it takes."""
    room = width - 1 - sum(axis.width + SEPARATOR for axis in axes)
    for wrap, errors in itertools.chain(
        itertools.product(WRAPS, [True]), itertools.product(WRAPS, [False])
    ):
        plans = [_plan(head, i, lines, wrap, measured, errors) for i, head in enumerate(grid.heads)]
        if sum(plan.width + SEPARATOR for plan in plans) - SEPARATOR <= room:
            return [plans]
    tables: list[list[ColumnPlan]] = [[]]
    for plan in plans:
        used = sum(p.width + SEPARATOR for p in tables[-1])
        if tables[-1] and used + plan.width > room:
            tables.append([])
        tables[-1].append(plan)
    return tables


def _plan(
    head: Head, index: int, lines: Sequence[Line], wrap: int, measured: bool, errors: bool
) -> ColumnPlan:
    entries = [line.entries[index] for line in lines]
    halves = []
    if head.paper:
        words = max(5, *(len(e.paper) for e in entries))
        marks = 0 if measured else max(len(e.foot) for e in entries)
        halves.append(Half((head.paper,) if measured else (), words + marks, marks, ours=False))
    if measured or not head.paper:
        marks = max(len(e.ours_mark) for e in entries)
        shown = [e.error for e in entries if e.error and (errors or head.proportion)]
        after = max((1 + len(error) for error in shown), default=0)
        needed = max(len(e.ours) for e in entries) + after + marks
        broken = break_lines(head.ours, max(wrap, needed))
        width = max(needed, *map(len, broken))
        halves.append(Half(broken, width, marks, ours=True, errors=after))
    both = sum(half.width + 1 for half in halves) - 1
    title = break_lines(head.name, max(wrap, both))
    return ColumnPlan(title, index, tuple(halves), max(both, *map(len, title)))


def _header(plan: ColumnPlan) -> Text:
    from rich.text import Text

    text = Text("\n".join(plan.title), style="bold")
    for i in range(max(len(half.head) for half in plan.halves)):
        words = [half.head[i] if i < len(half.head) else "" for half in plan.halves]
        padded = (word.rjust(half.width) for word, half in zip(words, plan.halves, strict=True))
        text.append("\n" + " ".join(padded), style="not bold dim")
    return text


def _cell(plan: ColumnPlan, line: Line) -> Text:
    from rich.text import Text

    entry = line.entries[plan.index]
    text = Text()
    for half in plan.halves:
        if text:
            text.append(" ")
        style = STYLES.get(entry.verdict, "dim") if half.ours else ""
        text.append(half.text(entry, alone=len(plan.halves) == 1), style=style)
    return text
