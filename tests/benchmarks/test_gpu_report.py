"""make gpu-report: what it runs, resumes and leaves for the next call, with steps of no weight; and no GPU."""

import dataclasses
import importlib
import json
import shlex
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from benchmarks.gpu_report import ARTIFACTS, ROOT, Step, go, steps

from benchmarks import gpu_report
from lutlab.experiment.row import sweeping
from lutlab.experiment.row.row import Row


def python(code):
    return (sys.executable, "-c", code)


def test_steps_run_once_and_failed_ones_again(tmp_path, capsys):
    flag = tmp_path / "flag"
    wanted = [
        Step("good", python("import lutlab; print('ran')"), 1),
        Step("bad", python(f"import sys, os; sys.exit(not os.path.exists({str(flag)!r}))"), 1),
        Step("tool", ("no-such-tool",), 1, "no-such-tool"),
        Step("long", python(""), 10_000),
    ]
    known = go(wanted, tmp_path / "out", 600)
    assert (tmp_path / "out" / "good.log").read_text() == "ran\n"
    assert {name: said["end"] for name, said in known.items()} == {
        "good": "done",
        "bad": "failed",
        "tool": "not run",
    }
    assert known["tool"]["why"] == "no-such-tool is not installed"
    assert "waits: about 10000 s" in capsys.readouterr().out
    flag.touch()
    known = go(wanted, tmp_path / "out", 600)
    assert known["bad"]["end"] == "done"
    assert "good                         done before" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "steps.json").read_text()) == known


def test_a_step_is_stopped_with_its_workers_when_the_budget_is_spent(tmp_path, monkeypatch):
    pid = tmp_path / "pid"
    sleeps = "import time; time.sleep(600)"
    stubborn = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {sleeps}"
    worker = (
        f"import os, subprocess, sys; one = subprocess.Popen([sys.executable, '-c', {sleeps!r}]); "
        f"print('began'); open('{pid}.new', 'w').write(str(one.pid)); "
        f"os.rename('{pid}.new', {str(pid)!r}); {stubborn}"
    )

    class Process(subprocess.Popen):
        """Its budget is spent as soon as the worker runs."""

        def wait(self, timeout=None):
            if timeout is None or timeout < 100:
                return super().wait(timeout)
            while not pid.exists():
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(gpu_report, "GRACE", 0.1)
    monkeypatch.setattr(gpu_report.subprocess, "Popen", Process)
    known = go([Step("cells", python(worker), 1, goes_on=True)], tmp_path / "out", 600)
    monkeypatch.undo()
    assert known["cells"]["end"] == "stopped"
    assert (tmp_path / "out" / "cells.log").read_text() == "began\n"
    for _ in range(500):
        if is_running(int(pid.read_text())):
            time.sleep(0.01)
    assert not is_running(int(pid.read_text()))
    again = [Step("cells", python(""), 1, goes_on=True)]
    assert go(again, tmp_path / "out", 600)["cells"]["end"] == "done"


def test_a_step_that_goes_on_needs_no_more_time_than_to_get_something_done(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    stopped = {"end": "stopped", "seconds": 500}
    (out / "steps.json").write_text(json.dumps({"cells": stopped, "whole": stopped}))
    wanted = [Step("cells", python(""), 40, goes_on=True), Step("whole", python(""), 40)]
    known = go(wanted, out, 100)
    assert (known["cells"]["end"], known["whole"]["end"]) == ("done", "stopped")


def is_running(pid):
    """A zombie is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_is_worth_most_comes_first(tmp_path):
    names = [step.name for step in steps(tmp_path, 200)]
    wanted = [
        "ceilings",
        "engine-opt-30b",
        "engine-opt-175b-q3",
        "lut-gemm-v3-table5",
        "tests",
        "goals",
        "batch",
        "choice",
        "lut-gemm-iclr2024-table1",
        "memcheck",
    ]
    assert [name for name in names if name in wanted] == wanted
    assert len(names) == len(ARTIFACTS) + 16


def test_every_command_is_understood(tmp_path, monkeypatch, capsys):
    for step in steps(tmp_path, 200):
        script = step.command[1]
        if script == "run.py":
            (request,) = sweeping.parse(step.command[2:])
            keys = {argument.partition("=")[0] for argument in request.arguments}
            assert keys <= {field.name for field in dataclasses.fields(Row)} | {"logger"}
        elif script.startswith("benchmarks/"):
            module = importlib.import_module(Path(script).stem)
            monkeypatch.setattr("sys.argv", [*step.command[1:], "--help"])
            with pytest.raises(SystemExit) as ended:
                module.main()
            assert ended.value.code == 0, capsys.readouterr().err


def test_every_step_names_what_exists(tmp_path):
    found = steps(tmp_path, 200)
    assert len({step.name for step in found}) == len(found)
    for step in found:
        for word in step.command:
            if word.startswith("benchmarks/") or word == "run.py":
                assert (ROOT / word).is_file()
            if word.startswith("+exp="):
                assert (ROOT / "experiments" / f"{word[5:]}.yaml").is_file()


@pytest.mark.slow
def test_the_sanitizer_sees_some_of_every_variant():
    from lutlab.kernels.gpu.variants import variants

    command = next(step.command for step in steps(ROOT, 1) if step.name == "memcheck")
    expression = command[command.index("-k") + 1]
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", "-k", expression,
         "-p", "no:cacheprovider", "tests/kernels/gpu"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    for test in (
        *(f"test_variants.py::test_on_a_gpu[{name}-" for name in variants()),
        "mixed_gemv.py",
    ):
        assert said.count(test) >= 5, said


def test_without_a_gpu_nothing_is_run(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_report, "gpu_missing", lambda: "no CUDA device")
    monkeypatch.setattr("sys.argv", shlex.split(f"gpu_report.py --out {tmp_path / 'out'}"))
    with pytest.raises(SystemExit) as ended:
        gpu_report.main()
    assert ended.value.code == 2
    assert "nothing was run: no CUDA device" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_one_file_to_carry_away(monkeypatch, tmp_path, capsys):
    archive = tmp_path / "report.tar.gz"
    monkeypatch.setattr(gpu_report, "gpu_missing", lambda: "")
    monkeypatch.setattr(gpu_report, "steps", lambda out, rounds: [Step("good", python(""), 1)])
    monkeypatch.setattr(
        "sys.argv", shlex.split(f"gpu_report.py --out {tmp_path / 'out'} --archive {archive}")
    )
    gpu_report.main()
    assert "all steps done" in capsys.readouterr().out
    with tarfile.open(archive) as packed:
        assert sorted(packed.getnames()) == ["out", "out/good.log", "out/steps.json"]
