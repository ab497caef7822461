"""Specs as records keep them, the axes that name a row, and the command that measures it again."""

import doctest
import functools
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.experiment.row.composing import settings

from lutlab.base import specs
from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec, ProductRun, TextSpec
from lutlab.experiment.artifact.columns import free_columns
from lutlab.experiment.plan.resolve import evaluation_of
from lutlab.experiment.row import spelling
from lutlab.experiment.row.run import run_of
from lutlab.experiment.row.spelling import axes, evaluation_from, overrides_of, run_from, shell
from lutlab.experiment.store.store import Store
from tools.published_list import PUBLISHED

TEXT = TextSpec("c4-train", "folder", "data", limit=3)
FULL = ModelRun(
    ModelSpec("m", "hub", "a/m", "abc", 2), "bcq", 2.5, 8, calibration=specs.CalibrationSpec(TEXT, 4, 16, 1),
    options=(
        ("alpha_bits", 16), ("alpha_dtype", "fp16"), ("offset", True), ("rounds", 3), ("solver", "alternating"),
        ("starts", "best"),
    ),
    sublayers=(specs.Sublayer("attention", 3, 8),), budget=3.25, candidates=((2, 8), (2.5, 16)), skip=("*.0.*",),
    layers=(specs.LayerWidth("*.1.*", 4, 16),), tuning=specs.Tuning(3), seed=5,
)  # fmt: skip
PRODUCT = ProductRun(((8, 16, 1), (4, 16, 2)), "rtn", 4, 8, kernel="optq", knobs=(("mu", 4),))
PACKED = ModelRun(ModelSpec("m", "synthetic", "m", packed=True), "bcq", 3, 8)


@pytest.mark.parametrize(
    "run", [FULL, PRODUCT, PACKED, ModelRun(ModelSpec("m", "folder", "m"), "none", 16, -1)]
)
def test_a_run_comes_back_from_its_record(run):
    stored = spelling.to_json(run)
    assert spelling.run_from(stored) == run
    assert isinstance(stored["options"], dict)


def test_what_came_later_is_at_its_default_in_earlier_records():
    stored = spelling.to_json(FULL)
    del stored["options"]["alpha_dtype"]
    assert spelling.run_from(stored) == FULL
    del stored["layers"], stored["tuning"]
    earlier = spelling.run_from(stored)
    assert (earlier.layers, earlier.tuning) == ((), None)


def test_what_came_later_is_in_records_of_rows_that_ask_for_it_alone():
    """Else the folder of every named sweep would be another's (plan/free.py)."""
    assert "packed" not in spelling.to_json(FULL)["model"]
    assert "model.packed" not in spelling.axes(FULL)


@given(
    st.sampled_from(["ppl", "lambada"]),
    st.none() | st.just(TEXT),
    st.dictionaries(st.text(min_size=1), st.integers() | st.text()),
)
def test_an_evaluation_comes_back(evaluator, text, options):
    spec = EvalSpec(evaluator, text, tuple(sorted(options.items())))
    assert spelling.evaluation_from(spelling.to_json(spec)) == spec


def test_axes_bear_the_names_of_the_command_line():
    axes = spelling.axes(FULL, EvalSpec("ppl", TEXT, (("loss_dtype", "float16"),)))
    assert "kernel" not in axes
    assert axes["method.offset"] is True
    assert axes.items() >= {
        "sublayers.attention.q": 3, "layers": "*.1.*: [4, 16]", "candidates": "q2 g8, q2.5 g16", "budget": 3.25,
        "calibration.samples": 4, "tuning.steps": 3, "text": "c4-train", "data.root": "data", "data.limit": 3,
        "evaluator.ppl.loss_dtype": "float16",
    }.items()  # fmt: skip
    assert spelling.axes(PRODUCT)["knobs.mu"] == 4


def test_whatever_differs_between_rows_is_an_axis_of_theirs():
    rows = [{"q": 4, "method": "rtn"}, {"q": 4, "method": "bcq", "method.offset": True}]
    assert spelling.differing(rows) == ["method", "method.offset"]
    assert spelling.differing(rows[:1]) == []
    assert spelling.differing([{"seed": 1}, {"seed": True}]) == ["seed"]


def test_the_examples():
    assert doctest.testmod(spelling).failed == 0


SAMPLE = 10


@functools.cache
def kinds():
    """A published record of each method and set of axes, as (run, evaluation, threads)."""
    known = {}
    for machine in sorted(PUBLISHED.iterdir()):
        for record in Store(machine).all().values() if machine.is_dir() else ():
            run, evaluation = run_from(record.run), evaluation_from(record.evaluation)
            kind = (run.method, *axes(run, evaluation))
            known.setdefault(kind, (run, evaluation, record.provenance["threads"]))
    return list(known.values())


@pytest.mark.parametrize("at", range(SAMPLE))
def test_the_command_measures_the_same_cell(at):
    run, evaluation, threads = kinds()[at * len(kinds()) // SAMPLE]
    overrides = overrides_of(run, evaluation, threads)
    composed = settings(*overrides)
    (column,) = free_columns(composed.evaluate).values()
    assert (run_of(composed), evaluation_of(column, composed)) == (run, evaluation)
    assert shlex.split(shell(overrides))[2:] == overrides


@pytest.mark.parametrize(
    ("line", "limits"),
    [("data.limit=4", (4, 4)), ("data.examples=9", (None, 9)), ("data.limit=4 data.examples=9", (4, 9))],
)  # fmt: skip
def test_windows_and_examples_are_limited_apart(line, limits):
    composed = settings(*line.split(), "evaluate=[ppl:wikitext2,lambada:lambada]")
    columns = free_columns(composed.evaluate).values()
    assert tuple(evaluation_of(column, composed).text.limit for column in columns) == limits
