"""The figure: the paper's points hollow, ours filled, one panel a column, configurations along x.

Numbers measured on a stand-in are not comparable with the paper's: they get panels of their own below the paper's,
with their own y axis, so that the shapes can be compared and the heights cannot. Without stand-ins both share a panel.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lutlab.experiment.artifact.outcome import Column, ResultTable, Row
from lutlab.experiment.report import curve
from lutlab.experiment.report.heads import break_lines
from lutlab.experiment.report.layout import lay_out
from lutlab.experiment.report.parts import Block, Grid, Layout
from lutlab.experiment.report.style import FAINT, INK, MARKERS, MUTED, PAPER, SERIES, STYLE, scale_y

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE_WIDTH = 36  # characters in a line of a panel's title
PER_ROW = 4  # panels side by side


@dataclass(frozen=True)
class Points:
    """One series of one panel: x positions and values; None where there is only a `word` (OOM, failed)."""

    name: str
    color: str
    marker: str
    filled: bool
    x: tuple[int, ...]
    y: tuple[float | None, ...]
    words: tuple[str, ...]


def render(table: ResultTable) -> tuple[bytes, bytes]:
    """(SVG, PNG) of one drawing; the same table gives the same bytes."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure = draw(table)
        svg, png = io.BytesIO(), io.BytesIO()
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(svg, format="svg", metadata=metadata)
        figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
    return svg.getvalue(), png.getvalue()


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
    from matplotlib.figure import Figure

    if table.curve:
        return curve.draw(table)
    layout = lay_out(table)
    columns = _columns(table, layout)
    apart = any(row.stand_in for row in table.rows) and any(c.published for c in columns)
    across = min(PER_ROW, len(columns)) or 1
    bands = math.ceil(len(columns) / across) or 1
    ticks = _configurations(layout.main if layout.main.heads else layout.reference, layout)
    width = max(2.6, 0.27 * len(set(ticks.values())) + 0.9) * across + 0.8
    down = bands * (2 if apart else 1)
    figure = Figure(
        figsize=(min(width, 14), 2.3 * down + 1.3), layout="constrained", facecolor=PAPER
    )
    figure.get_layout_engine().set(hspace=0.06, wspace=0.05, h_pad=0.06)
    axes = figure.subplots(down, across, squeeze=False)
    drawn: list[Points] = []
    for i, column in enumerate(columns):
        band, at = divmod(i, across)
        paper, ours = _series(table, column, ticks, layout)
        drawn += [*paper, *ours]
        if apart:
            _panel(axes[2 * band][at], paper, _title(column, layout), {})
            _panel(
                axes[2 * band + 1][at],
                ours,
                f"on {column.measured_on or 'ours'}{_unit(column)}",
                ticks,
            )
            if at == 0:
                axes[2 * band][0].set_ylabel("paper", fontweight="bold")
                axes[2 * band + 1][0].set_ylabel("measured on stand-ins", fontweight="bold")
        else:
            _panel(axes[band][at], [*paper, *ours], _title(column, layout), ticks)
    for axis in axes.flat:
        axis.set_visible(axis.has_data() or bool(axis.texts))
    _legend(figure, drawn)
    return figure


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


def _configurations(grid: Grid, layout: Layout) -> dict[str, str]:
    """Row key -> tick label: as few axes as tell the rows of each block apart, from the first on."""
    first = 1 if layout.headed else 0
    for used in range(first + 1, len(layout.axes) + 1):
        axes = range(first, used)
        names = {
            line.key: _name([(layout.axes[i], line.labels[i]) for i in axes])
            for block in grid.blocks
            for line in block.lines
        }
        if all(_distinct(block, names) for block in grid.blocks):
            return names
    return {line.key: line.key for block in grid.blocks for line in block.lines}


def _distinct(block: Block, names: dict[str, str]) -> bool:
    return len({names[line.key] for line in block.lines}) == len(block.lines)


def _name(labels: Sequence[tuple[str, str]]) -> str:
    """`q4 g32`: short axes with their name, long ones without, dashes left out."""
    said = [(axis, label) for axis, label in labels if label.strip("-– ")]
    return " ".join(f"{axis}{label}" if len(axis) <= 2 else label for axis, label in said)


def _series(
    table: ResultTable, column: Column, ticks: dict[str, str], layout: Layout
) -> tuple[list[Points], list[Points]]:
    """The paper's series and ours, one each per block of rows."""
    positions = {name: i for i, name in enumerate(dict.fromkeys(ticks.values()))}
    rows = {row.key: row for row in table.rows}
    grid = layout.main if layout.main.heads else layout.reference
    paper, ours = [], []
    for i, block in enumerate(grid.blocks):
        members = [rows[line.key] for line in block.lines]
        cells = [row.cells[column.key] for row in members]
        shared = {
            "color": SERIES[i % len(SERIES)],
            "marker": MARKERS[i % len(MARKERS)],
            "x": tuple(positions[ticks[row.key]] for row in members),
        }
        if column.published:
            words = tuple(c.published if isinstance(c.published, str) else "" for c in cells)
            values = tuple(None if isinstance(c.published, str) else c.published for c in cells)
            name = f"paper: {_label(members[0])}"
            paper.append(Points(name=name, filled=False, y=values, words=words, **shared))
        values = tuple(c.measured for c in cells)
        if any(value is not None for value in values):
            words = tuple("" if c.measured is not None else c.verdict for c in cells)
            name = f"measured: {_measured_name(members[0])}"
            ours.append(Points(name=name, filled=True, y=values, words=words, **shared))
    return paper, ours


def _label(row: Row) -> str:
    return next(iter(row.labels.values()), row.key)


def _measured_name(row: Row) -> str:
    return f"{row.model} (stand-in)" if row.stand_in else row.model or _label(row)


def _panel(axis: Axes, series: Sequence[Points], title: str, ticks: dict[str, str]) -> None:
    for points in series:
        y = [math.nan if value is None else value for value in points.y]
        axis.plot(points.x, y, linewidth=0.9, alpha=0.45, color=points.color, zorder=2)
        axis.scatter(
            points.x,
            y,
            s=26,
            marker=points.marker,
            facecolor=points.color if points.filled else PAPER,
            edgecolor=points.color,
            linewidth=1.2,
            zorder=3,
        )
    _words(axis, series)
    scale_y(axis, [y for p in series for y in p.y if y is not None])
    axis.set_title("\n".join(break_lines(title, TITLE_WIDTH)), loc="left", fontsize=9.5)
    axis.grid(axis="y")
    axis.set_axisbelow(True)
    names = list(dict.fromkeys(ticks.values()))
    n = max((x for p in series for x in p.x), default=0)
    axis.set_xlim(-0.6, n + 0.6)
    axis.set_xticks(range(len(names) or n + 1), names or [""] * (n + 1))
    axis.tick_params(axis="x", length=0)
    if any(len(name) > 3 for name in names):
        for label in axis.get_xticklabels():
            label.set(rotation=45, ha="right", rotation_mode="anchor")


def _words(axis: Axes, series: Sequence[Points]) -> None:
    """A word where a number is missing, at the foot of the panel in the colour of its series."""
    for i, points in enumerate(series):
        for x, word in zip(points.x, points.words, strict=True):
            if word:
                axis.annotate(
                    word,
                    (x + 0.22 * (i - (len(series) - 1) / 2), 0.03),
                    xycoords=("data", "axes fraction"),
                    rotation=90,
                    ha="center",
                    va="bottom",
                    fontsize=7,
                    color=points.color,
                )


def _legend(figure: Figure, series: Sequence[Points]) -> None:
    from matplotlib.lines import Line2D

    distinct = {points.name: points for points in series}
    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            marker=p.marker,
            markersize=5.5,
            markerfacecolor=p.color if p.filled else PAPER,
            markeredgecolor=p.color,
            label=name,
        )
        for name, p in distinct.items()
    ]
    columns = 2 if len(handles) > 3 else max(len(handles), 1)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
