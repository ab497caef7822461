"""Numbers of a published artifact beside those it had before: which differ by more than noise.

An accuracy differs from 1e-6 on, relatively. A speed differs where neither number lies within the quartiles of the
other's samples: these are seconds, so their quartiles over their median are laid around the number itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lutlab.base import registry
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.report.published import Published
from lutlab.experiment.row.spelling import flatten
from lutlab.experiment.store.record import Record

ACCURACY = 1e-6  # relative: what another order of summing may do
Place = tuple[str, str, str]  # variant, row, column


@dataclass(frozen=True)
class Change:
    """A cell whose number is another one, is new or is gone: None where there is none.

    Of another one, `cause` says what of the code, the settings or the processor is no longer what it was.
    """

    place: Place
    before: float | None
    after: float | None
    cause: str = ""

    @property
    def relative(self) -> str:
        """The difference in percent of the earlier number, empty where that says nothing."""
        if not self.before or self.after is None:
            return ""
        return f"{100 * (self.after / self.before - 1):+.3g} %"


@dataclass(frozen=True)
class Comparison:
    """An artifact before and after: how many numbers it has, how many of them had one before, what changed."""

    artifact: str
    numbers: int
    compared: int
    changes: tuple[Change, ...]


def compare(before: Sequence[Published], after: Published) -> Comparison:
    """Compare cell by cell. `before`: what each machine had published; of a cell in several the last counts."""
    old = {place: number for published in before for place, number in _numbers(published).items()}
    new = _numbers(after)
    columns = load_artifact(after.artifact).columns
    found = []
    for place in sorted(old.keys() | new.keys()):
        both = place in old and place in new
        if both:
            if old[place][0] == new[place][0]:
                continue
            evaluator = registry.lookup("evaluator", columns[place[2]].evaluator)
            if _within_noise(*old[place], *new[place], evaluator.of_this_machine):
                continue
        value = [numbers[place][0] if place in numbers else None for numbers in (old, new)]
        cause = _cause(old[place][1], new[place][1]) if both else ""
        found.append(Change(place, *value, cause))
    return Comparison(after.artifact, len(new), len(old.keys() & new.keys()), tuple(found))


def render(comparisons: Sequence[Comparison], origin: str) -> str:
    """The comparisons as Markdown: a summary, then the cells that changed. `origin` names what came before."""
    from tabulate import tabulate

    summary = [
        [c.artifact, c.numbers, c.compared, len(_both(c)), len(c.changes) - len(_both(c))]
        for c in comparisons
    ]
    heads = ["artifact", "numbers", "compared", "differ", "new or gone"]
    parts = [
        "# Published numbers, before and after",
        f"Before: {origin}. An accuracy differs from {ACCURACY:g} on, relatively; a speed where neither number lies "
        "within the quartiles of the other's samples.",
        tabulate(summary, heads, tablefmt="pipe"),
    ]
    for comparison in comparisons:
        if comparison.changes:
            cells = [
                [
                    *change.place,
                    _number(change.before),
                    _number(change.after),
                    change.relative,
                    change.cause,
                ]
                for change in comparison.changes
            ]
            heads = ["variant", "row", "column", "before", "after", "change", "cause"]
            align = ["left"] * 3 + ["right"] * 3 + ["left"]
            table = tabulate(cells, heads, tablefmt="pipe", disable_numparse=True, colalign=align)
            parts += [f"## {comparison.artifact}", table]
    return "\n\n".join(parts) + "\n"


def _cause(before: Record, after: Record) -> str:
    """What moved between two records of a cell: components and settings, vectors, else the processor.

    `method/bcq 1 -> 2`, `options.starts - -> greedy`.
    """
    one, other = before.provenance, after.provenance
    old, new = (known.get("identity", {}) for known in (one, other))
    moved = []
    for kind in ("components", "run"):
        then, now = (dict(flatten("", identity.get(kind, {}))) for identity in (old, new))
        differing = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        moved += [f"{name} {then.get(name, '-')} -> {now.get(name, '-')}" for name in differing]
    for name in ("torch_cpu_capability", "cpu"):
        if one.get(name) != other.get(name) and not (name == "cpu" and moved):
            moved.append(f"{name} {one.get(name)} -> {other.get(name)}")
    return "; ".join(moved)


def _both(comparison: Comparison) -> list[Change]:
    return [c for c in comparison.changes if c.before is not None and c.after is not None]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.8g}"


def _numbers(published: Published) -> Mapping[Place, tuple[float, Record]]:
    """Measured cells: the number as table.csv has it, and its record. Means have none, and follow from the others."""
    return {
        (variant, cell["row"], cell["column"]): (
            float(cell["measured"]),
            published.records[cell["cell_id"]],
        )
        for variant, cells in published.cells.items()
        for cell in cells
        if cell["measured"] and cell["cell_id"]
    }


def _within_noise(
    before: float, record_before: Record, after: float, record_after: Record, speed: bool
) -> bool:
    if not speed:
        return abs(after - before) <= ACCURACY * abs(before)
    return _near(after, before, record_before) or _near(before, after, record_after)


def _near(value: float, other: float, record: Record) -> bool:
    """Whether a value lies within the quartiles of another's samples; without samples, as an accuracy."""
    if len(record.samples) < 2:
        return abs(value - other) <= ACCURACY * abs(other)
    first, median, third = statistics.quantiles(record.samples, n=4, method="inclusive")
    spread = max(median / first, third / median)
    return other / spread <= value <= other * spread
