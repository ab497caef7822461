"""A table when it is measured: published beside measured, cell by cell, its claims judged. Pure data.

compare.py fills these, report/ and tracking.py read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lutlab.experiment.artifact.artifact import Curve, claim_kind
from lutlab.experiment.artifact.uncertain import Uncertain
from lutlab.experiment.store.noise import Shares

HOLDS, BREAKS, UNDECIDED = "✓", "✗", "–"  # signs of a claim
FEW = 3  # instances of a claim
TRIED = ("failed", "OOM")  # verdicts without a number that still belong beside the paper's
FRONT = "Pareto"  # label: the row's measured point is on the front


@dataclass(frozen=True)
class Cell:
    """One number of a table. `verdict` is never blank; `note` is its reason or the stand-in's name.

    predicted: milliseconds a token, or `OOM`, of the paper's model on the paper's GPUs (predicted.py); never measured,
    and in no claim. Its verdict is `predicted` where nothing was measured.
    n: what the measured number rests on, windows or examples; sources: its record and metric, of a mean those of all;
    shares: of its deviation by chance (store/noise.py), in the column's unit.
    """

    column: str
    published: float | str | None  # str: the paper prints a word (OOM, N/A)
    measured: float | None
    verdict: str
    note: str = ""
    cell_id: str | None = None
    baseline: float | None = None  # in a sweep of one's own, of the same model in full precision
    difference: Uncertain | None = None  # to the baseline, over the same samples where it can be
    n: int | None = None
    sources: tuple[str, ...] = ()
    shares: Shares = field(default_factory=dict, repr=False)
    predicted: float | str | None = None

    @property
    def number(self) -> Uncertain | None:
        """The measured number with its chance."""
        return (
            None if self.measured is None else Uncertain(self.measured, self.shares, self.sources)
        )

    @property
    def error(self) -> float | None:
        """Standard error of the measured number; None where it is exact or nothing is known of it."""
        return self.number.error if self.number and self.shares else None

    @property
    def difference_error(self) -> float | None:
        """Standard error of the difference; None where there is none or it is exact."""
        return self.difference.error if self.difference and self.difference.shares else None


@dataclass(frozen=True)
class PublishedRow:
    """A row of a table: axis labels as the paper prints them, the model measured, cells by column.

    on_front: the row's measured point is on the Pareto front of the table's curve.
    device: where it was measured, as torch names it; empty where nothing was.
    """

    key: str
    labels: Mapping[str, str]  # axis title -> label, e.g. {"Model": "OPT-30B", "q": "4", "g": "32"}
    model: str
    stand_in: bool
    cells: Mapping[str, Cell]
    on_front: bool = False
    device: str = ""


@dataclass(frozen=True)
class Column:
    """A column: one metric under one protocol.

    measured_on: the text really evaluated. machine: of a speed, the processor, after what a ratio is over, as
    `over torch float32 on AMD EPYC, 2 threads`.
    """

    key: str
    title: str
    unit: str
    protocol: str
    measured_on: str
    published: bool  # False: a column of ours that the paper does not print
    lower_is_better: bool = True
    proportion: bool = False  # an accuracy, which says little without the number of examples
    cited: str = ""  # whom the paper took its numbers from; empty: it measured them
    metric: str = ""  # of its evaluator; a row of an artifact may have another
    machine: str = ""

    @property
    def place(self) -> str:
        """`on wikitext2, first 64 windows`, `on AMD EPYC, 2 threads`: where ours was measured; empty of sizes."""
        return f"on {self.measured_on}" if self.measured_on else self.machine


@dataclass(frozen=True)
class ClaimResult:
    """A claim of the paper, judged on its own numbers and on ours: counts of instances that hold, of all decidable.

    Attributes:
        failing: instances that do not hold in ours; of one that compares numbers that chance moves, left side minus
            right side and its standard error are in brackets, here and below.
        below_noise: those that ours do not decide, as the difference is below its noise.
        repeated: instances that say the same of the same records as another, and are not counted.
        not_judged: why none of ours is; empty where they are.
        holding: instances that hold in ours.
    """

    text: str
    where: str
    published: tuple[int, int]
    measured: tuple[int, int]
    failing: tuple[str, ...] = ()
    below_noise: tuple[str, ...] = ()
    repeated: int = 0
    not_judged: str = ""
    holding: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """A sentence of the paper, our reading of its table, or a claim of ours: a key of CLAIM_KINDS."""
        return claim_kind(self.where)

    @property
    def sign(self) -> str:
        """Sign of ours."""
        return _sign(*self.measured)

    @property
    def paper(self) -> str:
        """`✓ paper 12/12`."""
        holding, decidable = self.published
        if not decidable:
            return f"{UNDECIDED} paper not decidable here"
        return f"{_sign(*self.published)} paper {holding}/{decidable}"

    @property
    def ours(self) -> str:
        """`✗ ours 9 hold, 1 fails, 2 below noise`."""
        (holding, decidable), hidden = self.measured, len(self.below_noise)
        ours = f"{UNDECIDED} ours not decidable here"
        if self.not_judged:
            ours = f"{UNDECIDED} ours not judged: {self.not_judged}"
        elif decidable or hidden:
            fail = decidable - holding
            ours = (
                f"{self.sign} ours {holding} hold{'s' * (holding == 1)}, {fail} fail{'s' * (fail == 1)}, "
                f"{hidden} below noise"
            )
        return ours + (
            f" ({self.repeated} of the same records not counted)" if self.repeated else ""
        )

    def instances(self, most: int | None = None) -> str:
        """`— fails: …. below noise: …`: the instances that do not hold in ours, at most `most` of each kind.

        Those that hold are named where they are FEW and differ by more than chance explains.
        """
        shown = [name for name in self.holding if "±" in name] if len(self.holding) <= FEW else []
        kinds = {"fails": self.failing, "below noise": self.below_noise, "holds": tuple(shown)}
        parts = [f"{kind}: {_listed(names, most)}" for kind, names in kinds.items() if names]
        return f"— {'. '.join(parts)}" if parts else ""


def _sign(holding: int, decidable: int) -> str:
    if not decidable:
        return UNDECIDED
    return HOLDS if holding == decidable else BREAKS


def _listed(names: tuple[str, ...], most: int | None) -> str:
    if most is None or len(names) <= most:
        return "; ".join(names)
    return "; ".join((*names[:most], f"and {len(names) - most} more"))


@dataclass(frozen=True)
class ResultTable:
    """Everything the report renders; pure data.

    `origins` says in lines where the measured numbers come from, `provenance` fact by fact.
    """

    artifact: str
    title: str
    citation: str
    source: str
    scale: str
    command: str
    columns: tuple[Column, ...]
    rows: tuple[PublishedRow, ...]
    claims: tuple[ClaimResult, ...]
    notes: tuple[str, ...]
    origins: tuple[str, ...]
    provenance: Mapping[str, str]
    curve: Curve | None = None
    one_axis: tuple[str, ...] = ()  # columns that share the panels of the figure

    def long_form(self) -> list[dict[str, Any]]:
        """One mapping per cell, row by row, all with the same keys: what the CSV file and the tracked table hold."""
        return [
            {
                "artifact": self.artifact,
                "row": row.key,
                "labels": "; ".join(f"{axis}={label}" for axis, label in row.labels.items()),
                "column": column.key,
                "title": column.title,
                "metric": column.metric,
                "lower_is_better": column.lower_is_better,
                "unit": column.unit,
                "protocol": column.protocol,
                "published": row.cells[column.key].published,
                "cited_from": column.cited,
                "measured": row.cells[column.key].measured,
                "predicted": row.cells[column.key].predicted,
                "baseline": row.cells[column.key].baseline,
                "difference_error": row.cells[column.key].difference_error,
                "error": row.cells[column.key].error,
                "n": row.cells[column.key].n,
                "measured_on": column.measured_on,
                "model": row.model,
                "stand_in": row.stand_in,
                "on_front": row.on_front,
                "verdict": row.cells[column.key].verdict,
                "note": row.cells[column.key].note,
                "cell_id": row.cells[column.key].cell_id,
            }
            for row in self.rows
            for column in self.columns
        ]
