"""A published artifact: table.csv and records.jsonl make the whole table again, with its means, or are refused."""

import dataclasses

import pytest
import yaml
from tests.experiment.report import example

from lutlab.base.errors import LutlabError
from lutlab.base.specs import EvalSpec, TextSpec
from lutlab.experiment.artifact.artifact import Artifact, load_artifact
from lutlab.experiment.artifact.catalog import artifacts
from lutlab.experiment.report import csv, published
from lutlab.experiment.report.published import Published

ARTIFACT = load_artifact("fig10")  # two points and their fronts, claims over fronts, a factor
# means of rows and of columns, rows that are not run, and rows with a metric of their own
TABLE1, TABLE4 = (load_artifact(f"mixed-2-4-16/{name}") for name in ("table1", "table4"))
PPL = {"evaluation": {"evaluator": "ppl"}}
OPTIONS = (("sequences", 3),)
VARIANT = "embedded-first4"


def record(cell, value, commit="abc"):
    evaluation = {"evaluator": "lambada", "options": dict(OPTIONS)}
    made = {"git_commit": commit, "measured_at": f"2026-01-0{len(cell) % 7 + 1}"}
    values = dict.fromkeys((c.metric for c in ARTIFACT.columns.values()), value)
    return example.record(values, cell, evaluation=evaluation, provenance=made)


VALUES = {"opt-13b/fp16": 0.5, "opt-13b/q3/g32": 1 / 3, "opt-13b/q3/g64": 0.3}
RECORDS = {key: record(key, value) for key, value in VALUES.items()}
RECORDS["opt-13b/q3/g64"] = dataclasses.replace(
    RECORDS["opt-13b/q3/g64"], status="failed", values={}, reason="!"
)


@pytest.fixture(scope="module")
def table():
    """A table as a run makes it; one row failed."""
    passages = TextSpec("passages", "embedded", limit=4)

    def evaluation(column):
        return EvalSpec("lambada", column.text and passages, OPTIONS)

    return example.measured(ARTIFACT, RECORDS, "embedded", evaluation=evaluation)


@pytest.fixture
def cells(table):
    return csv.parse(csv.render(table))


def test_the_table_comes_back_whole(table, cells, tmp_path):
    folder = tmp_path / ARTIFACT.name
    commands = {VARIANT: "python run.py +exp=fig10 data.limit=4"}
    paths = published.write(Published(ARTIFACT.name, {VARIANT: cells}, RECORDS), folder, commands)
    assert {p.name for p in paths} == {"records.jsonl", "table.csv", "table.md"}
    stored = published.read(folder)
    assert stored.records == RECORDS
    (again,) = stored.tables(commands).values()
    assert again.provenance["git_commit"] == "abc"
    assert dataclasses.replace(again, command=table.command) == table
    assert again.command == commands[VARIANT]
    assert any(row.on_front for row in again.rows)
    assert any("evaluator.lambada.sequences=3" in note for note in again.notes)
    before = {p: p.read_bytes() for p in paths}
    published.write(stored, folder, commands)
    assert {p: p.read_bytes() for p in paths} == before


def test_variants_are_sections_of_a_page_and_a_column_of_the_table(cells, tmp_path):
    other, unused = record("ffff", 0.25, commit="def"), record("eeee", 0.25)
    again = [cells[0] | {"cell_id": "ffff", "measured": ""}, *cells[1:]]
    variants = {"embedded": cells, "embedded-data": again}
    records = RECORDS | {"ffff": other, "eeee": unused}
    folder = tmp_path / ARTIFACT.name
    published.write(Published(ARTIFACT.name, variants, records), folder, {})
    page = (folder / "table.md").read_text()
    assert page.index("\n## embedded\n") < page.index("\n## embedded-data\n")
    assert "git_commit: abc (3), def (1)" in page
    assert "records: 4" in page, "the unused one is not published"
    rows = csv.parse((folder / "table.csv").read_text())
    assert [r["variant"] for r in rows] == [name for name in variants for _ in cells]


@pytest.mark.parametrize(("change", "message"), [
    ({"measured": "0.25"}, "table.csv has 0.25 for opt-13b/fp16.*git"),
    ({"cell_id": "none"}, "table.csv has .* its record 'none'"),
    ({"row": "opt-1b/q9"}, "opt-1b/q9.*no longer has: publish it again"),
    ({"column": "gone"}, "fp16.gone, which the artifact no longer has"),
])  # fmt: skip
def test_cells_that_disagree_are_refused_by_name(cells, change, message):
    changed = {"embedded": [cells[0] | change, *cells[1:]]}
    with pytest.raises(LutlabError, match=message):
        Published(ARTIFACT.name, changed, RECORDS).tables({})


def test_a_column_that_came_later_is_not_measured_yet(cells):
    last = list(ARTIFACT.columns)[-1]
    fewer = {"embedded": [cell for cell in cells if cell["column"] != last]}
    (table,) = Published(ARTIFACT.name, fewer, RECORDS).tables({}).values()
    assert {row.cells[last].note for row in table.rows} == {"not measured yet"}


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(LutlabError, match=r"table.csv is not there.*git"):
        published.read(tmp_path)


def manual(**perplexities):
    """The records of a row that is a mean, which has none, and of the rows whose mean it is."""
    sizes = {"bits_per_weight": 2.985, "bits_paper_eq10": 2.84, "output_relative_mse": 0.02}
    records = {"llama-2-7b/manual": example.record({}, **PPL)}
    for place, ppl in perplexities.items():
        key = f"llama-2-7b/manual_{place}"
        records[key] = example.record(sizes | {"ppl": ppl}, f"{key} id", **PPL)
    return records


@pytest.mark.parametrize(("scale", "verdict"), [("paper", "match"), ("embedded", "stand-in")])
def test_a_row_is_the_mean_of_others_and_comes_back(scale, verdict, tmp_path):
    rows = manual(first=7.0, middle=7.2, last=7.22)
    table = example.measured(TABLE4, rows, scale)
    cell = table.rows[0].cells["ppl"]
    assert (cell.measured, cell.verdict) == (pytest.approx(7.14), verdict)
    assert (cell.published, cell.cell_id) == (7.13, None)
    records = {known.cell_id: known for known in rows.values() if known.values}
    made = Published(TABLE4.name, {scale: csv.parse(csv.render(table))}, records)
    published.write(made, tmp_path, {})
    text = (tmp_path / "table.csv").read_text()
    (again,) = published.parse(TABLE4.name, text, records).tables({}).values()
    assert again.rows == table.rows


def test_a_mean_of_what_is_not_all_measured_is_not_run():
    cell = example.measured(TABLE4, manual(first=7.0, middle=7.2)).rows[0].cells["ppl"]
    assert (cell.measured, cell.verdict) == (None, "not run")
    assert "the mean of manual_first, manual_middle, manual_last" in cell.note


def test_an_average_is_that_of_the_scores_of_each_rows_own_metric():
    values = {"accuracy": 0.5, "accuracy_norm": 0.7, "ppl": 5.68, "bits_per_weight": 16}
    keys = ("llama-1-7b/fp16", "llama-2-7b/fp16", "llama-1-7b/aptq", "chatglm3-6b/ours")
    records = dict.fromkeys(keys, example.record(values | {"output_relative_mse": 0}, **PPL))
    first, second, aptq, chatglm = example.measured(TABLE1, records).rows
    assert first.cells["hellaswag"].measured == pytest.approx(70), "acc_norm"
    assert second.cells["hellaswag"].measured == pytest.approx(50)
    assert first.cells["average"].measured == pytest.approx(55)
    assert second.cells["average"].measured == pytest.approx(50)
    assert {cell.measured for row in (aptq, chatglm) for cell in row.cells.values()} == {None}
    assert aptq.cells["ppl"].note == "the method of Guan et al. 2024 is no part of lutlab"
    assert "its repository's own code" in chatglm.cells["ppl"].note


@pytest.mark.parametrize(("change", "message"), [
    ({"mean_of": ["manual_fist"]}, "is the mean of 'llama-2-7b/manual_fist', which is not a row"),
    ({"metrics": {"pll": "ppl"}}, "has a metric of 'pll', which is not a column"),
    ({"metrics": {"ppl": "pll"}}, "ppl has no metric 'pll'"),
    ({"published": False}, "is not a cell|no published value"),
])  # fmt: skip
def test_entries_that_name_nothing_are_refused(change, message):
    data = yaml.safe_load(artifacts()[TABLE4.name].read_text())
    data["axes"][1]["manual"] |= change
    with pytest.raises(ValueError, match=message):
        Artifact(name="x", **data)
