"""Tracking offline, read back from disk: no account, no network, nothing on the terminal, no loss when it fails."""

from __future__ import annotations

import dataclasses
import logging
import socket
from pathlib import Path

import pytest
from tests.experiment.report.example import example_table
from tests.wandb_offline import OfflineRun, read_runs, readable

from lutlab.errors import LutlabError
from lutlab.experiment.run.tracking import NullTracker, open_tracker, run_name
from lutlab.experiment.store.record import Record
from lutlab.specs import ModelRun, ModelSpec

CONTEXT = {
    "artifact": "lut-gemm-v3/table4",
    "paper": "lut-gemm-v3",
    "scale": "embedded",
    "git_sha": "9fa87fa",
    "group": "lut-gemm-v3/table4-1a2b3c4d",
    "protocols": ["pydocs-library", "pydocs-howto"],
}


def spec(q: int, g: int, *options: tuple[str, object]) -> ModelRun:
    model = ModelSpec("opt-embedded-s", "embedded", "opt-embedded-s")
    return ModelRun(model, "rtn" if q < 16 else "fp16", q, g, options)


def record(status: str, values: dict[str, float], reason: str = "") -> Record:
    return Record(f"id-{status}", status, {}, {}, values, 7, (), {}, {}, 1.5, reason)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: object) -> None:
        local = self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost")
        assert local, f"tracking offline connects to {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)
    monkeypatch.delenv("WANDB_MODE", raising=False)


@pytest.fixture(scope="module")
def wandb_version() -> str:
    wandb = pytest.importorskip("wandb")
    if not readable(wandb.__version__):
        pytest.skip(f"the offline files of wandb {wandb.__version__} are not known to the reader")
    return wandb.__version__


def track(folder: Path) -> dict[str, OfflineRun]:
    tracker = open_tracker("offline", folder, "lutlab")
    done = {
        "wiki2": record("done", {"ppl": 41.07, "nll": 3.715}),
        "bits": record("done", {"bits": 16}),
    }
    failed = {
        "wiki2": record("failed", {}, "RuntimeError: no"),
        "ptb": record("done", {"ppl": 9.5}),
    }
    tracker.log_row(spec(16, -1), done, CONTEXT)
    tracker.log_row(
        spec(4, 32, ("variant", "awq")), {**failed, "lambada": None}, CONTEXT | {"mu": 8}
    )
    tracker.log_table(example_table(), CONTEXT["group"])
    return {run.name: run for run in read_runs(folder)}


def test_rows_and_table_are_read_back(
    tmp_path: Path, no_network: None, wandb_version: str, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = track(tmp_path / "results" / "wandb")
    assert set(runs) == {
        "opt-embedded-s/fp16/q16",
        "opt-embedded-s/rtn/q4g32",
        "lut-gemm-v3/table4/embedded",
    }
    assert {run.group for run in runs.values()} == {CONTEXT["group"]}
    assert {run.project for run in runs.values()} == {"lutlab"}
    assert {run.exit_code for run in runs.values()} == {0}
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""
    assert sorted(p.name for p in tmp_path.rglob("wandb")) == ["wandb"], (
        "files lie in the folder itself"
    )

    fp16, rtn = runs["opt-embedded-s/fp16/q16"], runs["opt-embedded-s/rtn/q4g32"]
    assert fp16.job_type == rtn.job_type == "eval"
    assert set(rtn.tags) == {
        "lut-gemm-v3",
        "lut-gemm-v3/table4",
        "embedded",
        "pydocs-library",
        "pydocs-howto",
    }
    assert fp16.config == {
        "q": 16, "g": -1, "method": "fp16", "model": "opt-embedded-s", "device": "cpu", "dtype": "float32",
        "seed": 0, "scale": "embedded", "artifact": "lut-gemm-v3/table4", "git_sha": "9fa87fa",
    }  # fmt: skip
    assert (rtn.config["mu"], rtn.config["method.variant"]) == (8, "awq")
    assert fp16.summary["wiki2.ppl"] == 41.07
    assert fp16.summary["bits.bits"] == 16
    assert "wiki2\\.ppl" in fp16.metrics
    assert rtn.summary["wiki2.status"] == "failed"
    assert rtn.summary["wiki2.reason"] == "RuntimeError: no"
    assert rtn.summary["ptb.ppl"] == 9.5
    assert not any(key.startswith("lambada") for key in rtn.summary)
    check_aggregate(runs["lut-gemm-v3/table4/embedded"])


def check_aggregate(run: OfflineRun) -> None:
    table = example_table()
    assert run.job_type == "aggregate"
    assert run.config["command"] == table.command
    assert (run.summary["claims.hold"], run.summary["claims.decidable"]) == (11, 12)
    (stored,) = run.tables
    rows = [dict(zip(stored["columns"], row, strict=True)) for row in stored["data"]]
    assert len(rows) == len(table.rows) * len(table.columns)
    cells = {(row["row"], row["column"]): row for row in rows}
    for row in table.rows:
        for key, cell in row.cells.items():
            assert cells[row.key, key]["measured"] == cell.measured
            assert cells[row.key, key]["verdict"] == cell.verdict
    assert cells["opt-66b-q16-g–", "gpu1"]["published"] == "OOM"


def test_a_crash_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wandb = pytest.importorskip("wandb")

    def crash(**_: object) -> None:
        raise OSError("disk on fire")

    monkeypatch.setattr(wandb, "init", crash)
    with caplog.at_level(logging.WARNING):
        open_tracker("offline", tmp_path, "lutlab").log_row(spec(4, 32), {}, CONTEXT)
    assert "opt-embedded-s/rtn/q4g32" in caplog.text
    assert "OSError: disk on fire" in caplog.text
    assert "kept in the records" in caplog.text


def test_a_folder_that_cannot_be_made_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    open_tracker("offline", tmp_path / "file" / "wandb", "lutlab").log_table(example_table())
    assert "did not take 'lut-gemm-v3/table4/embedded'" in caplog.text


def test_none_writes_nothing(tmp_path: Path) -> None:
    tracker = open_tracker("none", tmp_path, "lutlab")
    tracker.log_row(spec(4, 32), {"wiki2": record("done", {"ppl": 1.0})}, CONTEXT)
    tracker.log_table(example_table())
    assert isinstance(tracker, NullTracker)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_logger_is_explained(tmp_path: Path) -> None:
    with pytest.raises(LutlabError, match="did you mean 'offline'"):
        open_tracker("ofline", tmp_path, "lutlab")


def test_names_leave_out_whole_rows() -> None:
    assert run_name(spec(4, -1)) == "opt-embedded-s/rtn/q4"
    searched = dataclasses.replace(spec(4, -1), budget=3.5)
    assert run_name(searched) == "opt-embedded-s/rtn/budget3.5"
