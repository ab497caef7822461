"""Hostile command lines end in a documented exit code with at most one message, never a traceback."""

from __future__ import annotations

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
    "method=rtn q=3 g=32 evaluate=[weight_error]",
    "method=rtn,bcq q=2,3 evaluate=[model_size] baseline=false",
    "method=bcq method.offset=true evaluate=[ppl:lambada-joined]",
    "model=product model.id=256x128 evaluate=[kernel_latency] mu=8",
    "model=synthetic model.id=opt-embedded-s model.layers=1 evaluate=[model_size]",
    "model=folder model.id=broken evaluate=[weight_error]",
    "+exp=table4 rows=[opt-30b/fp16]",
    "mode=dashboard",
    "results show 0123",
    "results list sweep",
    "results diff one other",
    "results export all.csv",
    "results prune quantized --yes",
    "results stale --results results",
    "workspaces --check",
)
VALUES = (
    "", "null", "0", "-1", "-0.0", "1e400", "-1e400", "99999999999999999999", "1e9", "0.5", "nan", "inf", "true",
    "false", "3", "2.5", "8", "[]", "{}", "[1,2]", "[null]", "[[]]", "[a,[b]]", "{a:1}", "{a:{b:2}}", "{1:2}", "a,b",
    "2,2", "2,", ",", "1,two", "choice(1,2)", "range(1,3)", "range(0,1e9)", "interval(1,2)", "glob(*)", "sort(3,1)",
    "shuffle(1,2)", "'", '"', "''", "'a b'", "\\", "[", "]", "[1", "{", "}", "(", ")", "${q}", "${", "${oc.env:HOME}",
    "${nothing}", "???", "\u00e9\u4e16\U0001f600", "\u202egnp", "\t", "a\nb", "\x00", "\x1b[31m", "\udcff", "x" * 5000,
    "[" * 500, "/dev/null", "/dev/null/x", "..", ".", "/proc/self/mem", "~", "-", "--", "=", "==", "a=b", "@", "cpu:99",
    "cuda:7", "cpu:0", "0x0", "4096x", "1x1", "embedded", "hub", "auto", "zzz", "rtn", "1:2", "*", "%s", "{0}",
)  # fmt: skip
OPTIONS = (
    "--multirun", "-m", "--run", "--help", "-h", "--hydra-help", "--version", "--info", "--info=zzz", "--cfg", "job",
    "--cfg=job", "--resolve", "--package=model", "-p", "--config-dir=/nowhere", "--config-dir", "--config-path=x",
    "--config-name=zzz", "--config-name", "--shell-completion", "-sc=zzz", "--zzz", "--q=3", "-q", "--results",
    "--yes", "-", "--", "-c", "-cd", "-cn",
)  # fmt: skip
WORDS = (
    "q", "plan", "table4", "", " ", "=", "=3", "+", "~", "+q", "~q", "~method", "~q=4", "++", "++q=3", "+new=1",
    "++new=1", "+new.deep.er=1", "method@zzz=rtn", "method@model=rtn", "model@method=opt-125m", "q@x=1",
    "exp=table4,table4", "+exp=zzz", "+exp=null", "artifact=zzz", "artifact=", "row=1", "rows=[a]", "job={}",
    "q:3", "q = 3", "hydra=null", "hydra.mode=null", "hydra.zzz=1", "hydra/sweeper=basic",
    "hydra/launcher=joblib", "hydra/launcher=zzz", "hydra.launcher.n_jobs=0", "hydra.sweep.dir=/dev/null",
    "hydra.searchpath=[zzz]", "hydra.output_subdir=x", "hydra.job.chdir=true", "hydra.verbose=true",
    "hydra/job_logging=zzz", "local=zzz", "local=null", "knobs.luts=4", "knobs=null", "layers={'*': [4]}",
    "layers={'*': x}", "layers.a=1", "sublayers.attention=null", "model.q=3", "evaluator=null",
    "evaluator.ppl=null", "evaluator.zzz=1", "plugins=zzz", "plugins=[zzz,1]", "experiments=zzz",
    "data.root=/nowhere", "data.stand_in=null", "data.stand_in.wikitext2=zzz", "threads=1", "device=cpu", "q=2,2",
)  # fmt: skip


@functools.cache
def taken() -> dict[str, list[str]]:
    """What a key or a preset takes, beside what none should: half of the lines get as far as the plan."""
    keys = row_keys() | evaluator_keys()
    for name in registry.classes("method"):
        keys |= method_keys(name)
    given = {
        name: [*key.values, "???" if key.default is MISSING else spelled(key.default)]
        for name, key in keys.items()
    }
    return given | {name: list(known) for name, known in choices([]).items()}


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A valid line with one to three arguments more, or with a sign of it lost, doubled or another."""
    line = draw(st.sampled_from(VALID)).split()
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["set"] * 5 + ["word", "option", "repeat", "damage"]))
        at = draw(st.integers(0, len(line) - 1))
        if kind == "damage":
            sign = draw(
                st.sampled_from(["", "=", ",", "'", "[", "}", "$", "\\", "@", "\u00e9", " "])
            )
            place = draw(st.integers(0, len(line[at])))
            line[at] = line[at][:place] + sign + line[at][place + draw(st.integers(0, 2)) :]
            continue
        key = draw(st.sampled_from([*taken()]))
        value = draw(st.sampled_from(VALUES) | st.sampled_from([*taken()[key], "3"]))
        plus = draw(st.sampled_from(["", "", "", "+", "++"]))
        word, option = draw(st.sampled_from(WORDS)), draw(st.sampled_from(OPTIONS))
        more = {"set": f"{plus}{key}={value}", "word": word, "option": option, "repeat": line[at]}
        line.insert(at, more[kind])
    return line


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(line=lines())
def test_hostile_lines_end_as_documented(line: list[str]) -> None:
    with scratch():
        ended = typed(line)
    assert not ended.broken, f"{ended.broken}\n{ended.err[-1500:]}"


def test_a_broken_promise_is_noticed() -> None:
    with scratch():
        with mock.patch.object(mistakes, "read", side_effect=ValueError("planted")):
            assert typed(["q=3"]).broken == "traceback"
        with mock.patch.object(mistakes, "read", side_effect=SystemExit(2)):
            assert typed(["q=3"]).broken == "refused without a message"
