"""What all figures share: colours, markers, the y axis, and the text around the panels.

A text is broken by its measured width, so that nothing is cut: title, legend, labels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

INK, MUTED, FAINT, PAPER = "#1f2328", "#656d76", "#d8dee4", "#ffffff"
SERIES = (
    *("#2f6fde", "#d9730d", "#1a9c74", "#a03fb5", "#c2a100"),
    *("#c93a4b", "#6b4f3a", "#5b7083", "#d65aa8", "#2aa7b8"),
)
MARKERS = "osD^vPX<>*d"  # one more than SERIES: series 11 is not drawn as series 1
TITLE_SIZE, PANEL_SIZE, LEGEND_SIZE, LABEL_SIZE = 10, 9, 8, 9  # points
LEGEND_HANDLE = 0.6  # inches of a legend's column that are not its text
LINE = 1.35  # height of a line over its font's size
NARROWEST = 8  # characters of a line
STYLE: dict[RcKeyType, Any] = {
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


@functools.lru_cache(maxsize=4096)
def width(text: str, size: float) -> float:
    """Inches of a line of text in the style's font, `size` points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] / 72


def fit(text: str, room: float, size: float) -> str:
    """The text in lines of at most `room` inches; words are broken only where one alone is wider."""
    whole = all(width(word, size) <= room for word in text.split())
    for characters in range(max(NARROWEST, int(1.5 * room * 72 / size)), 0, -1):
        lines = wrap(text, characters, break_on_hyphens=not whole, break_long_words=not whole)
        if all(width(line, size) <= room for line in lines):
            break
    return "\n".join(lines)


def height(text: str, size: float) -> float:
    """Height of a text in inches."""
    return (text.count("\n") + 1) * size * LINE / 72


def legend_columns(labels: Sequence[str], room: float) -> int:
    """Entries that stand side by side in `room` inches."""
    widest = max((width(label, LEGEND_SIZE) for label in labels), default=0) + LEGEND_HANDLE
    return max(1, min(len(labels), int(room / widest)))


def legend_height(labels: Sequence[str], room: float) -> float:
    """Inches of the legend of these labels."""
    rows = -(-len(labels) // legend_columns(labels, room))
    return (rows + 1) * LEGEND_SIZE * 1.6 / 72


def put(figure: Figure, title: str, entries: Mapping[str, Any]) -> None:
    """Put the title above the panels and a legend of label -> handle below them; room for both is left free."""
    room = figure.get_figwidth() - 0.3
    figure.suptitle(
        fit(title, room, TITLE_SIZE), x=0.01, ha="left", fontsize=TITLE_SIZE, fontweight="bold"
    )
    if entries:
        figure.legend(
            entries.values(),
            [fit(label, room - LEGEND_HANDLE, LEGEND_SIZE) for label in entries],
            loc="outside lower center",
            ncols=legend_columns(list(entries), room),
            frameon=False,
            fontsize=LEGEND_SIZE,
        )
