"""Predicted cells: of the paper's model, under their own verdict, in every format as what they are, and in no claim."""

import dataclasses
import re

import pytest
from matplotlib.colors import to_hex
from pydantic import ValidationError
from tests.conftest import ROOT
from tests.experiment.report.example import drawn, measured, record

from lutlab import predict
from lutlab.experiment.artifact.artifact import Artifact, load_artifact
from lutlab.experiment.artifact.columns import ColumnSpec
from lutlab.experiment.artifact.outcome import Cell
from lutlab.experiment.artifact.predicted import VERDICT
from lutlab.experiment.artifact.yaml_file import read_yaml
from lutlab.experiment.report import compare, csv, write_report
from lutlab.experiment.report.layout import PREDICTION_MEANING, lay_out
from lutlab.experiment.report.published import Published
from lutlab.experiment.report.style import PAPER

ARTIFACT = load_artifact("table4")
LATENCIES = ("latency_1gpu", "latency_2gpu", "latency_4gpu")
NO_GPU = "no CUDA device"
UNPREDICTED = {"predicted": "", "verdict": "not run", "note": NO_GPU}

# Two models at three widths on stand-ins, nothing measured but sizes; latencies cannot be.
ROWS = [r.key for r in ARTIFACT.rows("embedded") if r.key.endswith(("fp16", "q3_g32", "q3_g64"))]
REASONS = {"not_measured": {ARTIFACT.columns[key].metric: NO_GPU for key in LATENCIES}}
ABOUT = {"evaluation": {"evaluator": "model_size"}, "facts": REASONS}
RECORDS = {key: record({"bits_per_weight": 3.3}, f"{key} bits", **ABOUT) for key in ROWS}
TABLE = measured(ARTIFACT, RECORDS, "embedded")
CELLS = {row.key: row.cells for row in TABLE.rows}


def prediction(model, q, g, gpus):
    """Arguments of predict.latency on GPUs of the paper."""
    paper = {"gpu": "A100-80GB", "engine": "lut-gemm", "context": None}
    return {"shape": model, "q": q, "g": g, "gpus": gpus} | paper


def test_a_cell_that_cannot_be_measured_is_predicted_of_the_papers_model():
    cell = CELLS["opt-30b/q3_g64"]["latency_2gpu"]
    settings = prediction("opt-30b", 3, 64, gpus=2)
    assert (cell.verdict, cell.measured) == (VERDICT, None)
    assert cell.predicted == predict.latency(**settings).ms_per_token
    assert cell.predicted == pytest.approx(12.6, rel=0.25)
    assert NO_GPU in cell.note
    assert re.search(r"median error [\d.]+ %, worst \d+ %", cell.note)
    assert CELLS["opt-66b/fp16"]["latency_1gpu"].predicted == "OOM"
    assert CELLS["opt-66b/fp16"]["latency_2gpu"].predicted != "OOM"
    waiting = CELLS["opt-30b/fp16"]["wiki2"]
    assert (waiting.verdict, waiting.predicted) == ("not run", None)


def test_a_measured_cell_stays_measured_and_keeps_its_prediction():
    settings = prediction("opt-30b", 16, -1, gpus=1)
    unit = {"title": "", "unit": "ms/token"}
    spec = ColumnSpec(evaluator="latency", metric="latency_1gpu_ms", **unit)
    mine = Cell("latency_1gpu", 40.5, 12.0, "stand-in", "opt-embedded-s", "id")
    both = compare.with_prediction(mine, settings, spec)
    assert both.predicted
    assert dataclasses.replace(both, predicted=None) == mine
    waiting = Cell("latency_1gpu", 40.5, None, "not run", compare.NOT_YET, "id")
    assert compare.with_prediction(waiting, settings, spec).verdict == "not run"
    assert compare.with_prediction(mine, None, spec) is mine


def test_no_claim_counts_a_prediction():
    claims = [claim for claim in TABLE.claims if re.search("latency|faster", claim.text)]
    assert [claim.measured for claim in claims] == [(0, 0)] * 3
    assert all(claim.published[1] for claim in claims)
    assert {row[key].number for row in CELLS.values() for key in LATENCIES} == {None}


def test_every_format_says_that_it_is_predicted(tmp_path):
    paths = [path for path in write_report(TABLE, tmp_path) if path.suffix != ".png"]
    texts = {path.name: path.read_text(encoding="utf-8") for path in paths}
    heads = {head.key: head for head in lay_out(TABLE).main.heads}
    assert {heads[key].ours for key in LATENCIES} == {"predicted"}
    printed = {str(v) for row in ARTIFACT.numbers().values() for v in row.values()}
    values = {key: f"{cells['latency_2gpu'].predicted:.1f}" for key, cells in CELLS.items()}
    row, value = next((key, value) for key, value in values.items() if value not in printed)
    for name in ("table.md", "table.tex", "table.html"):
        for words in (f"pred. {value}", "pred. OOM", PREDICTION_MEANING.partition("'")[0]):
            assert words in texts[name], name
        unmarked = rf"(?<!pred\. ){re.escape(value)}(?!\d)"
        assert not re.search(unmarked, texts[name].partition("<figure")[0]), name
    assert "v-predicted word" in texts["table.html"]
    assert "predicted: Model OPT-30B" in texts["figure.svg"]
    rows = {(r["row"], r["column"]): r for r in csv.parse(texts["table.csv"])}
    stored = rows[row, "latency_2gpu"]
    assert (stored["measured"], stored["verdict"]) == ("", VERDICT)
    assert f"{float(stored['predicted']):.1f}" == value


@pytest.mark.parametrize("before", [{"predicted": "99.0"}, UNPREDICTED])
def test_a_published_prediction_is_made_again_by_todays_constants(before):
    """Its number and its stated error; the reason why it is not measured is the one that was written."""
    text = csv.render(TABLE).replace("median error", "median error of old")
    rows = [r for r in csv.parse(text) if r["row"] == "opt-30b/q3_g64" and r["column"] in LATENCIES]
    old = {"embedded": [row | before for row in rows]}
    records = {known.cell_id: known for known in RECORDS.values()}
    again = Published(ARTIFACT.name, old, records).tables({})["embedded"]
    for key in LATENCIES:
        cell, known = again.rows[0].cells[key], CELLS["opt-30b/q3_g64"][key]
        assert (cell.predicted, cell.verdict) == (known.predicted, VERDICT)
        reason = ARTIFACT.columns[key].not_run or NO_GPU
        assert cell.note.endswith(f"; not measured: {reason}")
        assert "of old" not in cell.note


def file_of(**changed):
    return {"name": "x/y"} | read_yaml(ROOT / "experiments/lut-gemm-v3/table4.yaml") | changed


@pytest.mark.parametrize(("predict", "message"), [
    ({"gpu": "A100", "engine": "lut-gemm"}, "unknown GPU type 'A100'"),
    ({"gpu": "A100-80GB", "engine": "lutgemm"}, "did you mean 'lut-gemm'?"),
    ({"gpu": "A100-80GB"}, "predict says no engine"),
    ({"gpu": "A100-80GB", "engine": "lut-gemm", "context": 4096}, "at most 2048 positions"),
    ({"gpu": "A100-80GB", "engine": "lut-gemm", "model": "opt-1t"}, "no shape 'opt-1t'"),
    (None, "predict says no gpu"),
])  # fmt: skip
def test_a_file_that_asks_for_what_cannot_be_predicted_is_refused(predict, message):
    with pytest.raises(ValidationError, match=re.escape(message)):
        Artifact(**file_of(predict=predict))


def test_entries_say_what_differs_in_their_rows():
    data = file_of()
    models, widths = data["axes"]
    models["opt-66b"]["predict"] = {"model": "opt-175b"}
    widths["fp16"]["predict"] = {"gpus": 8}
    widths["q4_g32"]["predict"] = False
    predictions = Artifact(**data).predictions()
    assert predictions["opt-66b/fp16", "latency_1gpu"] == prediction("opt-175b", 16, -1, gpus=8)
    assert predictions["opt-30b/q3_g64", "latency_4gpu"]["gpus"] == 4
    assert ("opt-30b/q4_g32", "latency_1gpu") not in predictions


def test_predicted_bars_are_hollow_and_hatched():
    hatched = [bar for axis in drawn(TABLE).axes for bar in axis.patches if bar.get_hatch()]
    assert hatched
    assert {to_hex(bar.get_facecolor()) for bar in hatched} == {PAPER}
