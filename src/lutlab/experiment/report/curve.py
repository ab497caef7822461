"""A figure of a paper drawn with our numbers: column y over column x, a point a row, the Pareto front through them.

A series has a colour and a marker; row-wise points are hollow; full precision is a dotted level, or is subtracted from
y where the paper draws the degradation. Points of a stand-in bear its name. Contestants of x share its axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lutlab.experiment.artifact.artifact import Curve
from lutlab.experiment.artifact.outcome import Column, PublishedRow, ResultTable
from lutlab.experiment.report import style
from lutlab.experiment.report.style import INK, MARKERS, MUTED, PAPER, SERIES, scale_y

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINED = 12  # a series of more points is a cloud, not a line
LOG_FROM = 6  # perplexities that differ by more than this factor are drawn on a log axis
PANEL, NARROWEST = (3.5, 2.3), 4.8  # inches: a panel, as a column of a paper; a figure
HOLLOW = "row-wise: hollow"
Point = tuple[float, float]


class Dot(NamedTuple):
    """A point: its row, its column of x, its series, and where it is drawn."""

    row: PublishedRow
    column: str
    series: str
    point: Point


def draw(table: ResultTable, curve: Curve) -> Figure:
    """Draw the panels of the table's curve; call it within the style."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = {column.key: column for column in table.columns}
    panels: dict[str, list[PublishedRow]] = {}
    for row in table.rows:
        panels.setdefault(row.labels.get(curve.panel, ""), []).append(row)
    dots = _dots(table.rows, curve, columns)
    names = list(dict.fromkeys(name for _, _, name, _ in dots))
    width = max(NARROWEST, PANEL[0] * len(panels))
    room = width / len(panels) - 0.8
    titles = [style.fit(_title(rows, curve), room, style.PANEL_SIZE) for rows in panels.values()]
    head = _head(table, curve, columns)
    labels = [*names, "Pareto front", "full precision", HOLLOW]
    tall = PANEL[1] + max(style.height(title, style.PANEL_SIZE) for title in titles)
    tall += style.height(style.fit(head, width - 0.3, style.TITLE_SIZE), style.TITLE_SIZE)
    figure = Figure(
        figsize=(width, tall + style.legend_height(labels, width - 0.3) + 0.6),
        layout=ConstrainedLayoutEngine(h_pad=0.06, wspace=0.04),
        facecolor=PAPER,
    )
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, rows, title in zip(axes, panels.values(), titles, strict=True):
        keys = {row.key for row in rows}
        _panel(axis, rows, [dot for dot in dots if dot.row.key in keys], curve, columns, names)
        axis.set_title(title, loc="left", fontsize=style.PANEL_SIZE)
        axis.set_xlabel(style.fit(_x_name(curve, columns), room, style.LABEL_SIZE))
    y = _axis_name(columns[curve.y], "degradation" if curve.degradation else "")
    axes[0].set_ylabel(style.fit(y, PANEL[1] - 0.2, style.LABEL_SIZE))
    _finish(figure, axes, head)
    return figure


def named(axis: str, label: str) -> str:
    """`q = 4`, `Model LLaMA-7B`: a label under the name of its axis."""
    return f"{axis} {label}" if any(c.isalpha() for c in label) else f"{axis} = {label}"


def _dots(rows: Sequence[PublishedRow], curve: Curve, columns: Mapping[str, Column]) -> list[Dot]:
    """Every point: of rows that are no baseline, measured on both axes."""
    models: dict[str, set[str]] = {}
    for row in rows:
        models.setdefault(_name(row, curve), set()).add(row.model)
    several = len(set().union(*models.values())) > 2
    dots = []
    for key in (curve.x, *curve.beside):
        for row in rows:
            x, y = row.cells[key].measured, row.cells[curve.y].measured
            if fnmatchcase(row.key, curve.baseline) or x is None or y is None:
                continue
            name = _name(row, curve)
            if several and len(models[name]) == 1 and not curve.panel:
                name = f"{name}: ours {row.model}"
            name = f"{columns[key].title}, {name}" if curve.beside else name
            dots.append(Dot(row, key, name, (x, y)))
    return dots


def _name(row: PublishedRow, curve: Curve) -> str:
    """The series of a row: its labels, the model measured in place of the paper's where that is a stand-in."""
    words = []
    for title in curve.series:
        label = row.labels.get(title, "")
        if title == "Model" and row.stand_in:
            label = f"{row.model} (stand-in)"
        if label:  # a row of a sweep may not have what others differ in
            words.append(named(title, label))
    return ", ".join(words)


def _levels(rows: Sequence[PublishedRow], curve: Curve) -> dict[str, tuple[float, str]]:
    """Front group -> (y in full precision, model)."""
    return {
        curve.front_of(row.key): (y, row.model)
        for row in rows
        if (y := row.cells[curve.y].measured) is not None and fnmatchcase(row.key, curve.baseline)
    }


def _level_of(
    row: PublishedRow, curve: Curve, levels: dict[str, tuple[float, str]]
) -> float | None:
    """Level subtracted from a point: 0 unless degradation is drawn; one front has one level for all."""
    if not curve.degradation:
        return 0.0
    level = levels.get(curve.front_of(row.key)) if curve.per else next(iter(levels.values()), None)
    return level[0] if level else None


def _panel(
    axis: Axes,
    rows: Sequence[PublishedRow],
    dots: Sequence[Dot],
    curve: Curve,
    columns: Mapping[str, Column],
    names: Sequence[str],
) -> None:
    levels = _levels(rows, curve)
    dots = [
        dot._replace(point=(dot.point[0], dot.point[1] - level))
        for dot in dots
        if (level := _level_of(dot.row, curve, levels)) is not None
    ]
    for i, name in enumerate(names):
        if members := [dot for dot in dots if dot.series == name]:
            _series(axis, members, curve, i)
    _fronts(axis, dots, curve, columns[curve.x].title)
    xs, ys = ([dot.point[i] for dot in dots] for i in (0, 1))
    if not curve.degradation:
        ys += [level for level, _ in levels.values()]
        for group, (level, _) in levels.items():
            of_group = [dot.series for dot in dots if curve.front_of(dot.row.key) == group]
            alone = len(set(of_group)) == 1 and len(levels) > 1
            color = SERIES[names.index(of_group[0]) % len(SERIES)] if alone else MUTED
            axis.axhline(level, color=color, linestyle=":", linewidth=1.1, label="full precision")
    if not dots:
        reason = style.fit(_why_empty(rows, curve), PANEL[0] - 0.8, style.LABEL_SIZE)
        axis.text(0.5, 0.5, reason, color=MUTED, ha="center", va="center", transform=axis.transAxes)
        axis.set(xticks=[], yticks=[])
    _scale(axis, xs, ys, curve)


def _why_empty(rows: Sequence[PublishedRow], curve: Curve) -> str:
    """The reasons of the cells that would be points."""
    cells = [row.cells[key] for row in rows for key in (curve.x, curve.y)]
    reasons = dict.fromkeys(c.note for c in cells if c.measured is None and c.note)
    return "; ".join(["not measured", *reasons][:3]) if reasons else "not measured yet"


def _scale(axis: Axes, xs: Sequence[float], ys: Sequence[float], curve: Curve) -> None:
    axis.grid(axis="both")
    axis.set_axisbelow(True)
    if not curve.front and xs and max(xs) / min(xs) > LOG_FROM:
        axis.set_xscale("log", base=2)
    if not curve.larger[1] and ys and min(ys) > 0 and max(ys) / min(ys) > LOG_FROM:
        scale_y(axis, ys)
    else:
        axis.locator_params(axis="y", nbins=5)


def _series(axis: Axes, dots: Sequence[Dot], curve: Curve, i: int) -> None:
    """One series in its i-th colour and marker, from left to right; row-wise points hollow."""
    color, marker = SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)]
    ordered = sorted(dots, key=lambda dot: dot.point)
    cloud = len(dots) > LINED
    lined = "q" in curve.series or not curve.front  # else a line would join points of several q
    if lined and not cloud:
        xs, ys = zip(*(dot.point for dot in ordered), strict=True)
        axis.plot(xs, ys, linewidth=0.9, alpha=0.5, color=color, zorder=2)
    for hollow in (False, True):
        chosen = [dot.point for dot in ordered if fnmatchcase(dot.row.key, curve.rowwise) == hollow]
        if chosen:
            xs, ys = zip(*chosen, strict=True)
            axis.scatter(
                xs,
                ys,
                s=11 if cloud else 24,
                marker=marker,
                facecolor=PAPER if hollow else color,
                edgecolor=color,
                linewidth=0.8 if hollow else 0 if cloud else 1.1,
                alpha=0.55 if cloud else 1,
                zorder=3 if cloud else 4,
                label=HOLLOW if hollow else ordered[0].series,
            )


def _fronts(axis: Axes, dots: Sequence[Dot], curve: Curve, title: str) -> None:
    """Each group's front over x as a staircase: what is attainable between two of its points is the worse one's y."""
    groups: dict[str, list[Point]] = {}
    for dot in dots:
        if dot.row.on_front and dot.column == curve.x:
            groups.setdefault(curve.front_of(dot.row.key), []).append(dot.point)
    label = f"Pareto front, {title}" if curve.beside else "Pareto front"
    where: Literal["pre", "post"] = "pre" if curve.larger[0] else "post"
    for points in groups.values():
        xs, ys = zip(*sorted(points), strict=True)
        axis.step(xs, ys, where=where, color=INK, linewidth=1.1, alpha=0.8, zorder=5, label=label)
        axis.scatter(xs, ys, s=9, color=INK, linewidth=0, zorder=6)


def _head(table: ResultTable, curve: Curve, columns: Mapping[str, Column]) -> str:
    """The table's title, and where another y is drawn than the paper's, what that one is here."""
    if not curve.in_place_of:
        return table.title
    ours, paper = columns[curve.y], columns[curve.in_place_of]
    measured = [row.cells[paper.key].measured for row in table.rows]
    values = [value for value in measured if value is not None]
    what, _, unit = paper.unit.partition(", ")
    span = f"is {min(values):.2g} to {max(values):.2g} {unit} here" if values else "is not measured"
    return f"{table.title}. Drawn: {ours.unit}, since {paper.title} {what} {span}"


def _title(rows: Sequence[PublishedRow], curve: Curve) -> str:
    """Title of a panel: the owner of its points, where the legend does not name it."""
    if "Model" in curve.series:
        return ""
    label = rows[0].labels.get(curve.panel, "")
    models = list(dict.fromkeys(row.model for row in rows))
    stand_in = any(row.stand_in for row in rows)
    if len(models) > 2:  # the legend or the table names them
        return f"ours on {len(models)} {'stand-ins' if stand_in else 'models'}"
    ours = ", ".join(models) + (" (stand-in)" if stand_in else "")
    return f"{label}: ours on {ours}" if label and label not in models else f"ours on {ours}"


def _x_name(curve: Curve, columns: Mapping[str, Column]) -> str:
    """The axis of x; of contestants their unit, since the legend names them."""
    column = columns[curve.x]
    return f"{column.unit} {column.place}" if curve.beside else _axis_name(column)


def _axis_name(column: Column, what: str = "") -> str:
    text = f" {column.place}" if column.place else ""
    unit = column.unit.partition(",")[0] if column.unit.startswith("accuracy") else column.unit
    name = " ".join(filter(None, (unit, what))) if column.measured_on else column.title
    tail = " (%)" if column.unit.endswith("%") else f" ({unit})" if not column.measured_on else ""
    return f"{name}{tail}{text}"


def _finish(figure: Figure, axes: Sequence[Axes], head: str) -> None:
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if hollow := entries.pop(HOLLOW, None):
        entries[HOLLOW] = hollow  # after the series
    style.put(figure, head, entries)
