"""Predicted cells: of the paper's model, under their own verdict, in every format as what they are, and in no claim."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.colors import to_hex
from pydantic import ValidationError

from lutlab import predict
from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec
from lutlab.experiment.artifact.artifact import Artifact, load_artifact
from lutlab.experiment.artifact.columns import ColumnSpec
from lutlab.experiment.artifact.outcome import Cell, ResultTable
from lutlab.experiment.artifact.predicted import VERDICT
from lutlab.experiment.artifact.yaml_file import read_yaml
from lutlab.experiment.plan.plan import PlannedCell, PlannedRow
from lutlab.experiment.report import compare, csv, figure, published, write_report
from lutlab.experiment.report.layout import PREDICTION_MEANING, lay_out
from lutlab.experiment.report.published import Published
from lutlab.experiment.report.style import PAPER, STYLE
from lutlab.experiment.store.record import Record

ARTIFACT = load_artifact("table4")
LATENCIES = ("latency_1gpu", "latency_2gpu", "latency_4gpu")
NO_GPU = "no CUDA device"


def table() -> ResultTable:
    """Two models at three widths on stand-ins, nothing measured but sizes; latencies cannot be."""
    rows = []
    for row in ARTIFACT.rows("embedded"):
        if not row.key.endswith(("fp16", "q3_g32", "q3_g64")):
            continue
        record = Record(f"{row.key} bits", "done", {}, {"evaluator": "model_size"}, {"bits_per_weight": 3.3}, 1, (), {},
                        {"git_commit": "abc", "measured_at": "2026-01-01"}, 0.0)  # fmt: skip
        cells = {}
        for key, spec in ARTIFACT.columns.items():
            of = EvalSpec(spec.evaluator)
            if key == "bits":
                cells[key] = PlannedCell(of, record.cell_id, record)
            elif key in LATENCIES:
                cells[key] = PlannedCell(of, None, missing=NO_GPU)
            else:
                cells[key] = PlannedCell(of, f"{row.key} {key}")
        spec = ModelRun(ModelSpec("stand-in", "hub", "x"), "rtn", 3, 64)
        rows.append(PlannedRow(row.key, row.labels, spec, ARTIFACT.columns, cells))
    return compare.tabulate(ARTIFACT, rows, "embedded")


TABLE = table()


def prediction(model: str, q: int, g: int, gpus: int) -> dict:
    """Arguments of predict.latency on GPUs of the paper."""
    of = {"gpu": "A100-80GB", "engine": "lut-gemm", "context": None}
    return {"shape": model, "q": q, "g": g, "gpus": gpus} | of


CELLS = {row.key: row.cells for row in TABLE.rows}


def test_a_cell_that_cannot_be_measured_is_predicted_of_the_papers_model() -> None:
    cell = CELLS["opt-30b/q3_g64"]["latency_2gpu"]
    of = prediction("opt-30b", 3, 64, gpus=2)
    assert (cell.verdict, cell.measured) == (VERDICT, None)
    assert cell.predicted == predict.latency(**of).ms_per_token == pytest.approx(12.6, rel=0.25)
    assert NO_GPU in cell.note
    assert re.search(r"median error [\d.]+ %, worst \d+ %", cell.note)
    assert CELLS["opt-66b/fp16"]["latency_1gpu"].predicted == "OOM"
    assert CELLS["opt-66b/fp16"]["latency_2gpu"].predicted != "OOM"
    assert CELLS["opt-30b/fp16"]["wiki2"].verdict == "not run"
    assert CELLS["opt-30b/fp16"]["wiki2"].predicted is None


def test_a_measured_cell_stays_measured_and_keeps_its_prediction() -> None:
    of, spec = prediction("opt-30b", 16, -1, gpus=1), ColumnSpec(
        title="", unit="ms/token", evaluator="latency", metric="latency_1gpu_ms"
    )  # fmt: skip
    mine = Cell("latency_1gpu", 40.5, 12.0, "stand-in", "opt-embedded-s", "id")
    found = compare.with_prediction(mine, of, spec)
    assert (found.measured, found.verdict, found.note) == (12.0, "stand-in", "opt-embedded-s")
    assert found.predicted
    waiting = Cell("latency_1gpu", 40.5, None, "not run", compare.NOT_YET, "id")
    assert compare.with_prediction(waiting, of, spec).verdict == "not run"
    assert compare.with_prediction(mine, None, spec) is mine


def test_no_claim_counts_a_prediction() -> None:
    of_latency = [
        claim for claim in TABLE.claims if "latency" in claim.text or "faster" in claim.text
    ]
    assert len(of_latency) == 3
    assert all(claim.measured == (0, 0) for claim in of_latency)
    assert all(claim.published[1] for claim in of_latency)
    assert all(
        cell.number is None
        for row in CELLS.values()
        for cell in row.values()
        if cell.column in LATENCIES
    )


def test_every_format_says_that_it_is_predicted(tmp_path: Path) -> None:
    paths = {path.name: path for path in write_report(TABLE, tmp_path)}
    layout = lay_out(TABLE)
    heads = {head.key: head for head in layout.main.heads}
    assert {heads[key].ours for key in LATENCIES} == {"predicted"}
    printed = {str(v) for row in ARTIFACT.numbers().values() for v in row.values()}
    row = next(k for k in CELLS if f"{CELLS[k]['latency_2gpu'].predicted:.1f}" not in printed)
    value = f"{CELLS[row]['latency_2gpu'].predicted:.1f}"
    for name in ("table.md", "table.tex", "table.html"):
        text = paths[name].read_text(encoding="utf-8")
        assert f"pred. {value}" in text, name
        assert "pred. OOM" in text, name
        assert PREDICTION_MEANING.partition("'")[0] in text, name
        assert not re.search(
            rf"(?<!pred\. ){re.escape(value)}(?!\d)", text.partition("<figure")[0]
        ), name
    assert "v-predicted word" in paths["table.html"].read_text(encoding="utf-8")
    assert "predicted: Model OPT-30B" in paths["figure.svg"].read_text(encoding="utf-8")
    rows = csv.parse(paths["table.csv"].read_text(encoding="utf-8"))
    found = next(r for r in rows if (r["row"], r["column"]) == (row, "latency_2gpu"))
    assert found["measured"] == ""
    assert (f"{float(found['predicted']):.1f}", found["verdict"]) == (value, VERDICT)


def test_a_published_prediction_is_made_again_by_todays_constants() -> None:
    """Its number and its stated error; the reason why it is not measured is the one that was written."""
    records = {f"{row.key} bits": None for row in TABLE.rows}
    text = csv.render(TABLE).replace("median error", "median error of old")
    rows = [r for r in csv.parse(text) if r["row"] == "opt-30b/q3_g64" and r["column"] in LATENCIES]
    old = [row | {"predicted": "99.0"} for row in rows]
    again = Published(ARTIFACT.name, {"embedded": old}, records).tables({})["embedded"]
    for key in LATENCIES:
        cell, known = again.rows[0].cells[key], CELLS["opt-30b/q3_g64"][key]
        assert cell.predicted == known.predicted
        assert cell.verdict == VERDICT
        reason = ARTIFACT.columns[key].not_run or NO_GPU
        assert cell.note.endswith(f"; not measured: {reason}")
        assert "of old" not in cell.note


def test_a_table_published_before_predictions_has_them() -> None:
    folder = (
        Path(published.__file__).parents[4] / "results/published/amd-epyc-2cores/lut-gemm-v3/table4"
    )
    found = published.read(folder).tables({})["embedded"]
    verdicts = {row.cells[key].verdict for row in found.rows for key in LATENCIES}
    assert verdicts == {VERDICT}


def file_of(**changed: object) -> dict[str, object]:
    path = (
        Path(load_artifact.__code__.co_filename).parents[4] / "experiments/lut-gemm-v3/table4.yaml"
    )
    return {"name": "x/y"} | read_yaml(path) | changed


@pytest.mark.parametrize(
    ("predict", "said"),
    [
        ({"gpu": "A100", "engine": "lut-gemm"}, "unknown GPU type 'A100'"),
        ({"gpu": "A100-80GB", "engine": "lutgemm"}, "did you mean 'lut-gemm'?"),
        ({"gpu": "A100-80GB"}, "predict says no engine"),
        ({"gpu": "A100-80GB", "engine": "lut-gemm", "context": 4096}, "at most 2048 positions"),
        ({"gpu": "A100-80GB", "engine": "lut-gemm", "model": "opt-1t"}, "no shape 'opt-1t'"),
        (None, "predict says no gpu"),
    ],
)
def test_a_file_that_asks_for_what_cannot_be_predicted_is_refused(
    predict: object, said: str
) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        Artifact(**file_of(predict=predict))


def test_entries_say_what_differs_in_their_rows() -> None:
    data = file_of()
    models, widths = data["axes"]
    models["opt-66b"]["predict"] = {"model": "opt-175b"}
    widths["fp16"]["predict"] = {"gpus": 8}
    widths["q4_g32"]["predict"] = False
    found = Artifact(**data).predictions()
    assert found["opt-66b/fp16", "latency_1gpu"] == prediction("opt-175b", 16, -1, gpus=8)
    assert found["opt-30b/q3_g64", "latency_4gpu"]["gpus"] == 4
    assert ("opt-30b/q4_g32", "latency_1gpu") not in found


def test_tables_without_predictions_are_as_they_were() -> None:
    plain = dataclasses.replace(
        TABLE, rows=tuple(dataclasses.replace(row, cells={
            key: dataclasses.replace(cell, predicted=None, verdict="not run") if key in LATENCIES else cell
            for key, cell in row.cells.items()
        }) for row in TABLE.rows)
    )  # fmt: skip
    layout = lay_out(plain)
    assert not set(LATENCIES) & {head.key for head in layout.main.heads}
    assert PREDICTION_MEANING not in layout.legend


def test_predicted_bars_are_hollow_and_hatched() -> None:
    with mpl.rc_context(STYLE):
        drawn = figure.draw(TABLE)
    hatched = [bar for axis in drawn.axes for bar in axis.patches if bar.get_hatch()]
    assert hatched
    assert {to_hex(bar.get_facecolor()) for bar in hatched} == {PAPER}
