"""Rows that fail, signals, a full disk, damaged files: what is measured is kept, and the next run goes on."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.command_line import QUICK, CommandLine
from tests.experiment.store.test_store import RECORD

from lutlab.base.kept import files
from lutlab.evaluators.perplexity import Perplexity
from lutlab.experiment.store.record import write_lines
from lutlab.experiment.store.store import Store
from lutlab.models.load import EMBEDDED

MODEL = "opt-embedded-s"
# Two windows: none of these numbers is looked at.
SHORT = [*QUICK, "data.limit=2"]


def test_a_failed_row_is_recorded_and_the_others_go_on(
    command: CommandLine, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(EMBEDDED / MODEL, broken)
    weights = load_file(broken / "model.safetensors")
    weights["model.decoder.layers.0.fc1.weight"][0, 0] = torch.nan
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    outcome = command(*SHORT, "model=folder", f"model.id={broken},{EMBEDDED / MODEL}")
    assert outcome.code == 1
    assert "failed" in outcome.err
    states = sorted((r["status"], r["run"]["model"]["id"]) for r in command.records().values())
    assert states == [("done", str(EMBEDDED / MODEL))] * 2 + [("failed", str(broken))] * 2
    (reason, *_) = [r["reason"] for r in command.records().values() if r["status"] == "failed"]
    assert "NaN" in reason
    assert "fc1" in reason

    # Mended it is another cell, measured now.
    shutil.copy(EMBEDDED / MODEL / "model.safetensors", broken)
    assert command(*SHORT, "model=folder", f"model.id={broken}").code == 0
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
        outcome = command(*line, *SHORT[1:])
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
        outcome = command(*SHORT)
    assert outcome.code == 1
    assert "OOM" in outcome.out
    assert sorted(r["status"] for r in command.records().values()) == ["done", "oom"]
    assert command(*SHORT).code == 0
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

    arguments = ["evaluate=[weight_error,ppl:lambada-joined]", *SHORT[1:]]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored behind a shell's &
    with monkeypatch.context() as patch:
        patch.setattr(Perplexity, "measure", interrupted)
        outcome = command(*arguments)
    signal.signal(signal.SIGINT, before)
    assert outcome.code == code
    assert said in outcome.err
    assert "Traceback" not in outcome.err
    assert len(command.records()) == 1
    assert "weight error" in outcome.out, "what is measured is printed as a table"
    assert "go on: " in outcome.out
    assert [*command.results.glob("sweep/*/table.csv")]
    assert command(*arguments).code == 0
    assert len(command.records()) == 2


def test_a_full_disk_ends_the_run_and_keeps_the_rest(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        outcome = command(*SHORT)
    assert outcome.code == 2
    assert "the disk is full" in outcome.err
    assert "Traceback" not in outcome.err
    assert len(command.records()) == 1
    assert command(*SHORT).code == 0


def test_a_damaged_record_is_named_and_measured_again(command: CommandLine) -> None:
    command(*SHORT)
    before = {cell: record["values"] for cell, record in command.records().items()}
    victim = next(Store(command.results).folder.iterdir())
    victim.write_text(victim.read_text()[:100])
    outcome = command(*SHORT)
    assert outcome.code == 0
    assert f"{victim.name} is damaged" in outcome.err
    victim.with_name(f"{victim.name}.damaged").unlink()
    assert {cell: record["values"] for cell, record in command.records().items()} == before


def test_a_run_never_writes_into_what_is_published(command: CommandLine) -> None:
    published = write_lines(command.results / "paper/table1/records.jsonl", [RECORD])
    outcome = command(*SHORT)
    assert outcome.code == 2
    assert "holds published artifacts" in outcome.err
    assert [p for p in command.results.rglob("*") if p.is_file()] == [published]
