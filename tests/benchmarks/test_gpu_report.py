"""make gpu-report: what it runs, resumes and leaves for the next call, with steps of no weight; and no GPU."""

import json
import shlex
import subprocess
import sys
import tarfile

import pytest
from benchmarks.gpu_report import ROOT, Step, go, steps

from benchmarks import gpu_report


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


def test_every_step_names_what_exists(tmp_path):
    found = steps(tmp_path, 200)
    assert len({step.name for step in found}) == len(found)
    for step in found:
        for word in step.command:
            if word.startswith("benchmarks/") or word == "run.py":
                assert (ROOT / word).is_file()
            if word.startswith("+exp="):
                assert (ROOT / "experiments" / f"{word[5:]}.yaml").is_file()


def test_the_sanitizer_sees_some_of_every_variant():
    from lutlab.kernels import lut_gemv

    command = next(step.command for step in steps(ROOT, 1) if step.name == "memcheck")
    expression = command[command.index("-k") + 1]
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", "-k", expression,
         "-p", "no:cacheprovider", *(f"tests/kernels/test_lut_gemv_{n}.py" for n in lut_gemv.VARIANTS)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    for name in lut_gemv.VARIANTS:
        assert said.count(f"test_lut_gemv_{name}.py") >= 5, said


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
