"""The figure of a table: the paper's numbers hollow, ours filled, one panel a column, configurations along x.

Numbers measured on a stand-in are not comparable with the paper's: they get panels of their own below the paper's,
with their own y axis, so that the shapes can be compared and the heights cannot. Without stand-ins both share a panel.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lutlab.base.escapes import mapped_texts, visible
from lutlab.experiment.artifact.outcome import Cell, Column, PublishedRow, ResultTable
from lutlab.experiment.artifact.predicted import VERDICT as PREDICTED
from lutlab.experiment.artifact.rows import OURS
from lutlab.experiment.report import bars, curve, style
from lutlab.experiment.report.bars import Panel, Points
from lutlab.experiment.report.layout import DASH, Block, Grid, Layout, lay_out
from lutlab.experiment.report.style import FAINT, INK, MARKERS, MUTED, PAPER, SERIES, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PER_ROW = 4  # panels side by side, at most
NARROWEST, PANEL_HEIGHT = 4.8, 1.7  # inches: width of a figure, height of a panel


def render(table: ResultTable) -> tuple[bytes, bytes]:
    """(SVG, PNG) of one drawing; the same table gives the same bytes."""
    import matplotlib as mpl

    table = mapped_texts(table, _drawn_as_it_is)
    with mpl.rc_context(STYLE):
        figure = draw(table)
        svg, png = io.BytesIO(), io.BytesIO()
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(svg, format="svg", metadata=metadata)
        figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
    return svg.getvalue(), png.getvalue()


def _drawn_as_it_is(text: str) -> str:
    """A label that matplotlib takes for no formula."""
    return visible(text).replace("$", r"\$")


def inline(svg: bytes) -> str:
    """The SVG for a page: no prologue, its greys and its background taken from the page's CSS variables."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    for color, variable in ((INK, "ink"), (MUTED, "muted"), (FAINT, "line"), (PAPER, "panel")):
        text = text.replace(color, f"var(--{variable}, {color})")
    return re.sub(
        r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r' height="[^"]*"', "", text, count=1)
    )


def draw(table: ResultTable) -> Figure:
    """Draw the panels, or the curve where the table is a figure of the paper; call it within `STYLE`."""
    if table.curve:
        return curve.draw(table, table.curve)
    layout = lay_out(table)
    bands = _contestants(table, layout) if table.one_axis else _columns_as_bands(table, layout)
    return _arranged(bands, table.title)


# ---- panels ----


def _columns_as_bands(table: ResultTable, layout: Layout) -> list[list[Panel]]:
    """A panel a column; one of the paper above one of ours where ours are of stand-ins."""
    columns = _columns(table, layout)
    apart = any(row.stand_in for row in table.rows) and any(c.published for c in columns)
    ticks, over = _configurations(layout.main if layout.main.heads else layout.reference, layout)
    names, in_order = _names(ticks), bars.ordered(_names(ticks))
    ran, kernel = _kernels(table, ticks)
    bands = []
    for column in columns:
        paper, ours, guessed = _series(table, column, ticks, layout)
        name = _title(column, layout)
        of_kernel = column.machine.startswith(("on ", "over "))  # a time of the row's kernel
        place = " ".join(filter(None, (column.place, kernel if of_kernel else "")))
        if apart:
            above = Panel(name, tuple(paper), names, in_order, named=False, side="paper")
            below, whose = f"{place or 'ours'}{_unit(column)}", "measured on stand-ins"
            if guessed and not ours:
                below, whose = f"{PREDICTED}{_unit(column)}", "predicted, not measured"
            below_paper = Panel(below, (*ours, *guessed), ran, in_order, over=over, side=whose)
            bands.append([above, below_paper])
        else:
            title = f"{name} {place}".rstrip() if ours else name
            series = (*paper, *ours, *guessed)
            bands.append([Panel(title, series, ran if ours else names, in_order, over=over)])
    return bands


def _columns(table: ResultTable, layout: Layout) -> list[Column]:
    """Columns with numbers on both sides; if there are none, those measured; else those published."""
    measured = {head.key for head in layout.main.heads}
    both = [c for c in table.columns if c.key in measured and c.published]
    return both or [c for c in table.columns if c.key in measured] or list(table.columns)


def _title(column: Column, layout: Layout) -> str:
    heads = (*layout.main.heads, *layout.reference.heads)
    return next(head.name for head in heads if head.key == column.key)


def _unit(column: Column) -> str:
    return f" ({column.unit})" if column.unit else ""


def _contestants(table: ResultTable, layout: Layout) -> list[list[Panel]]:
    """A panel a block of rows, in which the columns of `one_axis` are the series."""
    columns = [column for column in table.columns if column.key in table.one_axis]
    rows = {row.key: row for row in table.rows}
    ticks, over = _configurations(layout.main, layout)
    names = _names(ticks)
    place = next((column.place for column in columns if column.place), "")
    bands = []
    for block in layout.main.blocks:
        members = [rows[line.key] for line in block.lines]
        series = [
            _measured(column.title, [row.cells[column.key] for row in members], i, members, ticks)
            for i, column in enumerate(columns)
        ]
        title = f"{_label(members[0])}: ours {_measured_name(members[0])} {place}".rstrip()
        unit = columns[0].unit
        in_order = bars.ordered(names)
        bands.append([Panel(title, tuple(series), names, in_order, over=over, side=unit)])
    return bands


def _measured(
    name: str, cells: Sequence[Cell], i: int, rows: Sequence[PublishedRow], ticks: dict[str, str]
) -> Points:
    """The i-th series of ours; one without any number says so by its name alone."""
    x = _places(rows, ticks)
    if all(cell.measured is None for cell in cells):
        return _points(f"{name}: {cells[0].verdict}", i, x, [None] * len(cells))
    return _points(name, i, x, [c.verdict if c.measured is None else c.measured for c in cells])


def _points(
    name: str, i: int, x: tuple[int, ...], shown: Sequence[float | str | None], **look: bool
) -> Points:
    """A series in its i-th colour and marker, of numbers and of words in their place."""
    return Points(
        name,
        SERIES[i % len(SERIES)],
        MARKERS[i % len(MARKERS)],
        x,
        tuple(None if isinstance(value, str) else value for value in shown),
        tuple(value if isinstance(value, str) else "" for value in shown),
        **look,
    )


def _configurations(grid: Grid, layout: Layout) -> tuple[dict[str, str], str]:
    """Row key -> tick label, and what these are values of: as few axes as tell the rows of each block apart."""
    first = 1 if layout.headed else 0
    for used in range(first + 1, len(layout.axes) + 1):
        axes = [i for i in range(first, used) if layout.axes[i] != OURS]
        names = {
            line.key: _name([(layout.axes[i], line.labels[i]) for i in axes])
            for block in grid.blocks
            for line in block.lines
        }
        if all(_distinct(block, names) for block in grid.blocks):
            return names, ", ".join(layout.axes[i] for i in axes)
    return {line.key: line.key for block in grid.blocks for line in block.lines}, ""


def _distinct(block: Block, names: dict[str, str]) -> bool:
    return len({names[line.key] for line in block.lines}) == len(block.lines)


def _name(labels: Sequence[tuple[str, str]]) -> str:
    """`q4 g32`: short axes with their name, long ones without, dashes left out."""
    shown = [(axis, label) for axis, label in labels if label.strip("-– ")]
    return " ".join(f"{axis}{label}" if len(axis) <= 2 else label for axis, label in shown) or DASH


def _names(ticks: dict[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ticks.values()))


def _kernels(table: ResultTable, ticks: dict[str, str]) -> tuple[tuple[str, ...], str]:
    """The configurations, each with the kernel that ran in the place of the paper's, or the one that ran in all."""
    kernels: dict[str, set[str]] = {name: set() for name in ticks.values()}
    if any(column.machine for column in table.columns):
        for row in table.rows:
            if row.key in ticks and row.labels.get(OURS):
                kernels[ticks[row.key]].add(row.labels[OURS])
    every = set().union(*kernels.values())
    if len(every) == 1:
        return _names(ticks), f"by {every.pop()}"
    return tuple(
        f"{name}: {next(iter(ran))}" if len(ran) == 1 else name for name, ran in kernels.items()
    ), ""


def _places(rows: Sequence[PublishedRow], ticks: dict[str, str]) -> tuple[int, ...]:
    positions = {name: i for i, name in enumerate(_names(ticks))}
    return tuple(positions[ticks[row.key]] for row in rows)


def _series(
    table: ResultTable, column: Column, ticks: dict[str, str], layout: Layout
) -> tuple[list[Points], list[Points], list[Points]]:
    """The paper's series, ours and the predicted, one each a block of rows; a stand-in of several models once."""
    rows = {row.key: row for row in table.rows}
    grid = layout.main if layout.main.heads else layout.reference
    paper: list[Points] = []
    guessed: list[Points] = []
    ours: dict[tuple[object, ...], Points] = {}
    for i, block in enumerate(grid.blocks):
        members = [rows[line.key] for line in block.lines]
        cells = [row.cells[column.key] for row in members]
        x, label = _places(members, ticks), _label(members[0])
        if column.published:
            paper.append(
                _points(f"paper: {label}", i, x, [c.published for c in cells], filled=False)
            )
        if any(cell.verdict == PREDICTED for cell in cells):
            shown = [cell.predicted if cell.verdict == PREDICTED else None for cell in cells]
            guessed.append(_points(f"predicted: {label}", i, x, shown, filled=False, guessed=True))
        points = _measured(f"ours: {_measured_name(members[0])}", cells, i, members, ticks)
        if any(value is not None for value in points.y):
            ours.setdefault((points.name, x, points.y), points)
    return paper, list(ours.values()), guessed


def _label(row: PublishedRow) -> str:
    """`Model LLaMA-7B`, `m = 12288`: the first label under the name of its axis."""
    return next((curve.named(axis, label) for axis, label in row.labels.items()), row.key)


def _measured_name(row: PublishedRow) -> str:
    return f"{row.model} (stand-in)" if row.stand_in else row.model or _label(row)


# ---- their places ----


def _arranged(bands: Sequence[Sequence[Panel]], title: str) -> Figure:
    """The bands side by side, panels of a band below one another, as wide as their bars and names need."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    panels = [panel for band in bands for panel in band]
    wide = max(panel.width for panel in panels)
    across = max(1, min(PER_ROW, len(bands), int((bars.WIDEST - 0.6) / wide)))
    deep = len(bands[0])
    down = math.ceil(len(bands) / across) * deep
    width = min(bars.WIDEST, max(NARROWEST, wide * across + 0.6))
    room = (width - 0.6) / across - 0.7
    entries = {
        points.name: bars.legend_handle(points, panel.ordered)
        for panel in panels
        for points in panel.series
    }
    titles = [style.fit(panel.title, room, style.PANEL_SIZE) for panel in panels]
    above = max(style.height(text, style.PANEL_SIZE) for text in titles) + 0.15
    below = max(panel.names_height for panel in panels if panel.named)
    tall = down * (PANEL_HEIGHT + above) + down // deep * below
    tall += style.legend_height(list(entries), width - 0.3)
    tall += style.height(style.fit(title, width - 0.3, style.TITLE_SIZE), style.TITLE_SIZE) + 0.2
    engine = ConstrainedLayoutEngine(hspace=0.03, wspace=0.04, h_pad=0.06)
    figure = Figure(figsize=(width, tall), layout=engine, facecolor=PAPER)
    axes = figure.subplots(down, across, squeeze=False)
    for i, band in enumerate(bands):
        row, at = divmod(i, across)
        for j, panel in enumerate(band):
            axis = axes[row * deep + j][at]
            bars.draw(axis, panel, titles[i * deep + j])
            if panel.side and at == 0:
                axis.set_ylabel(style.fit(panel.side, PANEL_HEIGHT, style.LABEL_SIZE))
    for axis in axes.flat:
        axis.set_visible(axis.has_data() or bool(axis.texts))
    style.put(figure, title, entries)
    return figure
