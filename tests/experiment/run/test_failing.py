"""Rows that fail, signals, a full disk: the exit code, one message at most; what is measured is kept and goes on."""

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.command_line import QUICK, ROOT
from tests.experiment.store.test_store import RECORD

from lutlab.base.errors import LutlabError
from lutlab.base.kept import files
from lutlab.evaluators.perplexity import Perplexity
from lutlab.experiment.run.ending import RowsFailed, ended
from lutlab.experiment.store.record import write_lines
from lutlab.experiment.store.store import Store
from lutlab.models.load import EMBEDDED

MODEL = EMBEDDED / "opt-embedded-s"
# Two windows: none of these numbers is looked at.
SHORT = [*QUICK, "data.limit=2"]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x.json")


@pytest.fixture
def broken(tmp_path):
    """A copy of the model, to be damaged."""
    return shutil.copytree(MODEL, tmp_path / "broken")


def test_a_failed_row_is_recorded_and_the_others_go_on(command, broken):
    weights = load_file(broken / "model.safetensors")
    weights["model.decoder.layers.0.fc1.weight"][0, 0] = torch.nan
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    line = [*SHORT, "model=folder", f"model.id={broken},{MODEL}"]
    assert "failed" in command(*line, code=1).err
    states = sorted((r["status"], r["run"]["model"]["id"]) for r in command.records().values())
    assert states == [("done", str(MODEL))] * 2 + [("failed", str(broken))] * 2
    reason = next(r["reason"] for r in command.records().values() if r["status"] == "failed")
    assert "NaN" in reason
    assert "fc1" in reason

    # Mended it is another cell, measured now.
    shutil.copy(MODEL / "model.safetensors", broken)
    command(*SHORT, "model=folder", f"model.id={broken}")
    names = {r["run"]["model"]["name"] for r in command.records().values()}
    assert names == {broken.name, MODEL.name}


def test_a_row_with_a_damaged_config_fails_alone(command, broken):
    line = ["model=folder", f"model.id={broken},{MODEL}", "evaluate=[weight_error]", *SHORT[1:]]
    unfit = '{"model_type": "opt", "vocab_size": "x", "max_position_embeddings": 8}'
    for text in ("", "[]", unfit):
        (broken / "config.json").write_text(text)
        command(*line, code=1)
        own = {r["run"]["model"]["id"]: r for r in command.records().values()}
        assert own[str(MODEL)]["status"] == "done"
        assert own[str(broken)]["status"] == "failed"
        assert "config.json" in own[str(broken)]["reason"]


def test_out_of_memory_is_recorded_and_tried_again(command, monkeypatch):
    exhausted = mock.Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    with monkeypatch.context() as patch:
        patch.setattr(Perplexity, "measure", exhausted)
        assert "OOM" in command(*SHORT, code=1).out
    assert sorted(r["status"] for r in command.records().values()) == ["done", "oom"]
    command(*SHORT)
    assert {r["status"] for r in command.records().values()} == {"done"}


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_signal_keeps_what_is_measured(command, monkeypatch, number, code, message):
    line = ["evaluate=[weight_error,ppl:lambada-joined]", *SHORT[1:]]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored behind a shell's &
    with monkeypatch.context() as patch:
        patch.setattr(Perplexity, "measure", lambda *_: signal.raise_signal(number))
        outcome = command(*line, code=code)
    signal.signal(signal.SIGINT, before)
    assert message in outcome.err
    assert len(command.records()) == 1
    assert "weight error" in outcome.out, "what is measured is printed as a table"
    assert "go on: " in outcome.out
    assert [*command.results.glob("sweep/*/table.csv")]
    command(*line)
    assert len(command.records()) == 2


def test_a_full_disk_ends_the_run_and_keeps_the_rest(command, monkeypatch):
    refusals = itertools.chain([mock.DEFAULT], itertools.repeat(FULL))
    full = mock.Mock(wraps=os.fsync, side_effect=refusals)
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        assert "the disk is full" in command(*SHORT, code=2).err
    assert len(command.records()) == 1
    command(*SHORT)


def test_a_damaged_record_is_named_and_measured_again(command):
    command(*SHORT)
    before = {cell: record["values"] for cell, record in command.records().items()}
    victim = next(Store(command.results).folder.iterdir())
    victim.write_text(victim.read_text()[:100])
    assert f"{victim.name} is damaged" in command(*SHORT).err
    victim.with_name(f"{victim.name}.damaged").unlink()
    assert {cell: record["values"] for cell, record in command.records().items()} == before


def test_a_run_never_writes_into_what_is_published(command):
    published = write_lines(command.results / "paper/table1/records.jsonl", [RECORD])
    assert "holds published artifacts" in command(*SHORT, code=2).err
    assert [p for p in command.results.rglob("*") if p.is_file()] == [published]


@pytest.mark.parametrize(("error", "code", "message"), [
    (LutlabError("no such q"), 2, "no such q"),
    (RowsFailed("1 cells failed"), 1, "1 cells failed"),
    (KeyboardInterrupt(), 130, "interrupted; finished cells are kept"),
    (FULL, 2, "x.json: No space left"),
    (MemoryError(), 2, "out of memory"),
    (ImportError("libtorch.so: failed to map segment from shared object"), 2, "out of memory"),
])  # fmt: skip
def test_an_end_has_a_code_and_a_message(error, code, message, capfd):
    assert ended(mock.Mock(side_effect=error)) == code
    err = capfd.readouterr().err
    assert err.startswith("lutlab: ")
    assert message in err


@pytest.mark.parametrize("error", [ZeroDivisionError(), RuntimeError("shapes do not fit")])
def test_errors_of_lutlab_itself_keep_their_traceback(error):
    with pytest.raises(type(error)):
        ended(mock.Mock(side_effect=error))


def test_a_terminated_command_says_so(capfd):
    assert ended(lambda: os.kill(os.getpid(), signal.SIGTERM)) == 143
    assert "terminated; finished cells are kept" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def write(folder, expression, stdout, **environment):
    """Code, output and errors of a process that ends as a command does after an expression."""
    code = (
        "import sys; from rich.console import Console; from lutlab.experiment.run.ending import ended\n"
        f"sys.exit(ended(lambda: {expression}))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, stdout=stdout, stderr=subprocess.PIPE, cwd=folder, env=env)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("call", ["print", "Console().print"])
def test_a_reader_who_left_is_141(call, tmp_path):
    reads, writes = os.pipe()
    os.close(reads)
    lines = f"[{call}('a line') for _ in range(100000)] and None"
    assert write(tmp_path, lines, writes) == (141, None, b"")
    os.close(writes)


def test_an_ascii_terminal_and_a_full_disk_get_no_traceback(tmp_path):
    text, ascii_only = "print('3 \\u00b1 1')", {"PYTHONIOENCODING": "ascii"}
    assert write(tmp_path, text, subprocess.PIPE, **ascii_only) == (0, b"3 ? 1\n", b"")
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            code, _, err = write(tmp_path, text, full, **ascii_only)
        assert code == 2
        assert err.startswith(b"lutlab: the system refuses")
        assert b"Traceback" not in err
