"""Colours, markers, and the y axis that all figures share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, FAINT, PAPER = "#1f2328", "#656d76", "#d8dee4", "#ffffff"
SERIES = (
    *("#2f6fde", "#d9730d", "#1a9c74", "#a03fb5", "#c2a100"),
    *("#c93a4b", "#6b4f3a", "#5b7083", "#d65aa8", "#2aa7b8"),
)
MARKERS = "osD^vPX<>*"
STYLE = {
    "svg.hashsalt": "lutlab",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
}


def scale_y(axis: Axes, values: Sequence[float]) -> None:
    """A log axis with plain numbers at 1, 2, 5 …; linear where a value is not positive."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    if not values or min(values) <= 0 or not all(map(math.isfinite, values)):
        return
    axis.set_yscale("log")
    low, high = min(values), max(values)
    margin = (high / low) ** 0.12 if high > low else 1.1
    axis.set_ylim(low / margin, high * margin)
    if high / low < 5:
        axis.yaxis.set_major_locator(MaxNLocator(4))
    else:
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_formatter(NullFormatter())
