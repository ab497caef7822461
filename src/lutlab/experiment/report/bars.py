"""A panel of a figure over configurations: bars, or lines where the configurations are one number that rises or falls.

The paper's series are hollow, ours filled. Bars begin at zero, or on a log axis where they differ too much for that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, radians, sin
from typing import TYPE_CHECKING, Any

from lutlab.experiment.report.style import (
    LABEL_SIZE,
    LINE,
    PANEL_SIZE,
    PAPER,
    fit,
    height,
    scale_y,
    width,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOG_FROM = 20  # bars that differ by more than this factor stand on a log axis
GROUP = 0.84  # of a configuration's width that its bars take
SLANT = 40  # degrees, of names that are longer than a number
NAME, UPRIGHT_NAME = 1.25, 2.2  # inches of a line of a configuration's name, aslant and upright
SPACE, BAR = 0.1, 0.08  # inches between configurations, and of a bar
WIDEST = 13.0  # inches of a figure


@dataclass(frozen=True)
class Points:
    """One series of one panel: x positions and values; None where there is only a `word` (OOM, failed).

    guessed: nobody measured it; bars are hatched, lines dotted.
    """

    name: str
    color: str
    marker: str
    x: tuple[int, ...]
    y: tuple[float | None, ...]
    words: tuple[str, ...]
    filled: bool = True
    guessed: bool = False

    @property
    def hatch(self) -> str:
        """Lines inside a bar."""
        return "/////" if self.guessed else ""

    @property
    def dashes(self) -> str:
        """Style of a line."""
        return ":" if self.guessed else "-"

    @property
    def face(self) -> str:
        """The colour inside: that of the paper where it is hollow."""
        return self.color if self.filled else PAPER


@dataclass(frozen=True)
class Panel:
    """Series over the configurations `names`, which rise or fall where it is `ordered`.

    named: false where the panel below has the names. over: what the names are values of. side: whose numbers these
    are, beside the first panel of a row.
    """

    title: str
    series: tuple[Points, ...]
    names: tuple[str, ...]
    ordered: bool
    named: bool = True
    over: str = ""
    side: str = ""

    @property
    def most(self) -> int:
        """The most series that stand at one configuration."""
        return max((len(_standing(self, x)) for x in range(len(self.names))), default=1) or 1

    @property
    def angle(self) -> int:
        """Degrees that the names are turned: none of numbers, upright where they would not fit aslant."""
        if all(len(name) <= 3 for name in self.names):
            return 0
        return SLANT if self._inches(SLANT) <= WIDEST - 0.6 else 90

    @property
    def lines(self) -> list[str]:
        """Names, broken into lines."""
        return self._broken(self.angle)

    @property
    def width(self) -> float:
        """Inches at which bars and names stay legible."""
        return self._inches(self.angle)

    @property
    def names_height(self) -> float:
        """Inches of the names, and of what they are values of."""
        line, angle = LABEL_SIZE * LINE / 72, radians(self.angle)
        longest = max(width(part, LABEL_SIZE) for text in self.lines for part in text.split("\n"))
        tallest = max(height(text, LABEL_SIZE) for text in self.lines)
        return longest * sin(angle) + tallest * cos(angle) + line

    def _broken(self, angle: int) -> list[str]:
        return [fit(name, NAME if angle < 90 else UPRIGHT_NAME, LABEL_SIZE) for name in self.names]

    def _inches(self, angle: int) -> float:
        lines = max(text.count("\n") + 1 for text in self._broken(angle))
        name = lines * LABEL_SIZE * LINE / 72 / sin(radians(angle)) if angle else 0.3
        return max(2.5, max(name, BAR * self.most + SPACE) * len(self.names) + 0.8)


def ordered(names: Sequence[str]) -> bool:
    """Whether the names are one number that rises or falls, but for a word at one end (full columns, row-wise)."""
    matches = [re.fullmatch(r"[a-z]?(-?\d+(?:\.\d+)?)", name) for name in names]
    if len(matches) > 1 and None in (matches[0], matches[-1]):
        matches = matches[1:] if matches[0] is None else matches[:-1]
    numbers = [float(match[1]) for match in matches if match]
    alone = len(numbers) == len(matches) > 2
    return alone and sorted(set(numbers)) in (numbers, numbers[::-1])


def draw(axis: Axes, panel: Panel, title: str) -> None:
    """Draw a panel under its title, which is broken already."""
    values = [y for points in panel.series for y in points.y if y is not None]
    if panel.ordered:
        for points in panel.series:
            _line(axis, points)
        scale_y(axis, values)
    else:
        for points in panel.series:
            _bars(axis, points, panel)
        _scale(axis, values)
        _words(axis, panel)
    axis.set_title(title, loc="left", fontsize=PANEL_SIZE)
    axis.grid(axis="y")
    axis.set_axisbelow(True)
    axis.set_xlim(-0.6, len(panel.names) - 0.4)
    axis.set_xticks(
        range(len(panel.names)), panel.lines if panel.named else [""] * len(panel.names)
    )
    axis.tick_params(axis="x", length=0)
    if panel.named:
        axis.set_xlabel(panel.over)
    if panel.angle:
        for label in axis.get_xticklabels():
            label.set(rotation=panel.angle, ha="right", rotation_mode="anchor")
            label.set_verticalalignment("center" if panel.angle == 90 else "top")


def legend_handle(points: Points, as_line: bool) -> Any:
    """The sign of a series in the legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if not as_line:
        return Patch(facecolor=points.face, edgecolor=points.color, hatch=points.hatch)
    look: dict[str, Any] = {"linestyle": points.dashes, "marker": points.marker, "markersize": 5.5}
    look |= {"markerfacecolor": points.face, "markeredgecolor": points.color}
    return Line2D([], [], color=points.color, linewidth=0.9, **look)


def _standing(panel: Panel, x: int) -> list[Points]:
    return [points for points in panel.series if x in points.x]


def _place(panel: Panel, points: Points, x: int) -> float:
    """The middle of a series' bar, which stands beside those that are there too."""
    beside = _standing(panel, x)
    return x + (beside.index(points) - (len(beside) - 1) / 2) * GROUP / panel.most


def _numbers(points: Points) -> tuple[list[int], list[float]]:
    places = [x for x, y in zip(points.x, points.y, strict=True) if y is not None]
    return places, [y for y in points.y if y is not None]


def _line(axis: Axes, points: Points) -> None:
    xs, ys = _numbers(points)
    style: dict[str, Any] = {"linewidth": 0.9, "linestyle": points.dashes, "alpha": 0.45}
    axis.plot(xs, ys, color=points.color, zorder=2, **style)
    look: dict[str, Any] = {"facecolor": points.face, "edgecolor": points.color, "linewidth": 1.2}
    axis.scatter(xs, ys, s=26, marker=points.marker, zorder=3, **look)


def _bars(axis: Axes, points: Points, panel: Panel) -> None:
    xs, ys = _numbers(points)
    middles = [_place(panel, points, x) for x in xs]
    look: dict[str, Any] = {"facecolor": points.face, "edgecolor": points.color, "linewidth": 0.9}
    axis.bar(middles, ys, 0.9 * GROUP / panel.most, hatch=points.hatch, **look)


def _scale(axis: Axes, values: Sequence[float]) -> None:
    """From zero to a little above the highest; a log axis from half of the lowest."""
    if not values:
        return
    low, high = min(values), max(values)
    if low > 0 and high / low > LOG_FROM:
        scale_y(axis, values)
        axis.set_ylim(low / 2, high * 1.4)
        return
    axis.set_ylim(min(0, low * 1.08), max(high * 1.08, 0) or 1)
    axis.locator_params(axis="y", nbins=5)


def _words(axis: Axes, panel: Panel) -> None:
    """A word where a number is missing, in the colour of its series; once where it is all that there is."""
    by_x: dict[int, list[tuple[float, str, str]]] = {}
    look: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 7}
    for points in panel.series:
        for x, word in zip(points.x, points.words, strict=True):
            by_x.setdefault(x, []).append((_place(panel, points, x), word, points.color))
    for x, words in by_x.items():
        alike = len({word for _, word, _ in words}) == 1
        for place, word, color in words[:1] if alike else words:
            at = (x if alike else place, 0.03)
            if word:
                axis.annotate(word, at, xycoords=("data", "axes fraction"), color=color, **look)
