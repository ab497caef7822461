"""Tables of papers from the command line: published beside measured, planned, reported, predicted."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.command_line import CommandLine, printed
from tests.experiment.run.table4 import CELLS, RENDERED, SOME, TABLE, table_csv

from lutlab import predict
from lutlab.evaluators.perplexity import Perplexity
from lutlab.experiment.store.store import Store

MODEL = "opt-embedded-s"


@pytest.fixture(scope="module")
def table4(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Results folder in which it is measured, and what was printed."""
    results = tmp_path_factory.mktemp("table4") / "results"
    return results, printed(*TABLE, results=results)


def test_what_is_measured_is_not_measured_again(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, table4: tuple[Path, str]
) -> None:
    command.results, first = table4
    files = {p: p.stat().st_mtime_ns for p in Store(command.results).folder.iterdir()}
    report = (command.results / RENDERED / "table.md").read_bytes()
    monkeypatch.setattr(Perplexity, "measure", None)  # measuring anything now would fail
    second = command(*TABLE)
    assert second.code == 0, second.err
    assert {p: p.stat().st_mtime_ns for p in Store(command.results).folder.iterdir()} == files
    assert (command.results / RENDERED / "table.md").read_bytes() == report
    assert second.out == first


def test_table4_shows_published_beside_measured(table4: tuple[Path, str]) -> None:
    results, out = table4
    for published in ("9.56", "14.61", "40.5"):
        assert published in out
    rows = table_csv(results)
    measured = {(r["row"], r["column"]): r for r in rows}
    cell = measured["opt-30b/fp16", "wiki2"]
    assert float(cell["published"]) == 9.56
    assert cell["verdict"] == "stand-in"
    assert cell["model"] == MODEL
    assert cell["measured_on"].startswith("topics")
    assert float(measured["opt-30b/q3_g64", "wiki2"]["measured"]) > float(cell["measured"])
    latency = measured["opt-30b/fp16", "latency_1gpu"]
    assert (latency["verdict"], latency["measured"]) == ("predicted", "")
    assert float(latency["predicted"]) == predict.latency("opt-30b").ms_per_token
    assert all(r["verdict"] for r in rows)


def test_both_papers_tables_share_the_measured_cells(
    command: CommandLine, table4: tuple[Path, str]
) -> None:
    command.results, _ = table4
    before = set(command.records())
    assert len(before) == CELLS
    outcome = command("+exp=lut-gemm-iclr2024/table6", *TABLE[1:])
    assert outcome.code == 0
    assert set(command.records()) == before
    assert "ICLR 2024" in outcome.out


@pytest.mark.parametrize(
    ("table", "row"),
    [
        pytest.param("lut-gemm-v3/table5", "opt-175b/q3", marks=pytest.mark.slow),
        ("lut-gemm-v3/fig4", "opt-6.7b/q3_g128/c32"),
        pytest.param("lut-gemm-v3/fig15", "opt-30b/q3/t8", marks=pytest.mark.slow),
    ],
)
def test_latencies_of_whole_models_run_on_stand_ins(
    command: CommandLine, table: str, row: str
) -> None:
    outcome = command(f"+exp={table}", f"rows=[{row}]", "threads=1", "logger=none")
    assert outcome.code == 0, outcome.err
    (path,) = command.results.glob(f"{table}/*/table.csv")
    with path.open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert {cell["verdict"] for cell in cells} <= {"measured only", "predicted"}
    assert any(cell["measured"] for cell in cells)
    assert all(cell["predicted"] for cell in cells if cell["verdict"] == "predicted")


def test_plan_runs_nothing(command: CommandLine, table4: tuple[Path, str]) -> None:
    outcome = command("+exp=table4", "mode=plan", *SOME)
    assert outcome.code == 0, outcome.err
    assert not command.results.exists()
    assert f"{CELLS} cells to measure" in outcome.out
    assert f"opt-30b/fp16: {predict.latency('opt-30b').ms_per_token:.1f}, " in outcome.out
    assert "ms/token on 1, 2, 4 GPU(s)" in outcome.out
    command.results, _ = table4
    assert "0 cells to measure" in command("+exp=table4", "mode=plan", *SOME).out


def test_plan_of_models_that_are_not_here_needs_no_network(command: CommandLine) -> None:
    outcome = command("+exp=table4", "scale=paper", "mode=plan")
    assert outcome.code == 0, outcome.err
    assert "opt-66b" in outcome.out
    assert "60 cells to measure" in outcome.out
    assert "cannot reach the hub" in " ".join(outcome.out.split())


def test_report_measures_nothing(command: CommandLine) -> None:
    outcome = command("+exp=table4", "mode=report", *TABLE[1:])
    assert outcome.code == 0
    assert command.records() == {}
    assert "not measured yet" in outcome.out
