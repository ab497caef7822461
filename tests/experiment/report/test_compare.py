"""Verdicts: what a measured number may be called, and that a stand-in is never called a match."""

import math

import pytest
from tests.experiment.report.example import SPEC, measured, record

from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec, ProductRun, TextSpec
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.artifact.columns import free_columns
from lutlab.experiment.plan.plan import PlannedCell, PlannedRow
from lutlab.experiment.report import compare
from lutlab.experiment.report.compare import tabulate
from lutlab.experiment.report.layout import lay_out

ARTIFACT = load_artifact("table4")
ROW = "opt-30b/q4_g32"  # published Wiki2: 9.71
WIKITEXT2 = EvalSpec("ppl", TextSpec("wikitext2", "hub"))


def ppl(value):
    return record({"ppl": value})


@pytest.mark.parametrize(("known", "settings", "verdict", "note"), [
    (ppl(9.71), {}, "match", ""),
    (ppl(9.74), {}, "match", ""),
    (ppl(9.80), {}, "within tolerance", ""),
    (ppl(9.60), {}, "within tolerance", ""),
    (ppl(10.50), {}, "deviates", ""),
    (ppl(9.71), {"scale": "embedded"}, "stand-in", "a-model on wikitext2"),
    (ppl(9.71), {"scale": "small"}, "stand-in", "a-model on wikitext2"),
    (ppl(9.71), {"protocol": "topics"}, "stand-in", "a-model on topics"),
    (ppl(9.71), {"limit": 64}, "stand-in", "a-model on wikitext2, first 64"),
    (ppl(9.71), {"source": "synthetic"}, "synthetic weights", "a-model"),
    (record({}, status="failed", reason="weights are NaN"), {}, "failed", "weights are NaN"),
    (record({}, status="oom", reason="out of memory"), {}, "OOM", "out of memory"),
    (None, {}, "not run", compare.NOT_YET),
    (None, {"missing": "no GPU"}, "not run", "no GPU"),
    (record({}, facts={"not_measured": {"ppl": "3 heads"}}), {}, "not run", "3 heads"),
    (record({}), {}, "not run", "its record has no ppl"),
])  # fmt: skip
def test_a_cell_is_called_what_its_record_allows(known, settings, verdict, note):
    """A stand-in is never a match and is named; what was not measured says why and shows no number."""
    settings = {
        "scale": "paper",
        "protocol": "wikitext2",
        "source": "hub",
        "missing": "",
    } | settings
    text = TextSpec(settings["protocol"], "hub", limit=settings.get("limit"))
    planned = PlannedCell(EvalSpec("ppl", text), "id", known, settings["missing"])
    spec = ModelRun(ModelSpec("a-model", settings["source"], "x"), "rtn", 4, 32)
    row = PlannedRow(ROW, {}, spec, ARTIFACT.columns, dict.fromkeys(ARTIFACT.columns, planned))
    cell = tabulate(ARTIFACT, [row], settings["scale"]).rows[0].cells["wiki2"]
    assert (cell.published, cell.measured) == (9.71, known.values.get("ppl") if known else None)
    assert (cell.verdict, cell.note) == (verdict, note)


def test_a_sweep_of_ones_own_stands_beside_full_precision():
    def row(key, value, baseline=""):
        columns = free_columns(["ppl:wikitext2"])
        cells = dict.fromkeys(columns, PlannedCell(WIKITEXT2, key, record({"ppl": value})))
        return PlannedRow(key, {"q": key}, SPEC, columns, cells, baseline=baseline)

    rows = [row("full", 9.5), row("q4", 9.71, "full"), row("alone", 9.6)]
    table = compare.tabulate_sweep("mine", rows, "paper", "the command")
    cells = [row.cells["ppl_wikitext2"] for row in table.rows]
    assert {(cell.published, cell.verdict) for cell in cells} == {(None, "measured only")}
    assert [cell.baseline for cell in cells] == [None, 9.5, None]
    assert (table.artifact, table.command) == ("sweep/mine", "the command")


def test_a_row_of_a_table_stands_beside_its_model_in_full_precision():
    columns = {"wiki2": ARTIFACT.columns["wiki2"]}

    def row(key, *values):
        samples = {"samples": values, "facts": {"seqlen": 1}, "evaluation": {"evaluator": "ppl"}}
        known = record({"ppl": math.exp(sum(values) / len(values))}, **samples)
        return PlannedRow(key, {}, SPEC, columns, {"wiki2": PlannedCell(WIKITEXT2, key, known)})

    rows = [row("opt-30b/fp16", 2.0, 3.0, 4.0), row("opt-30b/q4_g32", 2.2, 3.2, 4.2)]
    narrow = ARTIFACT.model_copy(update={"columns": columns, "claims": ()})
    heads = [compare.column_here("wiki2", columns["wiki2"], rows)]
    here = [compare.row_of(narrow, planned, "paper") for planned in rows]
    table = compare.assemble(narrow, heads, here, "paper", {}, [])
    full, coded = (row.cells["wiki2"] for row in table.rows)
    assert full.difference is None
    assert coded.baseline == full.measured == pytest.approx(math.exp(3))
    assert coded.difference.value == pytest.approx(math.exp(3.2) - math.exp(3))
    assert coded.difference_error == pytest.approx(coded.error - full.error), "of the same windows"


def test_an_inferred_protocol_is_labelled():
    cell = PlannedCell(EvalSpec("ppl", TextSpec("passages-joined", "embedded")), "id")
    row = PlannedRow(ROW, {}, SPEC, ARTIFACT.columns, dict.fromkeys(ARTIFACT.columns, cell))
    protocols = {c.key: c.protocol for c in tabulate(ARTIFACT, [row], "embedded").columns}
    assert protocols["lambada"] == "lambada-joined [inferred]"
    assert protocols["wiki2"] == "wikitext2"


def test_a_model_nobody_can_have_is_a_stand_in_in_the_papers_units_beside_whom_it_cites():
    values = {"ppl": 8.68, "accuracy": 0.8003, "megabytes_table6": 65_300.0, "ratio_table6": 5.33}
    known = record(values | {"latency_1gpu_ms": 51.6})
    table = measured(load_artifact("lut-gemm-iclr2024/table9"), {"opt-175b/q3": known})
    (row,) = table.rows
    assert row.stand_in
    assert {cell.verdict for cell in row.cells.values()} == {"stand-in"}
    for key in ("piqa", "size"):  # a fraction -> %, MB -> GB
        assert row.cells[key].measured == pytest.approx(row.cells[key].published)
    cited = {c.key: c.cited for c in table.columns}
    assert (cited["wiki2"], cited["latency"]) == ("Frantar et al. 2022", "")
    assert any("the paper cites these numbers from Frantar" in note for note in table.notes)
    assert {head.key: head.paper for head in lay_out(table).main.heads} == {
        **dict.fromkeys(("wiki2", "ptb", "c4", "piqa"), "cited"),
        **dict.fromkeys(("size", "ratio", "latency"), "paper"),
    }


@pytest.mark.parametrize(("ppl", "verdict"), [(5.96, "match"), (5.78, "deviates")])
def test_awq_has_two_readings_of_one_number(ppl, verdict):
    """Both rows are judged against the number the paper prints; each by what it ran itself."""
    artifact = load_artifact("lut-gemm-iclr2024/table7")
    known = record({"ppl": ppl, **{f"latency_{n}gpu_ms": 1.0 for n in (1, 2, 4)}})
    lines = {line.key: line for line in artifact.rows("paper")}
    for reading, override in (("printed", "method.variant=awq"), ("labelled", "method=awq")):
        key = f"llama-7b/q4_{reading}"
        assert measured(artifact, {key: known}).rows[0].cells["wiki2"].verdict == verdict
        assert override in lines[key].overrides


def test_what_a_scale_has_no_model_for_is_said():
    values = {"lambada_accuracy": 0.5, "lambada_perplexity": 9.0, "ratio_eq7": 3.0, "ratio": 3.0}
    table = measured(load_artifact("fig10"), {"opt-13b/q3/g32": record(values)}, "embedded")
    assert any("which has no model for it: OPT-30B" in note for note in table.notes)
    assert table.rows[0].on_front
    assert table.claims[0].measured == (0, 0), "a partial run decides nothing about fronts"


def product_row(scale, device):
    artifact = load_artifact("lut-gemm-iclr2024/table1")
    values = {c.metric: 1.0 for c in artifact.columns.values()}
    values |= {"speedup_fp16": 3.25, "latency_us": 225.0}
    facts = {"baseline": "torch bfloat16, torch float32, in the place of cuBLAS", "threads": 2}
    facts["kernel"] = ["qigen q3 g128 m_b=32 t_b=64, avx2, 2 threads"]
    shapes = ((49152, 12288, 1),)
    run, made = {"device": device, "shapes": shapes}, {"cpu": "a CPU", "gpu": "a GPU"}
    known = record(values, run=run, facts=facts, provenance=made)
    spec = ProductRun(shapes, "bcq", 3, 128, device=device)
    return measured(artifact, {"ffn1/lut_int3": known}, scale, lambda _: spec)


@pytest.mark.parametrize(("scale", "device", "speedup", "latency"), [
    ("paper", "cuda", "match", "measured only"),
    ("paper", "cpu", "stand-in", "stand-in"),
    ("small", "cuda", "stand-in", "stand-in"),
])  # fmt: skip
def test_only_ratios_of_the_papers_product_on_a_gpu_are_compared(scale, device, speedup, latency):
    (row,) = product_row(scale, device).rows
    time = row.cells["latency"]
    assert (row.cells["speedup"].verdict, time.verdict) == (speedup, latency)
    assert row.stand_in == (speedup == "stand-in")
    assert (time.measured, time.published) == (0.225, 0.2250)
    assert row.stand_in or "another machine" in time.note


@pytest.mark.parametrize(("device", "machine", "ours"), [
    ("cpu", "over torch bfloat16 on a CPU, 2 threads", "– ours not judged: GPU claim on a CPU"),
    ("cuda", "over torch bfloat16 on a GPU", "– ours not decidable here"),
])  # fmt: skip
def test_a_product_says_what_ran_and_a_claim_on_a_gpu_is_of_gpus_alone(device, machine, ours):
    table = product_row("paper", device)
    own = {"Shape": "4m × m", "Kernel": "LUT-GEMM", "Weight": "INT3", "Input": "FP16"}
    assert table.rows[0].labels == own | {"Output": "FP16", "Ours": "qigen q3 g128"}
    columns = {column.key: column.machine for column in table.columns}
    assert columns["speedup"] == columns["best"] == machine
    assert columns["latency"] == machine.partition("bfloat16 ")[2]
    layout = lay_out(table)
    assert {claim.ours for _, claims in layout.claims for claim in claims} == {ours}
    what, _, where = machine.partition(" on ")
    assert f"ours: {what}" in {head.ours for head in layout.main.heads}
    assert layout.measured == f"scale paper; speeds on {where}"


@pytest.mark.parametrize(("tuning", "note"), [
    ({"kept_step": 4, "diverged": False}, ""),
    ({"kept_step": 4, "diverged": True, "steps": 9}, "a tuning that diverged, of which step 4 of 9 is kept"),
    ({"blocks": [{"kept_step": 0, "diverged": False}, {}]}, "improved nothing"),
    ({"blocks": [{"kept_step": 0, "diverged": False}], "kept_step": 2, "diverged": False}, ""),
    ({"blocks": [{"kept_step": 3, "diverged": True}, {}]}, "diverged in 1 of 1 blocks"),
])  # fmt: skip
def test_a_tuning_that_went_badly_is_noted(tuning, note):
    tuned = compare.tuned_badly(record({}, facts={"tuning": tuning}))
    assert note in tuned if note else tuned == ""


def test_a_claim_of_rows_that_a_scale_leaves_out_is_not_decidable():
    artifact = load_artifact("qigen/table2")
    dropped = {r.key for r in artifact.rows("paper")} - {r.key for r in artifact.rows("real")}
    held = [comparison for claim in artifact.claims for comparison in claim.holds]
    assert any(key in comparison for comparison in held for key in dropped)
    claims = compare.assemble(artifact, (), (), "real", {}, ()).claims
    assert {claim.measured for claim in claims} == {(0, 0)}
