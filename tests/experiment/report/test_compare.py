"""Verdicts: what a measured number may be called, and that a stand-in is never called a match."""

from __future__ import annotations

import dataclasses
import math

import pytest

from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec, ProductRun, TextSpec
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.artifact.columns import free_columns
from lutlab.experiment.artifact.outcome import Cell, ResultTable
from lutlab.experiment.plan.plan import PlannedCell, PlannedRow
from lutlab.experiment.report.compare import (
    assemble,
    column_here,
    row_of,
    tabulate,
    tabulate_sweep,
    tuned_badly,
)
from lutlab.experiment.report.layout import lay_out
from lutlab.experiment.store.record import Record

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
    limit: int | None = None,
) -> Cell:
    evaluation = EvalSpec("ppl", TextSpec(protocol, "hub", limit=limit))
    cells = {
        key: PlannedCell(evaluation, "id", cell_record, missing)
        if key == "wiki2"
        else PlannedCell(EvalSpec("latency"), None, missing="no kernels")
        for key in ARTIFACT.columns
    }
    spec = ModelRun(ModelSpec("a-model", source, "x"), "rtn", 4, 32)
    row = PlannedRow(ROW, {"Model": "OPT-30B"}, spec, ARTIFACT.columns, cells)
    return tabulate(ARTIFACT, [row], scale).rows[0].cells["wiki2"]


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


def test_a_part_of_a_text_is_a_stand_in_and_is_named() -> None:
    cell = verdict_of(record(9.71), limit=64)
    assert (cell.verdict, cell.note) == ("stand-in", "a-model on wikitext2, first 64")


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


def test_a_metric_that_its_record_lacks_has_the_reason_that_the_record_gives() -> None:
    lacking = dataclasses.replace(record(None), facts={"not_measured": {"ppl": "3 heads for 2"}})
    assert verdict_of(lacking).note == "3 heads for 2"
    assert verdict_of(record(None)).note == "its record has no ppl"


def sweep_row(key: str, value: float, baseline: str = "") -> PlannedRow:
    columns = free_columns(["ppl:wikitext2"])
    cell = PlannedCell(EvalSpec("ppl", TextSpec("wikitext2", "hub")), key, record(value))
    spec = ModelRun(ModelSpec("m", "hub", "x"), "rtn", 4, 32)
    return PlannedRow(
        key, {"q": key}, spec, columns, dict.fromkeys(columns, cell), baseline=baseline
    )


def test_a_sweep_of_ones_own_stands_beside_full_precision() -> None:
    rows = [sweep_row("full", 9.5), sweep_row("q4", 9.71, "full"), sweep_row("alone", 9.6)]
    table = tabulate_sweep("mine", rows, "paper", "the command")
    cells = [row.cells["ppl_wikitext2"] for row in table.rows]
    assert {(cell.published, cell.verdict) for cell in cells} == {(None, "measured only")}
    assert [cell.baseline for cell in cells] == [None, 9.5, None]
    assert (table.artifact, table.command) == ("sweep/mine", "the command")


def test_a_row_of_a_table_stands_beside_its_model_in_full_precision() -> None:
    def row(key: str, values: tuple[float, ...]) -> PlannedRow:
        value = math.exp(sum(values) / len(values))
        of_windows = dataclasses.replace(
            record(value), evaluation={"evaluator": "ppl"}, samples=values, facts={"seqlen": 1}
        )
        cell = PlannedCell(EvalSpec("ppl", TextSpec("wikitext2", "hub")), key, of_windows)
        columns = {"wiki2": ARTIFACT.columns["wiki2"]}
        spec = ModelRun(ModelSpec("m", "hub", "x"), "rtn", 4, 32)
        return PlannedRow(key, {}, spec, columns, {"wiki2": cell})

    rows = [row("opt-30b/fp16", (2.0, 3.0, 4.0)), row("opt-30b/q4_g32", (2.2, 3.2, 4.2))]
    columns = [column_here("wiki2", ARTIFACT.columns["wiki2"], rows)]
    narrow = ARTIFACT.model_copy(update={"columns": rows[0].columns, "claims": ()})
    table = assemble(narrow, columns, [row_of(narrow, r, "paper") for r in rows], "paper", {}, [])
    full, coded = (row.cells["wiki2"] for row in table.rows)
    assert full.difference is None
    assert coded.baseline == full.measured == pytest.approx(math.exp(3))
    assert coded.difference.value == pytest.approx(math.exp(3.2) - math.exp(3))
    assert coded.difference_error == pytest.approx(coded.error - full.error), "of the same windows"


def test_an_inferred_protocol_is_labelled() -> None:
    spec = ModelRun(ModelSpec("m", "hub", "x"), "rtn", 4, 32)
    cell = PlannedCell(EvalSpec("ppl", TextSpec("passages-joined", "embedded")), "id")
    row = PlannedRow(ROW, {}, spec, ARTIFACT.columns, dict.fromkeys(ARTIFACT.columns, cell))
    columns = {c.key: c for c in tabulate(ARTIFACT, [row], "embedded").columns}
    assert columns["lambada"].protocol == "lambada-joined [inferred]"
    assert columns["wiki2"].protocol == "wikitext2"


def table_of(name: str, row: str, values: dict[str, float], scale: str = "paper") -> ResultTable:
    artifact = load_artifact(name)
    done = Record("id", "done", {}, {}, values, 1, (), {}, {}, 0.0)
    cells = {
        key: PlannedCell(EvalSpec(c.evaluator, c.text and TextSpec(c.text, "hub")), "id", done)
        for key, c in artifact.columns.items()
    }
    spec = ModelRun(ModelSpec("a-model", "hub", "x"), "gptq", 3, -1)
    return tabulate(artifact, [PlannedRow(row, {}, spec, artifact.columns, cells)], scale)


TABLE9 = {
    "ppl": 8.68,
    "accuracy": 0.8003,
    "megabytes_table6": 65_300.0,
    "ratio_table6": 5.33,
    "latency_1gpu_ms": 51.6,
}


def test_a_model_nobody_can_have_is_never_a_match() -> None:
    table = table_of("lut-gemm-iclr2024/table9", "opt-175b/q3", TABLE9)
    (row,) = table.rows
    assert row.stand_in
    assert {cell.verdict for cell in row.cells.values()} == {"stand-in"}


def test_values_are_shown_in_the_papers_unit() -> None:
    cells = table_of("lut-gemm-iclr2024/table9", "opt-175b/q3", TABLE9).rows[0].cells
    assert cells["piqa"].measured == pytest.approx(cells["piqa"].published)  # a fraction -> %
    assert cells["size"].measured == pytest.approx(cells["size"].published)  # MB -> GB


def test_cited_numbers_name_their_source() -> None:
    table = table_of("lut-gemm-iclr2024/table9", "opt-175b/q3", TABLE9)
    cited = {c.key: c.cited for c in table.columns}
    assert cited["wiki2"] == "Frantar et al. 2022"
    assert cited["latency"] == ""
    assert any("the paper cites these numbers from Frantar" in note for note in table.notes)
    assert {head.key: head.paper for head in lay_out(table).main.heads} == {
        **dict.fromkeys(("wiki2", "ptb", "c4", "piqa"), "cited"),
        **dict.fromkeys(("size", "ratio", "latency"), "paper"),
    }


@pytest.mark.parametrize(
    ("ppl", "printed", "labelled"), [(5.96, "match", "match"), (5.78, "deviates", "deviates")]
)
def test_awq_has_two_readings_of_one_number(ppl: float, printed: str, labelled: str) -> None:
    """Both rows are judged against the number the paper prints; each by what it ran itself."""
    values = {"ppl": ppl, **{f"latency_{n}gpu_ms": 1.0 for n in (1, 2, 4)}}
    for reading, verdict in (("printed", printed), ("labelled", labelled)):
        table = table_of("lut-gemm-iclr2024/table7", f"llama-7b/q4_{reading}", values)
        assert table.rows[0].cells["wiki2"].verdict == verdict
    rows = {row.key: row for row in load_artifact("lut-gemm-iclr2024/table7").rows("paper")}
    assert "method.variant=awq" in rows["llama-7b/q4_printed"].overrides
    assert "method=awq" in rows["llama-7b/q4_labelled"].overrides


def test_what_a_scale_has_no_model_for_is_said() -> None:
    values = {"lambada_accuracy": 0.5, "lambada_perplexity": 9.0, "ratio_eq7": 3.0, "ratio": 3.0}
    table = table_of("fig10", "opt-13b/q3/g32", values, "embedded")
    assert any("which has no model for it: OPT-30B" in note for note in table.notes)
    assert table.rows[0].on_front
    assert table.claims[0].measured == (0, 0), "a partial run decides nothing about fronts"


def product_row(scale: str, device: str) -> ResultTable:
    artifact = load_artifact("lut-gemm-iclr2024/table1")
    values = {c.metric: 1.0 for c in artifact.columns.values()}
    values |= {"speedup_fp16": 3.25, "latency_us": 225.0}
    facts = {
        "baseline": "torch float32 product, in the place of cuBLAS",
        "kernel": ["qigen q3 g128 m_b=32 t_b=64, avx2, 2 threads"],
        "threads": 2,
    }
    made = {"cpu": "a CPU", "gpu": "a GPU"}
    run = {"device": device, "shapes": [[49152, 12288, 1]]}
    done = Record("id", "done", run, {}, values, 1, (), facts, made, 0.0)
    cell = PlannedCell(EvalSpec("kernel_latency"), "id", done)
    spec = ProductRun(((49152, 12288, 1),), "bcq", 3, 128, device=device)
    cells = dict.fromkeys(artifact.columns, cell)
    row = PlannedRow("ffn1/lut_int3", {}, spec, artifact.columns, cells)
    return tabulate(artifact, [row], scale)


def test_of_a_product_on_a_gpu_ratios_are_compared_and_times_are_not() -> None:
    (row,) = product_row("paper", "cuda").rows
    assert not row.stand_in
    assert row.cells["speedup"].verdict == "match"
    assert (row.cells["latency"].measured, row.cells["latency"].published) == (0.225, 0.2250)
    assert row.cells["latency"].verdict == "measured only"
    assert "another machine" in row.cells["latency"].note


@pytest.mark.parametrize(("scale", "device"), [("paper", "cpu"), ("small", "cuda")])
def test_a_product_on_a_cpu_or_of_another_shape_is_a_stand_in(scale: str, device: str) -> None:
    (row,) = product_row(scale, device).rows
    assert row.stand_in
    assert row.cells["speedup"].verdict == row.cells["latency"].verdict == "stand-in"


@pytest.mark.parametrize(
    ("device", "machine", "ours"),
    [
        ("cpu", "over torch float32 on a CPU, 2 threads", "– ours not judged: GPU claim on a CPU"),
        ("cuda", "over torch float32 on a GPU", "– ours not decidable here"),
    ],
)
def test_a_product_says_what_ran_and_a_claim_on_a_gpu_is_of_gpus_alone(
    device: str, machine: str, ours: str
) -> None:
    table = product_row("paper", device)
    assert table.rows[0].labels == {"Ours": "qigen q3 g128"}
    columns = {column.key: column.machine for column in table.columns}
    assert columns["speedup"] == columns["best"] == machine
    assert columns["latency"] == machine.partition("float32 ")[2]
    layout = lay_out(table)
    assert {claim.ours for claim in layout.claims} == {ours}
    assert f"ours: {machine}" in {head.ours for head in layout.main.heads}


@pytest.mark.parametrize(
    ("tuning", "note"),
    [
        ({"kept_step": 4, "diverged": False}, ""),
        ({"kept_step": 4, "diverged": True, "steps": 9}, "of which step 4 of 9"),
        ({"blocks": [{"kept_step": 0, "diverged": False}, {}]}, "improved nothing"),
        ({"blocks": [{"kept_step": 0, "diverged": False}], "kept_step": 2, "diverged": False}, ""),
        ({"blocks": [{"kept_step": 3, "diverged": True}, {}]}, "diverged in 1 of 1 blocks"),
    ],
)
def test_a_tuning_that_went_badly_is_noted(tuning: dict, note: str) -> None:
    tuned = dataclasses.replace(record(9.0), facts={"tuning": tuning})
    assert tuned_badly(tuned) == "" if not note else note in tuned_badly(tuned)


def test_a_claim_of_rows_that_a_scale_leaves_out_is_not_decidable() -> None:
    artifact = load_artifact("qigen/table2")
    at_real = {row.key for row in artifact.rows("real")}
    dropped = {row.key for row in artifact.rows("paper")} - at_real
    assert any(key in one for claim in artifact.claims for one in claim.holds for key in dropped)
    claims = assemble(artifact, (), (), "real", {}, ()).claims
    assert {claim.measured for claim in claims} == {(0, 0)}
