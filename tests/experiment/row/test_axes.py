"""Specs as records keep them, and the axes that name a row."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lutlab.base.specs import (
    CalibrationSpec,
    EvalSpec,
    LayerWidth,
    ModelRun,
    ModelSpec,
    ProductRun,
    Sublayer,
    TextSpec,
    Tuning,
)
from lutlab.experiment.row import spelling as asked

TEXT = TextSpec("c4-train", "folder", "data", limit=3)
FULL = ModelRun(
    ModelSpec("m", "hub", "a/m", "abc", 2),
    "bcq",
    2.5,
    8,
    options=(("alpha_dtype", "fp16"), ("offset", True), ("rounds", 3), ("solver", "alternating")),
    calibration=CalibrationSpec(TEXT, 4, 16, 1),
    sublayers=(Sublayer("attention", 3, 8),),
    budget=3.25,
    candidates=((2, 8), (2.5, 16)),
    skip=("*.0.*",),
    layers=(LayerWidth("*.1.*", 4, 16),),
    tuning=Tuning(3),
    seed=5,
)
PRODUCT = ProductRun(((8, 16, 1), (4, 16, 2)), "rtn", 4, 8, kernel="optq", knobs=(("mu", 4),))


@pytest.mark.parametrize(
    "run",
    [
        FULL,
        PRODUCT,
        ModelRun(ModelSpec("m", "folder", "m"), "none", 16, -1),
        ModelRun(ModelSpec("m", "synthetic", "m", packed=True), "bcq", 3, 8),
    ],
)
def test_a_run_comes_back_from_its_record(run):
    stored = asked.to_json(run)
    assert asked.run_from(stored) == run
    assert isinstance(stored["options"], dict)


def test_options_that_came_later_are_at_their_defaults():
    stored = asked.to_json(FULL)
    del stored["options"]["alpha_dtype"]
    assert asked.run_from(stored) == FULL


def test_what_came_later_is_in_records_of_rows_that_ask_for_it_alone():
    """Else the folder of every named sweep would be another's (plan/free.py)."""
    assert "packed" not in asked.to_json(FULL)["model"]
    assert "model.packed" not in asked.axes(FULL)


def test_a_record_of_an_earlier_version_has_the_defaults_of_what_came_later():
    stored = asked.to_json(FULL)
    del stored["layers"], stored["tuning"]
    found = asked.run_from(stored)
    assert (found.layers, found.tuning) == ((), None)


@given(
    st.sampled_from(["ppl", "lambada"]),
    st.none() | st.just(TEXT),
    st.dictionaries(st.text(min_size=1), st.integers() | st.text()),
)
def test_an_evaluation_comes_back(evaluator, text, options):
    spec = EvalSpec(evaluator, text, tuple(sorted(options.items())))
    assert asked.evaluation_from(asked.to_json(spec)) == spec


def test_axes_bear_the_names_of_the_command_line():
    found = asked.axes(FULL, EvalSpec("ppl", TEXT, (("loss_dtype", "float16"),)))
    assert found["method.offset"] is True
    assert found["sublayers.attention.q"] == 3
    assert found["layers"] == "*.1.*: [4, 16]"
    assert found["candidates"] == "q2 g8, q2.5 g16"
    assert (found["calibration.samples"], found["tuning.steps"], found["budget"]) == (4, 3, 3.25)
    assert (found["text"], found["data.root"], found["data.limit"]) == ("c4-train", "data", 3)
    assert found["evaluator.ppl.loss_dtype"] == "float16"
    assert "kernel" not in found
    assert asked.axes(PRODUCT)["knobs.mu"] == 4


def test_whatever_differs_between_rows_is_an_axis_of_theirs():
    rows = [{"q": 4, "method": "rtn"}, {"q": 4, "method": "bcq", "method.offset": True}]
    assert asked.differing(rows) == ["method", "method.offset"]
    assert asked.differing(rows[:1]) == []
    assert asked.differing([{"seed": 1}, {"seed": True}]) == ["seed"]


def test_the_examples():
    assert doctest.testmod(asked).failed == 0
