"""A user's mistake: one screen that names cause and cure, exit code 2, no traceback, nothing measured."""

import re
import subprocess
import sys

import pytest
from tests.command_line import QUICK, ROOT

import lutlab
from lutlab.base import registry
from lutlab.experiment.row.row import evaluator_keys, method_keys, row_keys
from lutlab.experiment.run import cli, main

# Those of tests/gate/mistakes.txt are held there, word for word.
MISTAKES = [
    (["g=-2"], "g=-2 is not a group size"),
    (["method.variant=gtpq"], "did you mean 'gptq'"),
    (["+metod=rtn"], "no key 'metod': did you mean 'method'"),
    (["sublayers.atention.q=3"], "did you mean 'sublayers.attention.q'"),
    (["calibration={sample:2}"], "did you mean 'calibration.samples'"),
    (["bits=4"], "no key 'bits': it is q here"),
    (["method=rtn,bcq", "method.rounds=5"], "method=rtn has no such option, bcq, gptq_bcq, hessian_bcq has"),
    (["method=[rtn,bcq]"], "a sweep over several has no brackets: method=rtn,bcq"),
    (["q=2,,3"], "q=2,,3 cannot be read: several values are a sweep, as q=2,3"),
    (["model.id=/a(1)"], "cannot be read.*other characters go in quotes inside the argument, as .*'/a path"),
    (["model=folder", "model.id=/a, b/c"], "no model in folder /a: .*comma: .model.id='<path>'"),
    (["logger.project=me/mine"], r"logger.project=me/mine: no name of a W&B project, it has /"),
    (["evaluate=ppl:ptb,weight_error"], r"give a list, as evaluate=\[ppl:ptb,weight_error\]"),
    (["rows=[opt-30b]"], "rows= chooses rows of a table: name it, as .exp=table4"),
    (["model=opt-175b", "stream=true"], "drop stream, or model.packed"),
    (["q=2,nine", "mode=plam", "metod=rtn", "g=7"], "^lutlab: 4 mistakes .*nine.*'plan'.*metod.*g=7"),
    (["--q=3"], "no option '--q=3': write q=3"),
    (["results="], "results=: the value is missing"),
    (["model.id=opt-embeded-s"], "no embedded model 'opt-embeded-s'.*opt-embedded-s"),
    (["+exp=tabel4"], "unknown experiment 'tabel4': did you mean 'table4'"),
    (["+exp=table4", "q=3,4"], "q is swept, but .exp fixes the rows"),
    (["+exp=table4", "rows=[opt-30b/fp61]"], "did you mean 'opt-30b/fp16'"),
    (["+exp=table4", "data.root=/nowhere"], "/nowhere.*docs/data-layout.md"),
    (["scale=tiny"], "unknown scale 'tiny'"),
    (["device=gpu"], "unknown device 'gpu'"),
    (["evaluate=[ppl:wikitext3]"], "wikitext3.*wikitext2"),
    (["evaluate=[ppl:lambada]"], "ppl reads one long text, and lambada is a list of examples"),
    (["model=opt-125m", "evaluate=[weight_error]"], "hub.*scale=embedded"),
    (["budget=0.5"], r"budget=0.5 is below the smallest size that the candidates give, \d\.\d+ bits"),
    (["method=rtn,bcq", "method.bcq.offset=mabye"], "method.bcq.offset=mabye: give true or false"),
    (["q=2", "q=3,4"], "q is given twice, q=2 and q=3,4"),
    (["q=range(0,1e9)"], "more than 1,000 values"),
    (["model=product", "model.id=8x8", "skip=[a]"], "skip= is of a model, and 8x8 is a single product"),
    (["dashboard.tracked=x"], "dashboard.tracked= is read by mode=dashboard"),
    (["method=bcq", "method.offset=3"], "method.offset=3: give true or false"),
    (["candidates.q=${q}", "budget=4"], "candidates.q=4.*give a list"),
    (["hydra/launcher=null"], "it is no value: drop it"),
    (["hydra/launcher=joblib", "hydra.launcher.n_jobs=0"], "give a number of processes"),
    ([f"seed={2**70}"], "at most 63 bits"),
    ([f"name={'x' * 5000}"], "name=x{200}.*at most 100"),
    ([f"results={'x' * 5000}"], "results=x{200}.*path of at most"),
    (["name=\udcff"], "characters that are no text"),
    (["--run"], "--run: every call is a sweep"),
    (["hydra/launcher=ray", "+hydra.launcher.ray.inti.x=2"], "write hydra.launcher.ray.init"),
    (["hydra.launcher.ray.init.num_cpus=2"], "of the launcher chosen here"),
    (["model=product", "model.id=8x8", "evaluate=[kernel_latency]", "knobs.luts=4"], "kernel=auto has no knob 'luts'"),
    (["q=3,4", "hydra.launcher.jobs=2"], "no key 'hydra.launcher.jobs' of the launcher chosen here"),
]  # fmt: skip
PLAN = ["mode=plan", "evaluate=[weight_error]", "baseline=false"]


@pytest.mark.parametrize(
    ("line", "message"), MISTAKES, ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else ""
)
def test_a_mistake_is_explained(command, line, message):
    columns = [] if line[0].startswith("+exp") else QUICK[:1]
    outcome = command(*columns, "logger=none", *line, code=2)
    assert outcome.err.startswith("lutlab: ")
    assert not re.search("Traceback|To append|Error merging", outcome.err + outcome.out)
    assert len(outcome.err.splitlines()) <= 24
    flat = " ".join(outcome.err.split())
    assert re.search(message, flat), flat
    assert command.records() == {}


def test_a_launcher_without_its_package_names_the_extra(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    errors = command("q=3", "hydra/launcher=ray", code=2).err
    assert errors == "lutlab: hydra/launcher=ray is not installed: pip install 'lutlab[ray]'\n"


@pytest.mark.parametrize(("line", "code", "message"), [
    (["q=2", "q=3", *PLAN], 0, "^lutlab: q=2 is not used: q=3 stands behind it$"),
    (["q=4", "g=100000", *PLAN[1:], "logger=none"], 0, "a row is one group, as with g=-1"),
    (["exp=table4", "rows=[opt-30b/fp16]", PLAN[0]], 0, "lut-gemm-v3/table4"),  # without a +
    (["method=rtn", "evaluate=[output_error]", "logger=none"], 0, "its method looks at weights only"),
    (["reslts", "list"], 2, "did you mean 'results'"),
    (["--help", "method=gptq"], 0, "method.sweeps=0"),
    (["--help", "evaluator=model_size"], 0, "binary form"),
    (["--help", "dat"], 2, "did you mean 'data'"),
    (["--version"], 0, f"^lutlab {re.escape(lutlab.__version__)}$"),
])  # fmt: skip
def test_a_line_is_answered(command, line, code, message):
    outcome = command(*line, code=code)
    flat = [" ".join(text.split()) for text in (outcome.out, outcome.err)]
    assert any(re.search(message, text) for text in flat), flat


def test_hydras_options_stand_anywhere(command):
    planned = command("q=2,3", "--multirun", *PLAN).out
    assert command("--multirun", "q=2,3", *PLAN).out == planned


def test_tab_completion_lists_the_methods(command, monkeypatch):
    monkeypatch.setenv("COMP_LINE", "lutlab q=3 method=")
    offered = command("-sc", "query=bash").out.split()
    assert offered == [f"method={name}" for name in registry.classes("method")]


def test_help_says_what_every_key_means(command):
    methods = [key for name in registry.classes("method") for key in method_keys(name).values()]
    keys = [*row_keys().values(), *evaluator_keys().values(), *methods]
    assert [key.name for key in keys if not key.about] == []
    shown = command("--help", "all").out
    assert [key.name for key in keys if f"  {key.name}=" not in shown] == []


def test_help_does_not_pay_for_heavy_libraries():
    code = (
        "import sys; from run import main; sys.argv[1:] = ['--help']; main(); print(*sys.modules)"
    )
    line = [sys.executable, "-c", code]
    words = {
        *subprocess.run(
            line, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.split()
    }
    assert {"+exp=table4", "sys"} <= words
    assert not words & {"torch", "transformers", "wandb", "cupy", "pandas", "matplotlib"}


def test_no_path_of_this_machine_is_committed():
    line = ["git", "grep", "-nIE", "(^|[^A-Za-z0-9_.~])/(work|root|farm)/"]
    assert subprocess.run(line, cwd=ROOT, capture_output=True, text=True).stdout == ""


def test_help_is_one_screen_and_leads_to_the_rest(command, monkeypatch, capfd):
    page = command("--help").out
    monkeypatch.setattr(sys, "argv", ["lutlab"])
    assert main.main() == 0
    assert capfd.readouterr().out == page, "a line without a word measures nothing"
    assert len(page.splitlines()) <= 40
    assert command.records() == {}
    groups = [command("--help", name).out for name in cli.GROUPS]
    keys = {key for group in groups for key in re.findall(r"^  ([\w.]+)=", group, re.M)}
    assert keys == row_keys().keys(), "every key is in one group"
