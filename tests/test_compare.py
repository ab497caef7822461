"""Verdicts: what a measured number may be called, and that a stand-in is never called a match."""

from __future__ import annotations

import pytest

from lutlab.compare import tabulate
from lutlab.outcome import Cell
from lutlab.plan import PlannedCell, PlannedRow
from lutlab.records import EvalSpec, ModelSpec, Record, RunSpec, TextSpec
from lutlab.tables import load_artifact

ARTIFACT = load_artifact("table4")
ROW = "opt-30b/q4_g32"  # published Wiki2: 9.71


def record(value: float | None, status: str = "done", reason: str = "") -> Record:
    values = {} if value is None else {"ppl": value}
    return Record("id", status, {}, {}, values, 1, (), {}, {}, 0.0, reason)


def verdict_of(
    cell_record: Record | None,
    *,
    scale: str = "paper",
    protocol: str = "wikitext2",
    source: str = "hub",
    missing: str = "",
    artifact: object = ARTIFACT,
) -> Cell:
    evaluation = EvalSpec("ppl", TextSpec(protocol, "hub"))
    cells = {
        key: PlannedCell(evaluation, "id", cell_record, missing)
        if key == "wiki2"
        else PlannedCell(EvalSpec("latency"), None, missing="no kernels")
        for key in ARTIFACT.columns
    }
    spec = RunSpec(ModelSpec("a-model", source, "x"), "rtn", 4, 32)
    row = PlannedRow(ROW, {"Model": "OPT-30B"}, spec, ARTIFACT.columns, cells)
    return tabulate(artifact, [row], scale, {}).rows[0].cells["wiki2"]


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (9.71, "match"),
        (9.74, "match"),
        (9.80, "within tolerance"),
        (9.60, "within tolerance"),
        (10.50, "deviates"),
    ],
)
def test_the_papers_own_model_and_text_are_compared(value: float, verdict: str) -> None:
    cell = verdict_of(record(value))
    assert (cell.published, cell.measured, cell.verdict) == (9.71, value, verdict)


def test_a_stand_in_is_never_a_match() -> None:
    assert verdict_of(record(9.71), scale="embedded").verdict == "stand-in"
    assert verdict_of(record(9.71), scale="small").verdict == "stand-in"
    on_another_text = verdict_of(record(9.71), protocol="topics")
    assert on_another_text.verdict == "stand-in"
    assert on_another_text.note == "a-model on topics"
    assert verdict_of(record(9.71), source="synthetic").verdict == "synthetic weights"


def test_what_was_not_measured_says_why_and_shows_no_number() -> None:
    cases = {
        "failed": verdict_of(record(None, "failed", "weights are NaN")),
        "OOM": verdict_of(record(None, "oom", "out of memory")),
        "not run": verdict_of(None),
    }
    for verdict, cell in cases.items():
        assert cell.verdict == verdict
        assert cell.measured is None
        assert cell.note
    assert verdict_of(None, missing="no GPU").note == "no GPU"


def test_a_sweep_of_ones_own_has_no_published_numbers() -> None:
    cell = verdict_of(record(9.71), artifact=None)
    assert (cell.published, cell.verdict) == (None, "measured only")


def test_an_inferred_protocol_is_labelled() -> None:
    spec = RunSpec(ModelSpec("m", "hub", "x"), "rtn", 4, 32)
    cell = PlannedCell(EvalSpec("ppl", TextSpec("passages-joined", "embedded")), "id")
    row = PlannedRow(ROW, {}, spec, ARTIFACT.columns, dict.fromkeys(ARTIFACT.columns, cell))
    columns = {c.key: c for c in tabulate(ARTIFACT, [row], "embedded", {}).columns}
    assert columns["lambada"].protocol == "lambada-joined [inferred]"
    assert columns["wiki2"].protocol == "wikitext2"
