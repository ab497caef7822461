"""Relative error of the weights, against numbers computed by hand."""

import pytest
from tests.tiny_models import RUN

from lutlab.base.specs import LayerStats, Subject
from lutlab.evaluators.weight_error import WeightError


def measure(*layers):
    return WeightError().measure(Subject(None, None, tuple(layers), None, 64, RUN))


def layer(name, error, norm):
    return LayerStats(name, 2, 8, error, norm, 64, q=3, g=8, format="bcq", bits_bcq=64)


def test_errors_are_summed_before_they_are_divided():
    found = measure(layer("first", 1.0, 4.0), layer("second", 0.5, 16.0))
    assert found.values == {"weight_relative_mse": 1.5 / 20.0}  # not the mean of 1/4 and 1/32
    assert found.samples == (0.25, 0.03125)
    assert found.n == 2
    assert found.facts == {"layers": ["first", "second"]}


def test_weights_that_are_all_zero_have_no_error():
    found = measure(layer("zero", 0.0, 0.0), layer("other", 1.0, 2.0))
    assert found.samples == (0.0, 0.5)
    assert found.values == {"weight_relative_mse": pytest.approx(0.5)}
    assert measure(layer("zero", 0.0, 0.0)).values == {"weight_relative_mse": 0.0}
