"""A user's mistake: one screen that names cause and cure, exit code 2, no traceback, nothing measured."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.command_line import QUICK, ROOT, CommandLine

MISTAKES = [
    (["q=0"], "q=0 is not a number of bits.*1 to 8"),
    (["q=9"], "q=9 is not a number of bits"),
    (["q=three"], "q"),
    (["g=0"], "g=0 is not a group size.*at least 8, or -1"),
    (["g=-2"], "g=-2 is not a group size"),
    (["g=7"], "g=7 is not a group size"),
    (["method=rnt"], "unknown method 'rnt': did you mean 'rtn'"),
    (["method.variant=gtpq"], "did you mean 'gptq'"),
    (["method.varaint=awq"], "varaint"),
    (["model=opt-125n"], "unknown model 'opt-125n': did you mean 'opt-125m'"),
    (
        ["model=folder", "model.id=/nowhere/at/all"],
        "no model in folder /nowhere/at/all.*config.json",
    ),
    (["model.id=opt-embeded-s"], "no embedded model 'opt-embeded-s'.*opt-embedded-s"),
    (["+exp=tabel4"], "unknown experiment 'tabel4': did you mean 'table4'"),
    (["+exp=table4", "q=3"], "q= contradicts lut-gemm-v3/table4"),
    (["+exp=table4", "q=3,4"], "q is swept, but .exp fixes the rows"),
    (["+exp=table4", "rows=[opt-30b/fp61]"], "did you mean 'opt-30b/fp16'"),
    (["+exp=table4", "data.root=/nowhere"], "/nowhere.*docs/data-layout.md"),
    (["scale=tiny"], "unknown scale 'tiny'"),
    (["logger=ofline"], "unknown logger 'ofline': did you mean 'offline'"),
    (["device=gpu"], "unknown device 'gpu'"),
    (["dtype=float8"], "unknown dtype 'float8'"),
    (["evaluate=[pl:wikitext2]"], "unknown evaluator 'pl': did you mean 'ppl'"),
    (["evaluate=[ppl:wikitext3]"], "wikitext3.*wikitext2"),
    (["model=opt-125m", "evaluate=[weight_error]"], "hub.*scale=embedded"),
    (["mode=dry"], "mode"),
    (
        ["budget=0.5"],
        r"budget=0.5 is below the smallest size that the candidates give, \d\.\d+ bits",
    ),
    (["threads=0"], "threads=0: give at least 1"),
    (["data.limit=0"], "data.limit=0: give the number of windows"),
    (["model=product"], "model.id is not given"),
    (["qq=3"], "qq"),
    (["q=3,4", "hydra.launcher.jobs=2"], "hydra.launcher.jobs"),
    pytest.param(
        ["hydra/launcher=ray"],
        r"hydra/launcher=ray is not installed: pip install 'lutlab\[ray\]'",
        marks=pytest.mark.skipif(
            find_spec("hydra_plugins.hydra_ray_launcher") is not None, reason="it is installed"
        ),
    ),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    MISTAKES,
    ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else "",
)
def test_a_mistake_is_explained(command: CommandLine, arguments: list[str], message: str) -> None:
    outcome = command(*QUICK, *arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("lutlab: ")
    assert "Traceback" not in outcome.err + outcome.out
    assert len(outcome.err.splitlines()) <= 24
    flat = " ".join(outcome.err.split())
    assert re.search(message, flat), flat
    assert command.records() == {}


@pytest.mark.parametrize(
    "layer", ["torch", "transformers", "wandb", "cupy", "pandas", "matplotlib"]
)
def test_help_does_not_pay_for_heavy_libraries(layer: str) -> None:
    code = (
        "import sys; sys.argv = ['run.py', '--help']\n"
        "from run import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"assert {layer!r} not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "+exp=table4" in done.stdout or "method" in done.stdout


def test_cupy_imports_without_a_gpu() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is a Linux dependency")
    assert cupy.__version__


def test_no_path_of_this_machine_is_committed() -> None:
    tracked = subprocess.run(
        ["git", "grep", "-nIE", "(^|[^A-Za-z0-9_.~])/(work|root|farm)/"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert [line for line in tracked.splitlines() if not line.startswith(Path(__file__).name)] == []
