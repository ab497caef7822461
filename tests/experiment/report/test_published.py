"""A published artifact: table.csv and records.jsonl make the whole table again, and disagreement is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lutlab.base.errors import LutlabError
from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec, TextSpec
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.artifact.outcome import ResultTable
from lutlab.experiment.plan.plan import PlannedCell, PlannedRow
from lutlab.experiment.report import csv, published
from lutlab.experiment.report.compare import tabulate
from lutlab.experiment.report.published import Published
from lutlab.experiment.store.record import Record

ARTIFACT = load_artifact("fig10")  # two points and their fronts, claims over fronts, a factor
OPTIONS = (("sequences", 3),)
ROWS = {"opt-13b/fp16": 0.5, "opt-13b/q3/g32": 1 / 3, "opt-13b/q3/g64": 0.3}


def record(cell: str, value: float, commit: str = "abc") -> Record:
    values = dict.fromkeys((c.metric for c in ARTIFACT.columns.values()), value)
    evaluation = {"evaluator": "lambada", "options": dict(OPTIONS)}
    provenance = {"git_commit": commit, "measured_at": f"2026-01-0{len(cell) % 7 + 1}"}
    return Record(cell, "done", {}, evaluation, values, 1, (), {}, provenance, 0.0)


def measured() -> tuple[ResultTable, dict[str, Record]]:
    """A table as a run makes it, and its records; one row failed."""
    spec = ModelRun(ModelSpec("a-model", "hub", "x"), "rtn", 3, 32)
    labels = {row.key: row.labels for row in ARTIFACT.rows("embedded")}
    records = {key: record(key, value) for key, value in ROWS.items()}
    failed = dataclasses.replace(records["opt-13b/q3/g64"], status="failed", values={}, reason="!")
    records["opt-13b/q3/g64"] = failed
    rows = []
    for key, found in records.items():
        cells = {
            name: PlannedCell(
                EvalSpec("lambada", c.text and TextSpec("passages", "embedded", limit=4), OPTIONS),
                key,
                found,
            )
            for name, c in ARTIFACT.columns.items()
        }
        rows.append(PlannedRow(key, labels[key], spec, ARTIFACT.columns, cells))
    return tabulate(ARTIFACT, rows, "embedded"), records


def example() -> Published:
    table, records = measured()
    return Published(ARTIFACT.name, {"embedded-first4": csv.parse(csv.render(table))}, records)


def test_the_table_comes_back_whole(tmp_path: Path) -> None:
    table, records = measured()
    folder = tmp_path / ARTIFACT.name
    commands = {"embedded-first4": "python run.py +exp=fig10 data.limit=4"}
    paths = published.write(example(), folder, commands)
    assert {p.name for p in paths} == {"records.jsonl", "table.csv", "table.md"}
    found = published.read(folder)
    assert found.records == records
    (again,) = found.tables(commands).values()
    assert again.provenance["git_commit"] == "abc"
    assert dataclasses.replace(again, command=table.command) == table
    assert again.command == commands["embedded-first4"]
    assert any(row.on_front for row in again.rows)
    assert any("evaluator.lambada.sequences=3" in note for note in again.notes)
    before = {p: p.read_bytes() for p in paths}
    published.write(found, folder, commands)
    assert {p: p.read_bytes() for p in paths} == before


def test_variants_are_sections_of_a_page_and_a_column_of_the_table(tmp_path: Path) -> None:
    one = example()
    (cells,) = one.cells.values()
    other = record("ffff", 0.25, commit="def")
    unused = record("eeee", 0.25)
    again = [cells[0] | {"cell_id": "ffff", "measured": ""}, *cells[1:]]
    two = dataclasses.replace(
        one,
        cells={"embedded": cells, "embedded-data": again},
        records=one.records | {"ffff": other, "eeee": unused},
    )
    published.write(two, tmp_path / ARTIFACT.name, {})
    page = (tmp_path / ARTIFACT.name / "table.md").read_text()
    assert page.index("\n## embedded\n") < page.index("\n## embedded-data\n")
    assert "git_commit: abc (3), def (1)" in page
    assert "records: 4" in page, "the unused one is not published"
    rows = csv.parse((tmp_path / ARTIFACT.name / "table.csv").read_text())
    assert [row["variant"] for row in rows] == ["embedded"] * len(cells) + ["embedded-data"] * len(
        cells
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measured": "0.25"}, "table.csv has 0.25 for opt-13b/fp16.*git"),
        ({"cell_id": "none"}, "table.csv has .* its record 'none'"),
        ({"row": "opt-1b/q9"}, "opt-1b/q9.*no longer has: publish it again"),
        ({"column": "gone"}, "fp16.gone, which the artifact no longer has"),
    ],
)
def test_cells_that_disagree_are_refused_by_name(change: dict, message: str) -> None:
    one = example()
    (cells,) = one.cells.values()
    changed = {"embedded": [cells[0] | change, *cells[1:]]}
    with pytest.raises(LutlabError, match=message):
        dataclasses.replace(one, cells=changed).tables({})


def test_a_column_that_came_later_is_not_measured_yet() -> None:
    one = example()
    (cells,) = one.cells.values()
    last = list(ARTIFACT.columns)[-1]
    fewer = {"embedded": [cell for cell in cells if cell["column"] != last]}
    (table,) = dataclasses.replace(one, cells=fewer).tables({}).values()
    assert {row.cells[last].note for row in table.rows} == {"not measured yet"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LutlabError, match=r"table.csv is not there.*git"):
        published.read(tmp_path)
