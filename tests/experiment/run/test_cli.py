"""A user's mistake: one screen that names cause and cure, exit code 2, no traceback, nothing measured."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import QUICK, ROOT, CommandLine

import lutlab
from lutlab.base import registry
from lutlab.experiment.row.row import evaluator_keys, method_keys, row_keys
from lutlab.experiment.run import cli, main

# Those of tests/gate/mistakes.txt are held there, word for word.
MISTAKES = [
    (["g=-2"], "g=-2 is not a group size"),
    (["g=7"], "g=7 is not a group size"),
    (["method=rnt"], "unknown method 'rnt': did you mean 'rtn'"),
    (["method.variant=gtpq"], "did you mean 'gptq'"),
    (["method.varaint=awq"], "no key 'method.varaint': did you mean 'method.variant'"),
    (["+metod=rtn"], "no key 'metod': did you mean 'method'"),
    (["sublayers.atention.q=3"], "did you mean 'sublayers.attention.q'"),
    (["evaluator.ppl.los=x"], "did you mean 'evaluator.ppl.loss_dtype'"),
    (["calibration={sample:2}"], "did you mean 'calibration.samples'"),
    (["bits=4"], "no key 'bits': it is q here"),
    (
        ["method=rtn,bcq", "method.rounds=5"],
        "method=rtn has no such option, bcq, gptq_bcq, hessian_bcq has",
    ),
    (["method=[rtn,bcq]"], "give one method; a sweep over several has no brackets: method=rtn,bcq"),
    (["q=2,,3"], "q=2,,3 cannot be read: several values are a sweep, as q=2,3"),
    (
        ["model.id=/a(1)"],
        "cannot be read.*other characters go in quotes inside the argument, as .*'/a path",
    ),
    (["model=folder", "model.id=/a, b/c"], "no model in folder /a: .*comma: .model.id='<path>'"),
    (["logger.project=me/mine"], r"logger.project=me/mine: no name of a W&B project, it has /"),
    (["skip='*.fc1'"], r"skip=\*.fc1: give a list, as skip=\[\*.fc1\]"),
    (["evaluate=ppl:ptb,weight_error"], r"give a list, as evaluate=\[ppl:ptb,weight_error\]"),
    (["rows=[opt-30b]"], "rows= chooses rows of a table: name it, as .exp=table4"),
    (["model=opt-175b", "stream=true"], "drop stream, or model.packed"),
    (
        ["q=2,nine", "mode=plam", "metod=rtn", "g=7"],
        "^lutlab: 4 mistakes .*nine.*'plan'.*metod.*g=7",
    ),
    (["--q=3"], "no option '--q=3': write q=3"),
    (["results="], "results=: the value is missing"),
    (["model=opt-125n"], "unknown model 'opt-125n': did you mean 'opt-125m'"),
    (
        ["model=folder", "model.id=/nowhere/at/all"],
        "no model in folder /nowhere/at/all.*config.json",
    ),
    (["model.id=opt-embeded-s"], "no embedded model 'opt-embeded-s'.*opt-embedded-s"),
    (["+exp=tabel4"], "unknown experiment 'tabel4': did you mean 'table4'"),
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
    (
        ["budget=0.5"],
        r"budget=0.5 is below the smallest size that the candidates give, \d\.\d+ bits",
    ),
    (["method=rtn,bcq", "method.bcq.offset=mabye"], "method.bcq.offset=mabye: give true or false"),
    (["q=2", "q=3,4"], "q is given twice, q=2 and q=3,4"),
    (["q=range(0,1e9)"], "more than 1,000 values"),
    (["evaluate=[ppl:lambada]"], "ppl reads one long text, and lambada is a list of examples"),
    (
        ["model=product", "model.id=8x8", "skip=[a]"],
        "skip= is of a model, and 8x8 is a single product",
    ),
    (["dashboard.tracked=x"], "dashboard.tracked= is read by mode=dashboard"),
    (["method=bcq", "method.offset=3"], "method.offset=3: give true or false"),
    (["candidates.q=${q}", "budget=4"], "candidates.q=4.*give a list"),
    (["hydra/launcher=null"], "it is no value: drop it"),
    (["hydra/launcher=joblib", "hydra.launcher.n_jobs=0"], "give a number of processes"),
    (["threads=99999"], "threads=99999: give a whole number of at least 1 and at most 4096"),
    ([f"seed={2**70}"], "at most 63 bits"),
    ([f"name={'x' * 5000}"], "name=x{200}.*at most 100"),
    ([f"results={'x' * 5000}"], "results=x{200}.*path of at most"),
    (["name=\udcff"], "characters that are no text"),
    (["--run"], "--run: every call is a sweep"),
    (["hydra/launcher=ray", "+hydra.launcher.ray.inti.x=2"], "write hydra.launcher.ray.init"),
    (["hydra.launcher.ray.init.num_cpus=2"], "of the launcher chosen here"),
    (
        ["q=3,4", "hydra.launcher.jobs=2"],
        "no key 'hydra.launcher.jobs' of the launcher chosen here",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    MISTAKES,
    ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else "",
)
def test_a_mistake_is_explained(command: CommandLine, arguments: list[str], message: str) -> None:
    columns = [] if arguments[0].startswith("+exp") else QUICK[:1]
    outcome = command(*columns, "logger=none", *arguments)
    assert outcome.code == 2
    assert outcome.err.startswith("lutlab: ")
    assert not re.search("Traceback|To append|Error merging", outcome.err + outcome.out)
    assert len(outcome.err.splitlines()) <= 24
    flat = " ".join(outcome.err.split())
    assert re.search(message, flat), flat
    assert command.records() == {}


def test_a_launcher_without_its_package_names_the_extra(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    outcome = command("q=3", "hydra/launcher=ray")
    assert outcome.code == 2
    assert outcome.err == "lutlab: hydra/launcher=ray is not installed: pip install 'lutlab[ray]'\n"


def test_what_a_later_value_replaces_is_said(command: CommandLine) -> None:
    outcome = command("q=2", "q=3", "mode=plan", "evaluate=[weight_error]", "baseline=false")
    assert outcome.code == 0, outcome.err
    assert outcome.err == "lutlab: q=2 is not used: q=3 stands behind it\n"


def test_hydras_options_stand_anywhere(command: CommandLine) -> None:
    line = ["q=2,3", "--multirun", "mode=plan", "evaluate=[weight_error]", "baseline=false"]
    outcomes = [command(*line), command(line[1], line[0], *line[2:])]
    assert [outcome.code for outcome in outcomes] == [0, 0]
    assert outcomes[0].out == outcomes[1].out


def test_a_plus_is_needed_nowhere(command: CommandLine) -> None:
    planned = command("exp=table4", "rows=[opt-30b/fp16]", "mode=plan", "logger=none")
    assert planned.code == 0, planned.err
    assert "lut-gemm-v3/table4" in planned.out
    product = ["model=product", "model.id=64x64", "evaluate=[kernel_latency]", "knobs.luts=4"]
    assert "kernel=auto has no knob 'luts'" in command(*product, "mode=plan").err


def test_an_error_of_outputs_without_calibration_is_a_cell_that_says_so(
    command: CommandLine,
) -> None:
    outcome = command("method=rtn", "evaluate=[output_error]", "logger=none")
    assert outcome.code == 0, outcome.err
    assert "its method looks at weights only" in " ".join(outcome.out.split())
    assert "Published" not in outcome.out  # no paper has such a column


def test_tab_completion_lists_the_methods(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_LINE", "lutlab q=3 method=")
    offered = command("-sc", "query=bash").out.split()
    assert offered == [f"method={name}" for name in registry.classes("method")]


def test_help_says_what_every_key_means(command: CommandLine) -> None:
    methods = [key for name in registry.classes("method") for key in method_keys(name).values()]
    keys = [*row_keys().values(), *evaluator_keys().values(), *methods]
    assert [key.name for key in keys if not key.about] == []
    shown = command("--help", "all").out
    assert [key.name for key in keys if f"  {key.name}=" not in shown] == []


def test_help_does_not_pay_for_heavy_libraries() -> None:
    code = (
        "import sys; sys.argv = ['run.py', '--help']\n"
        "from run import main\n"
        "main()\n"
        "heavy = {'torch', 'transformers', 'wandb', 'cupy', 'pandas', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "+exp=table4" in done.stdout


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


def test_help_is_one_screen_and_leads_to_the_rest(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    page = command("--help").out
    monkeypatch.setattr(sys, "argv", ["lutlab"])
    assert main.main() == 0
    assert capfd.readouterr().out == page, "a line without a word measures nothing"
    assert len(page.splitlines()) <= 40
    assert command.records() == {}
    keys = {
        key
        for name in cli.GROUPS
        for key in re.findall(r"^  ([\w.]+)=", command("--help", name).out, re.M)
    }
    assert keys == row_keys().keys(), "every key is in one group"
    assert "method.sweeps=0" in command("--help", "method=gptq").out
    assert "binary form" in command("--help", "evaluator=model_size").out
    assert "did you mean 'data'" in command("--help", "dat").err
    assert command("--version").out == f"lutlab {lutlab.__version__}\n"


def test_a_misspelled_command_is_explained(command: CommandLine) -> None:
    assert "did you mean 'results'" in command("reslts", "list").err


def test_a_group_longer_than_a_row_is_said(command: CommandLine) -> None:
    outcome = command("q=4", "g=100000", "evaluate=[weight_error]", "baseline=false", "logger=none")
    assert outcome.code == 0
    assert "a row is one group, as with g=-1" in " ".join(outcome.err.split())
