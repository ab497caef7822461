"""Hostile command lines end in a documented exit code with at most one message, never a traceback."""

import functools
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hostile.typed import scratch, typed

from lutlab.base import registry
from lutlab.base.fields import MISSING, spelled
from lutlab.experiment.row import mistakes
from lutlab.experiment.row.row import choices, evaluator_keys, method_keys, row_keys

# no model's shape has to be computed for these, so that a case takes milliseconds
VALID = (
    "method=rtn q=3 g=32 evaluate=[weight_error]", "method=rtn,bcq q=2,3 evaluate=[model_size] baseline=false",
    "method=bcq method.offset=true evaluate=[ppl:lambada-joined]", "+exp=table4 rows=[opt-30b/fp16]", "mode=dashboard",
    "model=product model.id=256x128 evaluate=[kernel_latency] mu=8", "workspaces --check", "results show 0123",
    "model=synthetic model.id=opt-embedded-s model.layers=1 evaluate=[model_size]", "results export all.csv",
    "model=folder model.id=broken evaluate=[weight_error]", "results list sweep", "results diff one other",
    "results prune quantized --yes", "results stale --results results",
)  # fmt: skip
VALUES = (
    "", "null", "0", "-1", "-0.0", "1e400", "-1e400", "99999999999999999999", "1e9", "0.5", "nan", "inf", "true",
    "false", "3", "2.5", "8", "[]", "{}", "[1,2]", "[null]", "[[]]", "[a,[b]]", "{a:1}", "{a:{b:2}}", "{1:2}", "a,b",
    "2,2", "2,", ",", "1,two", "choice(1,2)", "range(1,3)", "range(0,1e9)", "interval(1,2)", "glob(*)", "sort(3,1)",
    "shuffle(1,2)", "'", '"', "''", "'a b'", "\\", "[", "]", "[1", "{", "}", "(", ")", "${q}", "${", "${oc.env:HOME}",
    "${nothing}", "???", "\u00e9\u4e16\U0001f600", "\u202egnp", "\t", "a\nb", "\x00", "\x1b[31m", "\udcff", "x" * 5000,
    "[" * 500, "/dev/null", "/dev/null/x", "..", ".", "/proc/self/mem", "~", "-", "--", "=", "==", "a=b", "@", "cpu:99",
    "cuda:7", "cpu:0", "0x0", "4096x", "1x1", "embedded", "hub", "auto", "zzz", "rtn", "1:2", "*", "%s", "{0}", "job",
    "[zzz,1]", "{'*': [4]}", "table4,table4", "basic", "joblib",
)  # fmt: skip
# set, with any sign before them, or alone
NAMES = (
    "", " ", "q", "method", "plan", "table4", "new", "new.deep.er", "method@zzz", "method@model", "model@method", "q@x",
    "exp", "artifact", "row", "rows", "job", "q:3", "q = 3", "hydra", "hydra.mode", "hydra.zzz", "hydra/sweeper",
    "hydra/launcher", "hydra.launcher.n_jobs", "hydra.sweep.dir", "hydra.searchpath", "hydra.output_subdir",
    "hydra.job.chdir", "hydra.verbose", "hydra/job_logging", "local", "knobs.luts", "knobs", "layers", "layers.a",
    "sublayers.attention", "model.q", "evaluator", "evaluator.ppl", "evaluator.zzz", "plugins", "experiments",
    "data.root", "data.stand_in", "data.stand_in.wikitext2", "threads", "device",
    "--multirun", "-m", "--run", "--help", "-h", "--hydra-help", "--version", "--info", "--cfg", "--resolve", "-p",
    "--package", "--config-dir", "--config-path", "--config-name", "--shell-completion", "-sc", "--zzz", "--q", "-q",
    "--results", "--yes", "-", "--", "-c", "-cd", "-cn",
)  # fmt: skip


@functools.cache
def taken() -> dict[str, list[str]]:
    """What a key or a preset takes, beside what none should: half of the lines get as far as the plan."""
    keys = row_keys() | evaluator_keys()
    for name in registry.classes("method"):
        keys |= method_keys(name)
    values = {name: [*key.values] for name, key in keys.items()}
    for name, key in keys.items():
        values[name].append("???" if key.default is MISSING else spelled(key.default))
    return values | {name: list(known) for name, known in choices([]).items()}


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A valid line with one to three arguments more, or with a sign of it lost, doubled or another."""
    line = draw(st.sampled_from(VALID)).split()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(line) - 1))
        kind = draw(st.sampled_from(["set"] * 5 + ["set name", "name", "repeat", "damage"]))
        if kind == "damage":
            sign = draw(st.sampled_from(["", *"=,'[}$\\@\u00e9 "]))
            first, lost = draw(st.integers(0, len(line[at]))), draw(st.integers(0, 2))
            line[at] = line[at][:first] + sign + line[at][first + lost :]
            continue
        name = draw(st.sampled_from(NAMES if "name" in kind else [*taken()]))
        value = draw(st.sampled_from(VALUES) | st.sampled_from([*taken().get(name, []), "3"]))
        sign = draw(st.sampled_from(["", "", "", "+", "++", "~"]))
        new = line[at] if kind == "repeat" else sign + name + f"={value}" * ("set" in kind)
        line.insert(at, new)
    return line


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(line=lines())
def test_hostile_lines_end_as_documented(line: list[str]) -> None:
    with scratch():
        ended = typed(line)
    assert not ended.broken, f"{ended.broken}\n{ended.err[-1500:]}"


@pytest.mark.parametrize(
    ("mistake", "broken"),
    [(ValueError("planted"), "traceback"), (SystemExit(2), "refused without a message")],
)
def test_a_broken_promise_is_noticed(mistake: BaseException, broken: str) -> None:
    with scratch(), mock.patch.object(mistakes, "read", side_effect=mistake):
        assert typed(["q=3"]).broken == broken
