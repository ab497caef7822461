"""Tables of papers from the command line: published beside measured, planned, reported, predicted."""

import pytest
from tests.command_line import printed
from tests.experiment.run.table4 import CELLS, RENDERED, SOME, TABLE, cells_of

from lutlab import predict
from lutlab.evaluators.perplexity import Perplexity
from lutlab.experiment.store.store import Store


@pytest.fixture(scope="module")
def table4(tmp_path_factory):
    """Results folder in which it is measured, and what was printed."""
    results = tmp_path_factory.mktemp("table4") / "results"
    return results, printed(*TABLE, results=results)


def test_what_is_measured_is_not_measured_again(command, monkeypatch, table4):
    command.results, first = table4
    page = command.results / RENDERED / "table.md"

    def state():
        times = {p: p.stat().st_mtime_ns for p in Store(command.results).folder.iterdir()}
        return times, page.read_bytes()

    before = state()
    monkeypatch.setattr(Perplexity, "measure", None)  # measuring anything now would fail
    assert command(*TABLE).out == first
    assert state() == before


def test_table4_shows_published_beside_measured(table4):
    results, out = table4
    assert all(published in out for published in ("9.56", "14.61", "40.5"))
    rows = cells_of(results / RENDERED)
    measured = {(r["row"], r["column"]): r for r in rows}
    cell = measured["opt-30b/fp16", "wiki2"]
    assert float(cell["published"]) == 9.56
    assert (cell["verdict"], cell["model"]) == ("stand-in", "opt-embedded-s")
    assert cell["measured_on"].startswith("topics")
    assert float(measured["opt-30b/q3_g64", "wiki2"]["measured"]) > float(cell["measured"])
    latency = measured["opt-30b/fp16", "latency_1gpu"]
    assert (latency["verdict"], latency["measured"]) == ("predicted", "")
    assert float(latency["predicted"]) == predict.latency("opt-30b").ms_per_token
    assert all(r["verdict"] for r in rows)


def test_both_papers_tables_share_the_measured_cells(command, table4):
    command.results, _ = table4
    before = set(command.records())
    assert len(before) == CELLS
    assert "ICLR 2024" in command("+exp=lut-gemm-iclr2024/table6", *TABLE[1:]).out
    assert set(command.records()) == before


@pytest.mark.parametrize(("table", "row"), [
    pytest.param("lut-gemm-v3/table5", "opt-175b/q3", marks=pytest.mark.slow),
    ("lut-gemm-v3/fig4", "opt-6.7b/q3_g128/c32"),
    pytest.param("lut-gemm-v3/fig15", "opt-30b/q3/t8", marks=pytest.mark.slow),
])  # fmt: skip
def test_latencies_of_whole_models_run_on_stand_ins(command, table, row):
    command(f"+exp={table}", f"rows=[{row}]", "threads=1", "logger=none")
    (folder,) = command.results.glob(f"{table}/*")
    cells = cells_of(folder)
    assert {cell["verdict"] for cell in cells} <= {"measured only", "predicted"}
    assert any(cell["measured"] for cell in cells)
    assert all(cell["predicted"] for cell in cells if cell["verdict"] == "predicted")


def test_plan_runs_nothing(command, table4):
    planned = command("+exp=table4", "mode=plan", *SOME).out
    assert not command.results.exists()
    assert f"{CELLS} cells to measure" in planned
    assert f"opt-30b/fp16: {predict.latency('opt-30b').ms_per_token:.1f}, " in planned
    assert "ms/token on 1, 2, 4 GPU(s)" in planned
    command.results, _ = table4
    assert "0 cells to measure" in command("+exp=table4", "mode=plan", *SOME).out


def test_plan_of_models_that_are_not_here_needs_no_network(command):
    planned = " ".join(command("+exp=table4", "scale=paper", "mode=plan").out.split())
    for message in ("opt-66b", "60 cells to measure", "cannot reach the hub"):
        assert message in planned


def test_report_measures_nothing(command):
    assert "not measured yet" in command("+exp=table4", "mode=report", *TABLE[1:]).out
    assert command.records() == {}
