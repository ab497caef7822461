"""The whole way: plan, measure, store, resume, fail, report, through several launchers."""

from __future__ import annotations

import csv
import importlib.util
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import wandb_offline
from tests.command_line import QUICK, CommandLine, records, start
from tests.experiment.store.test_store import RECORD

from lutlab import predict
from lutlab.evaluators.perplexity import Perplexity
from lutlab.experiment.store.lines import write_lines
from lutlab.experiment.store.store import Store
from lutlab.models.load import EMBEDDED

MODEL = "opt-embedded-s"
# two rows on the first windows of each text: a table in seconds
SOME = ["rows=[opt-30b/fp16,opt-30b/q3_g64]", "data.limit=16"]
TABLE = ["+exp=table4", *SOME, "logger=none"]
RENDERED = "lut-gemm-v3/table4/embedded-first16"


def table_csv(results: Path) -> list[dict[str, str]]:
    """Rows of the rendered Table 4."""
    with (results / RENDERED / "table.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_sweep_measures_the_product_and_reports_it(command: CommandLine) -> None:
    outcome = command(*QUICK, "method=rtn", "q=2,4", "g=64")
    assert outcome.code == 0, outcome.err
    found = command.records().values()
    assert {(r["run"]["q"], r["evaluation"]["evaluator"]) for r in found} == {
        (2, "ppl"), (2, "weight_error"), (4, "ppl"), (4, "weight_error"),
    }  # fmt: skip
    ppl = {r["run"]["q"]: r["values"]["ppl"] for r in found if "ppl" in r["values"]}
    assert ppl[4] < ppl[2]
    for value in ppl.values():
        assert f"{value:.2f}" in outcome.out
    kernels = [r["facts"].get("kernel") for r in found if "ppl" in r["values"]]
    assert all(re.search(r", \w+, \d+ threads", name) for (name,) in kernels)
    assert not any("kernel" in r["facts"] for r in found if "ppl" not in r["values"])


def test_a_sweep_stands_beside_full_precision_and_is_never_written_over(
    command: CommandLine,
) -> None:
    line = ["method=bcq", "method.bcq.offset=true,false", "q=3", "g=32", *QUICK[:2], "data.limit=2"]
    assert command(*line, "name=mine").code == 0
    folder = command.results / "sweep" / "mine"
    with (folder / "table.csv").open(newline="") as file:
        cells = {(r["row"], r["metric"]): r for r in csv.DictReader(file)}
    rows = [f"{MODEL}/bcq/3/32/{offset}" for offset in ("true", "false")]
    full = cells[f"{MODEL}/none/16/-/-", "ppl"]
    for row in rows:
        cell = cells[row, "ppl"]
        assert cell["baseline"] == full["measured"] != cell["measured"]
        assert float(cells[row, "bits_per_weight"]["measured"]) < 6
    said = (folder / "table.md").read_text()
    difference = float(cells[rows[0], "ppl"]["measured"]) - float(full["measured"])
    assert re.search(rf"\(\+{difference:.2f} ± [\d.]+\)", said)
    assert "method.bcq.offset=true,false q=3 g=32" in said  # the command that gives this table

    one = command("method=rtn,bcq", "method.bcq.offset=true", *line[2:], "mode=report", "name=one")
    assert one.code == 0, one.err  # one value of one method
    assert "method=rtn,bcq method.bcq.offset=true q=3" in " ".join(one.out.split())

    other = command(*line[:-1], "data.limit=3", "name=mine")
    assert other.code == 2
    assert "name=mine is that of another sweep" in other.err
    before = (folder / "table.csv").read_bytes()
    assert command(*line, "name=mine").code == 0  # the same one again
    assert (folder / "table.csv").read_bytes() == before
    assert command(*line[:-1], "data.limit=3").code == 0
    assert len(list((command.results / "sweep").iterdir())) == 3


def test_a_record_tells_where_its_number_comes_from(command: CommandLine) -> None:
    command(*QUICK, "method=none", "q=4")
    (record,) = [r for r in command.records().values() if "ppl" in r["values"]]
    # method=none ignores q and g, so that rows of full precision are one cell.
    assert record["run"]["q"] == 16
    assert record["evaluation"]["text"]["protocol"] == "passages-joined"
    assert len(record["samples"]) == record["n"] > 10
    assert {"token_sha256", "text_sha256", "seqlen", "bos", "loss_dtype"} <= set(record["facts"])
    assert record["facts"]["standard_error"].keys() == record["values"].keys()
    assert {
        "git_commit",
        "git_dirty",
        "cpu",
        "threads",
        "versions",
        "identity",
        "measured_at",
    } <= set(record["provenance"])


def test_what_is_measured_is_not_measured_again(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = command(*TABLE)
    assert first.code == 0, first.err
    files = {p: p.stat().st_mtime_ns for p in Store(command.results).folder.iterdir()}
    report = (command.results / RENDERED / "table.md").read_bytes()
    monkeypatch.setattr(Perplexity, "measure", None)  # measuring anything now would fail
    second = command(*TABLE)
    assert second.code == 0, second.err
    assert {p: p.stat().st_mtime_ns for p in Store(command.results).folder.iterdir()} == files
    assert (command.results / RENDERED / "table.md").read_bytes() == report
    assert second.out == first.out


def test_table4_shows_published_beside_measured(command: CommandLine) -> None:
    outcome = command(*TABLE)
    assert outcome.code == 0, outcome.err
    for published in ("9.56", "14.61", "40.5"):
        assert published in outcome.out
    rows = table_csv(command.results)
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


def test_both_papers_tables_share_the_measured_cells(command: CommandLine) -> None:
    assert command(*TABLE).code == 0
    before = set(command.records())
    outcome = command("+exp=lut-gemm-iclr2024/table6", *TABLE[1:])
    assert outcome.code == 0
    assert set(command.records()) == before
    assert "ICLR 2024" in outcome.out


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("lut-gemm-v3/table5", "opt-175b/q3"),
        ("lut-gemm-v3/fig4", "opt-6.7b/q3_g128/c32"),
        ("lut-gemm-v3/fig15", "opt-30b/q3/t8"),
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


def test_plan_runs_nothing(command: CommandLine) -> None:
    outcome = command("+exp=table4", "mode=plan", *SOME)
    assert outcome.code == 0, outcome.err
    assert not command.results.exists()
    assert "12 cells to measure" in outcome.out
    assert f"opt-30b/fp16: {predict.latency('opt-30b').ms_per_token:.1f}, " in outcome.out
    assert "ms/token on 1, 2, 4 GPU(s)" in outcome.out
    command(*TABLE)
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


def test_embedded_scale_touches_no_network(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: socket.socket, address: object) -> None:
        raise AssertionError(f"connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    outcome = command(*QUICK)
    assert outcome.code == 0, outcome.err
    assert {r["status"] for r in command.records().values()} == {"done"}


def test_a_row_and_its_table_are_tracked_offline_by_default(command: CommandLine) -> None:
    assert command(*QUICK, "baseline=false").code == 0
    outcome = command(QUICK[0], "baseline=false")  # measured before, without tracking
    assert outcome.code == 0, outcome.err
    runs = wandb_offline.read_runs(command.results / "wandb")
    assert sorted(run.job_type for run in runs) == ["row", "table"]
    assert "wandb" not in outcome.out.replace(str(command.results), "")


def test_a_failed_row_is_recorded_and_the_others_go_on(
    command: CommandLine, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(EMBEDDED / MODEL, broken)
    weights = load_file(broken / "model.safetensors")
    weights["model.decoder.layers.0.fc1.weight"][0, 0] = torch.nan
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    outcome = command(*QUICK, "model=folder", f"model.id={broken},{EMBEDDED / MODEL}")
    assert outcome.code == 1
    assert "failed" in outcome.err
    states = sorted((r["status"], r["run"]["model"]["id"]) for r in command.records().values())
    assert states == [("done", str(EMBEDDED / MODEL))] * 2 + [("failed", str(broken))] * 2
    (reason, *_) = [r["reason"] for r in command.records().values() if r["status"] == "failed"]
    assert "NaN" in reason
    assert "fc1" in reason

    # Mended it is another cell, measured now.
    shutil.copy(EMBEDDED / MODEL / "model.safetensors", broken)
    assert command(*QUICK, "model=folder", f"model.id={broken}").code == 0
    named = {r["run"]["model"]["name"] for r in command.records().values()}
    assert named == {broken.name, MODEL}


def test_a_row_with_a_damaged_config_fails_alone(command: CommandLine, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(EMBEDDED / MODEL, broken)
    line = ["model=folder", f"model.id={broken},{EMBEDDED / MODEL}", "evaluate=[weight_error]"]
    for text in (
        "",
        "[]",
        '{"model_type": "opt", "vocab_size": "x", "max_position_embeddings": 8}',
    ):
        (broken / "config.json").write_text(text)
        outcome = command(*line, *QUICK[1:])
        assert outcome.code == 1, outcome.err
        assert "Traceback" not in outcome.err
        own = {r["run"]["model"]["id"]: r for r in command.records().values()}
        assert own[str(EMBEDDED / MODEL)]["status"] == "done"
        assert own[str(broken)]["status"] == "failed"
        assert "config.json" in own[str(broken)]["reason"]


def test_out_of_memory_is_recorded_and_tried_again(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Perplexity, "measure", exhausted)
        outcome = command(*QUICK)
    assert outcome.code == 1
    assert "OOM" in outcome.out
    assert sorted(r["status"] for r in command.records().values()) == ["done", "oom"]
    assert command(*QUICK).code == 0
    assert {r["status"] for r in command.records().values()} == {"done"}


@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_signal_keeps_what_is_measured(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, sent: int, code: int, said: str
) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(sent)

    arguments = ["evaluate=[weight_error,ppl:lambada-joined]", *QUICK[1:]]
    with monkeypatch.context() as patch:
        patch.setattr(Perplexity, "measure", interrupted)
        outcome = command(*arguments)
    assert outcome.code == code
    assert said in outcome.err
    assert "Traceback" not in outcome.err
    assert len(command.records()) == 1
    assert command(*arguments).code == 0
    assert len(command.records()) == 2


def test_a_full_disk_ends_the_run_and_keeps_the_rest(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import os

    from lutlab import atomic

    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        outcome = command(*QUICK)
    assert outcome.code == 2
    assert "the disk is full" in outcome.err
    assert "Traceback" not in outcome.err
    assert len(command.records()) == 1
    assert command(*QUICK).code == 0


def test_a_damaged_record_is_named_and_measured_again(command: CommandLine) -> None:
    command(*QUICK)
    before = {cell: record["values"] for cell, record in command.records().items()}
    victim = next(Store(command.results).folder.iterdir())
    victim.write_text(victim.read_text()[:100])
    outcome = command(*QUICK)
    assert outcome.code == 0
    assert f"{victim.name} is damaged" in outcome.err
    victim.with_name(f"{victim.name}.damaged").unlink()
    assert {cell: record["values"] for cell, record in command.records().items()} == before


def test_a_run_never_writes_into_what_is_published(command: CommandLine) -> None:
    published = write_lines(command.results / "paper/table1/records.jsonl", [RECORD])
    outcome = command(*QUICK)
    assert outcome.code == 2
    assert "holds published artifacts" in outcome.err
    assert [p for p in command.results.rglob("*") if p.is_file()] == [published]


@pytest.mark.slow
def test_a_killed_run_resumes_and_gives_the_same_table(
    command: CommandLine, tmp_path: Path
) -> None:
    folder = tmp_path / "killed" / "results"
    folder.parent.mkdir()
    process = start(*TABLE, results=folder)
    deadline = time.monotonic() + 120
    while not (survivors := records(folder)) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    survivors = records(folder)
    assert 0 < len(survivors) < 12

    again = start(*TABLE, results=folder)
    _, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert survivors.items() <= records(folder).items()  # not one was measured again
    command(*TABLE)
    kept = [(r["row"], r["column"], r["measured"], r["verdict"]) for r in table_csv(folder)]
    whole = [
        (r["row"], r["column"], r["measured"], r["verdict"]) for r in table_csv(command.results)
    ]
    assert kept == whole


LAUNCHERS = {
    "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "ray": ["hydra/launcher=ray", "+hydra.launcher.ray.init.num_cpus=2"],
    "submitit_local": ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=10"],
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_workers_of_every_launcher_share_one_store(
    command: CommandLine, tmp_path: Path, launcher: str
) -> None:
    plugin = launcher.removesuffix("_local")
    if importlib.util.find_spec(f"hydra_plugins.hydra_{plugin}_launcher") is None:
        pytest.skip(f"pip install lutlab[{plugin}] to test this launcher")
    sweep = [*QUICK, "method=rtn", "q=3,4", "g=64"]
    folder = tmp_path / launcher / "results"
    folder.parent.mkdir()
    process = start(*sweep, *LAUNCHERS[launcher], results=folder)
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    command(*sweep)
    ours, theirs = command.records(), records(folder)
    assert set(ours) == set(theirs)
    for cell, record in ours.items():
        assert theirs[cell]["values"] == pytest.approx(record["values"], rel=1e-5)


def test_a_folder_without_one_text_leaves_that_column_unmeasured_and_says_so(
    command: CommandLine, tmp_path: Path
) -> None:
    ptb = tmp_path / "texts/ptb/ptb.valid.txt"
    ptb.parent.mkdir(parents=True)
    ptb.write_text("a few words of a sentence\n" * 500)
    wanted = ["method=none", "evaluate=[ppl:wikitext2,ppl:ptb]", *QUICK[1:]]
    outcome = command(*wanted, f"data.root={tmp_path / 'texts'}")
    assert outcome.code == 0, outcome.err
    (record,) = command.records().values()
    assert record["evaluation"]["text"]["protocol"] == "ptb"
    assert record["facts"]["text_differs"] == "500 rows, and ptb (validation) has 3370"
    printed = " ".join(outcome.out.split())
    assert "no text 'wikitext2' under data.root=" in printed
    assert "another text than the published one: 500 rows, and ptb (validation) has" in printed

    (tmp_path / "empty").mkdir()
    outcome = command(*wanted, f"data.root={tmp_path / 'empty'}")
    assert outcome.code == 2
    assert "docs/data-layout.md" in outcome.err
