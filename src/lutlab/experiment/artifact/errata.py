"""Findings about the papers' own numbers as executable checks; the page docs/errata.md is generated from them.

    python -m lutlab.experiment.artifact.errata            writes docs/errata.md from experiments/errata.yaml

A check is a predicate (predicates.py) over the columns of a small table of published numbers, evaluated row by row.
"""

from __future__ import annotations

import functools

from pydantic import BaseModel, ConfigDict

from lutlab.base import sources
from lutlab.base.errors import LutlabError
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.artifact.catalog import EXPERIMENTS, cite
from lutlab.experiment.artifact.predicates import evaluate
from lutlab.experiment.artifact.yaml_file import read_yaml

SOURCE = EXPERIMENTS / "errata.yaml"
HEAD = """# Errata

What does not add up in the papers' own numbers, found while typing them in. Each finding is a check that is evaluated
on published numbers, and the test suite holds this page to it. Generated from `experiments/errata.yaml` by
`python -m lutlab.experiment.artifact.errata`; not to be edited.
"""


class Erratum(BaseModel):
    """One finding. The first column names the row; `holds` is for how many rows the check is true."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    id: str
    paper: str
    where: str
    finding: str
    columns: list[str]
    rows: list[list[str | float]]
    check: str
    holds: int
    source: str = ""
    consequence: str

    def numbers(self) -> list[dict[str, float]]:
        """Column -> number of every row, references looked up."""
        return [
            dict(zip(self.columns[1:], map(_number, row[1:]), strict=True)) for row in self.rows
        ]

    def outcomes(self) -> list[bool]:
        """The check's truth, row by row."""
        return [
            evaluate(self.check, {name: {"": value} for name, value in row.items()}, "") is True
            for row in self.numbers()
        ]


def _number(value: str | float) -> float:
    if not isinstance(value, str):
        return float(value)
    artifact, row, column = value.split(":")
    number = _published(artifact).get(row, {}).get(column)
    if not isinstance(number, float | int):
        raise LutlabError(f"experiments/errata.yaml: '{value}' is no published number")
    return float(number)


@functools.cache
def _published(artifact: str) -> dict[str, dict[str, float | str]]:
    return load_artifact(artifact).numbers()


def load_errata() -> list[Erratum]:
    """Findings in the file's order."""
    return [Erratum(**entry) for entry in read_yaml(SOURCE)]


def page() -> str:
    """Text of docs/errata.md."""
    return HEAD + "".join(f"\n{_section(erratum)}" for erratum in load_errata())


def _section(erratum: Erratum) -> str:
    outcomes = erratum.outcomes()
    lines = [
        f"## {cite(erratum.paper)}, {erratum.where}",
        erratum.finding,
        f"Check: `{erratum.check}` holds in {sum(outcomes)} of {len(outcomes)} rows.",
        _table(erratum, outcomes),
    ]
    if erratum.source:
        lines.append(f"Source: {erratum.source}.")
    lines.append(f"For us: {erratum.consequence}")
    return "\n\n".join(lines) + "\n"


def _table(erratum: Erratum, outcomes: list[bool]) -> str:
    heads = ["", *erratum.columns[1:], "check"]
    rows = [
        [str(row[0]), *(f"{value:g}" for value in numbers.values()), "holds" if holds else "fails"]
        for row, numbers, holds in zip(erratum.rows, erratum.numbers(), outcomes, strict=True)
    ]
    rule = ["---", *["---:"] * len(erratum.columns[1:]), "---"]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))


def write() -> None:
    """Write the page into the checkout."""
    root = sources.checkout()
    if root is None:
        raise LutlabError("docs/errata.md is written in a checkout, and this is an installed wheel")
    (root / "docs" / "errata.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write()
