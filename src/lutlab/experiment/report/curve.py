"""A figure of a paper drawn with our numbers: column y over column x, a point a row, the Pareto front through them.

A series has a colour and a marker; row-wise points are hollow; full precision is a dotted level, or is subtracted from
y where the paper draws the degradation. Points of a stand-in bear its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from lutlab.experiment.artifact.outcome import Column, Curve, ResultTable, Row
from lutlab.experiment.report.style import INK, MARKERS, MUTED, PAPER, SERIES, scale_y

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINED = 12  # a series of more points is a cloud, not a line
LOG_FROM = 6  # perplexities that differ by more than this factor are drawn on a log axis
PANEL = (3.5, 2.6)  # inches: a column of a paper
LEGEND_WIDTH = 58  # characters of the legend's font in a panel's width
HOLLOW = "row-wise: hollow"
Point = tuple[float, float]


def draw(table: ResultTable) -> Figure:
    """Draw the panels; call it within the style."""
    from matplotlib.figure import Figure

    curve = table.curve
    panels: dict[str, list[Row]] = {}
    for row in table.rows:
        panels.setdefault(row.labels.get(curve.panel, ""), []).append(row)
    names = list(dict.fromkeys(_name(row, curve) for row in _measured(table.rows, curve)))
    width = PANEL[0] * len(panels)
    height = PANEL[1] + 0.18 * (2 + len(names) // (2 * len(panels)))
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)
    figure.get_layout_engine().set(h_pad=0.06, wspace=0.04)
    columns = {column.key: column for column in table.columns}
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, rows in zip(axes, panels.values(), strict=True):
        _panel(axis, rows, curve, names)
        axis.set_xlabel(_axis_name(columns[curve.x]))
    axes[0].set_ylabel(_axis_name(columns[curve.y], "degradation" if curve.degradation else ""))
    _legend(figure, axes)
    return figure


def _measured(rows: Sequence[Row], curve: Curve) -> list[Row]:
    """The rows that are points: measured on both axes, and no baseline."""
    return [
        row
        for row in rows
        if not fnmatchcase(row.key, curve.baseline)
        and row.cells[curve.x].measured is not None
        and row.cells[curve.y].measured is not None
    ]


def _name(row: Row, curve: Curve) -> str:
    """The series of a row: its labels, the model measured in place of the paper's where that is a stand-in."""
    words = []
    for title in curve.series:
        label = row.labels.get(title, "")
        if title == "Model" and row.stand_in:
            label = f"{row.model} (stand-in)"
        words.append(f"{title} = {label}" if len(title) == 1 else label)
    return ", ".join(words)


def _levels(rows: Sequence[Row], curve: Curve) -> dict[str, tuple[float, str]]:
    """Front group -> (y in full precision, model)."""
    return {
        curve.front_of(row.key): (row.cells[curve.y].measured, row.model)
        for row in rows
        if fnmatchcase(row.key, curve.baseline) and row.cells[curve.y].measured is not None
    }


def _level_of(row: Row, curve: Curve, levels: dict[str, tuple[float, str]]) -> float | None:
    """Level subtracted from a point: 0 unless degradation is drawn; one front has one level for all."""
    if not curve.degradation:
        return 0.0
    found = levels.get(curve.front_of(row.key)) if curve.per else next(iter(levels.values()), None)
    return found[0] if found else None


def _panel(axis: Axes, rows: Sequence[Row], curve: Curve, names: Sequence[str]) -> None:
    levels = _levels(rows, curve)
    points: dict[str, Point] = {}
    for row in _measured(rows, curve):
        if (level := _level_of(row, curve, levels)) is not None:
            points[row.key] = (row.cells[curve.x].measured, row.cells[curve.y].measured - level)
    drawn = [row for row in rows if row.key in points]
    for i, name in enumerate(names):
        members = [row for row in drawn if _name(row, curve) == name]
        if members:
            _series(axis, members, points, curve, i)
    _fronts(axis, drawn, points, curve)
    ys = [y for _, y in points.values()]
    if not curve.degradation:
        ys += [level for level, _ in levels.values()]
        for group, (level, _) in levels.items():
            of_group = [_name(row, curve) for row in drawn if curve.front_of(row.key) == group]
            alone = len(set(of_group)) == 1 and len(levels) > 1
            color = SERIES[names.index(of_group[0]) % len(SERIES)] if alone else MUTED
            axis.axhline(level, color=color, linestyle=":", linewidth=1.1, label="full precision")
    if not drawn:
        axis.text(0.5, 0.5, "not measured yet", ha="center", color=MUTED, transform=axis.transAxes)
    axis.set_title(_title(rows, curve), loc="left", fontsize=9)
    axis.grid(axis="both")
    axis.set_axisbelow(True)
    xs = [x for x, _ in points.values()]
    if not curve.front and xs and max(xs) / min(xs) > LOG_FROM:
        axis.set_xscale("log", base=2)
    if not curve.larger[1] and ys and min(ys) > 0 and max(ys) / min(ys) > LOG_FROM:
        scale_y(axis, ys)
    else:
        axis.locator_params(axis="y", nbins=5)


def _series(
    axis: Axes, rows: Sequence[Row], points: dict[str, Point], curve: Curve, i: int
) -> None:
    """One series in its i-th colour and marker, from left to right; row-wise points hollow."""
    color, marker = SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)]
    ordered = sorted(rows, key=lambda row: points[row.key])
    cloud = len(rows) > LINED
    lined = "q" in curve.series or not curve.front  # else a line would join points of several q
    if lined and not cloud:
        xs, ys = zip(*(points[row.key] for row in ordered), strict=True)
        axis.plot(xs, ys, linewidth=0.9, alpha=0.5, color=color, zorder=2)
    for hollow in (False, True):
        chosen = [r for r in ordered if fnmatchcase(r.key, curve.rowwise) == hollow]
        if chosen:
            xs, ys = zip(*(points[row.key] for row in chosen), strict=True)
            axis.scatter(
                xs,
                ys,
                s=11 if cloud else 24,
                marker=marker,
                facecolor=PAPER if hollow else color,
                edgecolor=color,
                linewidth=0 if cloud else 1.1,
                alpha=0.55 if cloud else 1,
                zorder=3 if cloud else 4,
                label=HOLLOW if hollow else _name(rows[0], curve),
            )


def _fronts(axis: Axes, rows: Sequence[Row], points: dict[str, Point], curve: Curve) -> None:
    """Each group's front as a staircase: what is attainable between two of its points is the worse one's y."""
    groups: dict[str, list[Point]] = {}
    for row in rows:
        if row.on_front:
            groups.setdefault(curve.front_of(row.key), []).append(points[row.key])
    for found in groups.values():
        xs, ys = zip(*sorted(found), strict=True)
        where = "pre" if curve.larger[0] else "post"
        axis.step(
            xs, ys, where=where, color=INK, linewidth=1.1, alpha=0.8, zorder=5, label="Pareto front"
        )
        axis.scatter(xs, ys, s=9, color=INK, linewidth=0, zorder=6)


def _title(rows: Sequence[Row], curve: Curve) -> str:
    """Whose points these are, where the legend does not say it."""
    if "Model" in curve.series:
        return ""
    label = rows[0].labels.get(curve.panel, "")
    models = list(dict.fromkeys(row.model for row in rows))
    stand_in = any(row.stand_in for row in rows)
    if len(models) > 2:  # the table names them
        return f"ours on {len(models)} {'stand-ins' if stand_in else 'models'}"
    ours = ", ".join(models) + (" (stand-in)" if stand_in else "")
    return f"{label}: ours on {ours}" if label and label not in models else f"ours on {ours}"


def _axis_name(column: Column, what: str = "") -> str:
    text = f" on {column.measured_on}" if column.measured_on else ""
    unit = column.unit.partition(",")[0] if column.unit.startswith("accuracy") else column.unit
    name = " ".join(filter(None, (unit, what))) if column.measured_on else column.title
    tail = " (%)" if column.unit.endswith("%") else f" ({unit})" if not column.measured_on else ""
    return f"{name}{text}{tail}"


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    entries = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        if hollow := entries.pop(HOLLOW, None):
            entries[HOLLOW] = hollow  # after the series
        widest = max(map(len, entries)) + 6
        figure.legend(
            entries.values(),
            entries.keys(),
            loc="outside lower center",
            ncols=max(1, min(len(entries), LEGEND_WIDTH * len(axes) // widest)),
            frameon=False,
            fontsize=8,
        )
