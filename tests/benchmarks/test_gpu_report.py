"""make gpu-report: what it runs, resumes and leaves for the next call, with steps of no weight; and no GPU."""

import dataclasses
import importlib
import json
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
from lutlab.kernels.gpu.variants import variants


def python(code):
    return (sys.executable, "-c", code)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def listed(tmp_path):
    return steps(tmp_path, 200)


def test_steps_run_once_and_failed_ones_again(out, tmp_path, capsys):
    flag = tmp_path / "flag"
    wanted = [
        Step("good", python("import lutlab; print('ran')"), 1),
        Step("bad", python(f"import sys, os; sys.exit(not os.path.exists({str(flag)!r}))"), 1),
        Step("tool", ("no-such-tool",), 1, "no-such-tool"),
        Step("long", python(""), 10_000),
    ]
    known = go(wanted, out, 600)
    assert (out / "good.log").read_text() == "ran\n"
    ends = {name: step["end"] for name, step in known.items()}
    assert ends == {"good": "done", "bad": "failed", "tool": "not run"}
    assert known["tool"]["why"] == "no-such-tool is not installed"
    assert "waits: about 10000 s" in capsys.readouterr().out
    flag.touch()
    known = go(wanted, out, 600)
    assert known["bad"]["end"] == "done"
    assert "good                         done before" in capsys.readouterr().out
    assert json.loads((out / "steps.json").read_text()) == known


def test_a_step_is_stopped_with_its_workers_when_the_budget_is_spent(out, tmp_path, monkeypatch):
    pid = tmp_path / "pid"
    sleeps = "import time; time.sleep(600)"
    worker = (
        "import os, signal, subprocess, sys; "
        f"child = subprocess.Popen([sys.executable, '-c', {sleeps!r}]); print('began'); "
        f"open('{pid}.new', 'w').write(str(child.pid)); os.rename('{pid}.new', {str(pid)!r}); "
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {sleeps}"
    )

    class Process(subprocess.Popen):
        """Its budget is spent as soon as the worker runs."""

        def wait(self, timeout=None):
            if timeout is None or timeout < 100:
                return super().wait(timeout)
            while not pid.exists():
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(self.args, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(gpu_report, "GRACE", 0.1)
        patch.setattr(gpu_report.subprocess, "Popen", Process)
        known = go([Step("cells", python(worker), 1, goes_on=True)], out, 600)
    assert known["cells"]["end"] == "stopped"
    assert (out / "cells.log").read_text() == "began\n"
    child = int(pid.read_text())
    assert any(time.sleep(0.01) or not is_running(child) for _ in range(500))
    again = [Step("cells", python(""), 1, goes_on=True)]
    assert go(again, out, 600)["cells"]["end"] == "done"


def is_running(pid):
    """A zombie is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_step_that_goes_on_needs_no_more_time_than_to_get_something_done(out):
    out.mkdir()
    stopped = {"end": "stopped", "seconds": 500}
    (out / "steps.json").write_text(json.dumps({"cells": stopped, "whole": stopped}))
    wanted = [Step("cells", python(""), 40, goes_on=True), Step("whole", python(""), 40)]
    known = go(wanted, out, 100)
    assert (known["cells"]["end"], known["whole"]["end"]) == ("done", "stopped")


def test_what_is_worth_most_comes_first(listed):
    wanted = [
        "ceilings", "engine-opt-30b", "engine-opt-175b-q3", "lut-gemm-v3-table5", "tests", "goals", "batch", "choice",
        "lut-gemm-iclr2024-table1", "memcheck",
    ]  # fmt: skip
    assert [step.name for step in listed if step.name in wanted] == wanted
    assert len({step.name for step in listed}) == len(listed) == len(ARTIFACTS) + 16


def test_every_command_is_understood_and_names_what_exists(listed, monkeypatch, capsys):
    for step in listed:
        _, script, *arguments = step.command
        if script == "run.py":
            (request,) = sweeping.parse(arguments)
            keys = {argument.partition("=")[0] for argument in request.arguments}
            assert keys <= {field.name for field in dataclasses.fields(Row)} | {"logger"}
        elif script.startswith("benchmarks/"):
            module = importlib.import_module(Path(script).stem)
            monkeypatch.setattr("sys.argv", [script, *arguments, "--help"])
            with pytest.raises(SystemExit) as ended:
                module.main()
            assert ended.value.code == 0, capsys.readouterr().err
        for word in step.command:
            if word.startswith("benchmarks/") or word == "run.py":
                assert (ROOT / word).is_file()
            if word.startswith("+exp="):
                assert (ROOT / "experiments" / f"{word[5:]}.yaml").is_file()


@pytest.mark.slow
def test_the_sanitizer_sees_some_of_every_variant(listed):
    command = next(step.command for step in listed if step.name == "memcheck")
    expression = command[command.index("-k") + 1]
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", "-k", expression,
         "-p", "no:cacheprovider", "tests/kernels/gpu"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    for test in (
        *(f"test_variants.py::test_on_a_gpu[{name}-" for name in variants()),
        "mixed_gemv.py",
    ):
        assert tests.count(test) >= 5, tests


def test_without_a_gpu_nothing_is_run(run, monkeypatch, out, capsys):
    monkeypatch.setattr(gpu_report, "gpu_missing", lambda: "no CUDA device")
    with pytest.raises(SystemExit) as ended:
        run(gpu_report, f"--out {out}")
    assert ended.value.code == 2
    assert "nothing was run: no CUDA device" in capsys.readouterr().err
    assert not out.exists()


def test_one_file_to_carry_away(run, monkeypatch, out, tmp_path):
    archive = tmp_path / "report.tar.gz"
    monkeypatch.setattr(gpu_report, "gpu_missing", lambda: "")
    monkeypatch.setattr(gpu_report, "steps", lambda out, rounds: [Step("good", python(""), 1)])
    assert "all steps done" in run(gpu_report, f"--out {out} --archive {archive}")
    with tarfile.open(archive) as packed:
        assert sorted(packed.getnames()) == ["out", "out/good.log", "out/steps.json"]
