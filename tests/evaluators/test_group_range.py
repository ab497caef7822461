"""Ranges of groups merged over rows, on weights whose ranges are known."""

import pytest
import torch
from tests.tiny_models import RUN, tiny_opt

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import Subject
from lutlab.evaluators.group_range import GroupRange, merged_ranges, spread


def test_ranges_are_squared_and_summed_over_rows():
    weight = torch.zeros(2, 20)
    weight[0, 0], weight[0, 1], weight[1, 9], weight[1, 17] = 1, -2, 2, 5  # groups of 8, 8 and 4
    assert merged_ranges(weight, 8).tolist() == [9, 4, 25]


def test_spread():
    assert spread(torch.tensor([1.0, 1, 1, 1])) == (1, 0.25)
    assert spread(torch.tensor([1.0, 4, 2, 2, 3, 2, 2, 2])) == (2, 7 / 18)
    assert spread(torch.zeros(8)) == (1, 0.25)
    assert spread(torch.tensor([0.0, 0, 0, 1])) == (float("inf"), 1)


def test_a_model_is_the_mean_and_the_most_of_its_layers():
    model = tiny_opt()
    subject = Subject(model, None, (), None, 16, RUN)
    found = GroupRange(8).measure(subject)
    mean, most = (found.values[f"range_largest_over_median{name}"] for name in ("", "_max"))
    assert mean == pytest.approx(sum(found.samples) / found.n)
    assert most == max(found.samples) >= mean >= 1
    lutlab.quantize(model, q=8, g=8)
    again = GroupRange(8).measure(subject)
    assert again.samples == pytest.approx(found.samples, rel=0.05)
    assert again.samples != found.samples, "of the weights as they are multiplied"


def test_one_group_is_refused():
    with pytest.raises(
        LutlabError, match=r"one group of 4096: give a smaller evaluator\.group_range\.g"
    ):
        GroupRange(4096).measure(Subject(tiny_opt(), None, (), None, 16, RUN))
