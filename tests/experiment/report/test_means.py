"""Means of rows and of columns, rows that are not run, and rows with a metric of their own; made, published, read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec, TextSpec
from lutlab.experiment.artifact.artifact import Artifact, load_artifact
from lutlab.experiment.artifact.catalog import artifacts
from lutlab.experiment.artifact.outcome import ResultTable
from lutlab.experiment.plan.plan import PlannedCell, PlannedRow
from lutlab.experiment.report import csv, published
from lutlab.experiment.report.compare import tabulate
from lutlab.experiment.report.published import Published
from lutlab.experiment.store.record import Record

TABLE1, TABLE4 = (load_artifact(f"mixed-2-4-16/{name}") for name in ("table1", "table4"))


def measured(
    artifact: Artifact, values: Mapping[str, Mapping[str, float]], scale: str
) -> tuple[ResultTable, dict[str, Record]]:
    """The table of these rows: key -> metric -> value, of every cell that the row has to run."""
    spec, records, rows = ModelRun(ModelSpec("a-model", "hub", "x"), "rtn", 3, 32), {}, []
    known = {row.key: row for row in artifact.rows(scale)}
    for key, found in values.items():
        record = Record(
            f"{key} id", "done", {}, {"evaluator": "ppl"}, dict(found), 1, (), {}, {}, 0.0
        )
        columns = artifact.columns_of(known[key])
        cells = {}
        for name, column in columns.items():
            text = column.text and TextSpec(column.text, "hub")
            cell = PlannedCell(EvalSpec(column.evaluator, text), None, missing=column.reason)
            if not column.reason:
                records[record.cell_id] = record
                cell = dataclasses.replace(cell, cell_id=record.cell_id, record=record)
            cells[name] = cell
        rows.append(PlannedRow(key, known[key].labels, spec, columns, cells))
    return tabulate(artifact, rows, scale), records


def manual(first: float, middle: float, last: float) -> dict[str, dict[str, float]]:
    sizes = {"bits_per_weight": 2.985, "bits_paper_eq10": 2.84, "output_relative_mse": 0.02}
    return {
        "llama-2-7b/manual": {},
        **{
            f"llama-2-7b/manual_{place}": sizes | {"ppl": ppl}
            for place, ppl in (("first", first), ("middle", middle), ("last", last))
        },
    }


@pytest.mark.parametrize(("scale", "verdict"), [("paper", "match"), ("embedded", "stand-in")])
def test_a_row_is_the_mean_of_others_and_comes_back(
    scale: str, verdict: str, tmp_path: Path
) -> None:
    table, records = measured(TABLE4, manual(7.0, 7.2, 7.22), scale)
    cell = table.rows[0].cells["ppl"]
    assert (cell.measured, cell.verdict) == (pytest.approx(7.14), verdict)
    assert (cell.published, cell.cell_id) == (7.13, None)
    made = Published(TABLE4.name, {scale: csv.parse(csv.render(table))}, records)
    published.write(made, tmp_path, {})
    (again,) = (
        published.parse(TABLE4.name, (tmp_path / "table.csv").read_text(), records)
        .tables({})
        .values()
    )
    assert again.rows == table.rows


def test_a_mean_of_what_is_not_all_measured_is_not_run() -> None:
    some = manual(7.0, 7.2, 7.22)
    del some["llama-2-7b/manual_last"]
    cell = measured(TABLE4, some, "paper")[0].rows[0].cells["ppl"]
    assert (cell.measured, cell.verdict) == (None, "not run")
    assert "the mean of manual_first, manual_middle, manual_last" in cell.note


def test_an_average_is_that_of_the_scores_of_each_rows_own_metric() -> None:
    values = {
        "accuracy": 0.5,
        "accuracy_norm": 0.7,
        "ppl": 5.68,
        "bits_per_weight": 16,
        "output_relative_mse": 0,
    }
    keys = ("llama-1-7b/fp16", "llama-2-7b/fp16", "llama-1-7b/aptq", "chatglm3-6b/ours")
    one, two, aptq, chatglm = measured(TABLE1, dict.fromkeys(keys, values), "paper")[0].rows
    assert one.cells["hellaswag"].measured == pytest.approx(70), "acc_norm"
    assert two.cells["hellaswag"].measured == pytest.approx(50)
    assert one.cells["average"].measured == pytest.approx(55)
    assert two.cells["average"].measured == pytest.approx(50)
    assert {cell.measured for row in (aptq, chatglm) for cell in row.cells.values()} == {None}
    assert aptq.cells["ppl"].note == "the method of Guan et al. 2024 is no part of lutlab"
    assert "its repository's own code" in chatglm.cells["ppl"].note


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"mean_of": ["manual_fist"]},
            "is the mean of 'llama-2-7b/manual_fist', which is not a row",
        ),
        ({"metrics": {"pll": "ppl"}}, "has a metric of 'pll', which is not a column"),
        ({"metrics": {"ppl": "pll"}}, "ppl has no metric 'pll'"),
        ({"published": False}, "is not a cell|no published value"),
    ],
)
def test_entries_that_name_nothing_are_refused(change: dict, message: str) -> None:
    data = yaml.safe_load(artifacts()[TABLE4.name].read_text())
    data["axes"][1]["manual"] |= change
    with pytest.raises(ValueError, match=message):
        Artifact(name="x", **data)
