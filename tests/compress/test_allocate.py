"""The integer program: exact, never over budget, the same every time."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lutlab.base.errors import LutlabError
from lutlab.compress.search import Option, allocate
from lutlab.compress.sizes import budget_bits

OPTION = st.builds(
    Option,
    width=st.tuples(st.integers(1, 8), st.sampled_from([8, 32, -1])),
    bits=st.integers(1, 60),
    cost=st.integers(-5, 40).map(lambda cost: cost / 8),  # ties are common
)
LAYERS = st.lists(st.lists(OPTION, min_size=1, max_size=4), min_size=1, max_size=5)
LAYERS = LAYERS.map(lambda layers: {f"layer {i}": some for i, some in enumerate(layers)})


def bits_of(options):
    return sum(option.bits for option in options)


def cost_of(options):
    return sum(option.cost for option in options)


def smallest(layers):
    return sum(min(option.bits for option in options) for options in layers.values())


def brute_force(layers, budget):
    """The least cost within the budget, by trying everything."""
    combinations = itertools.product(*layers.values())
    return min(cost_of(options) for options in combinations if bits_of(options) <= budget)


@given(layers=LAYERS, spare=st.integers(0, 80), unit=st.sampled_from([1, 32, 10**9]))
def test_the_answer_is_the_optimum_and_within_the_budget(layers, spare, unit):
    scaled = {
        name: [Option(o.width, o.bits * unit, o.cost) for o in options]
        for name, options in layers.items()
    }
    budget = (smallest(layers) + spare) * unit + unit - 1
    chosen = allocate(scaled, budget)
    assert list(chosen) == list(scaled)
    assert all(chosen[name] in options for name, options in scaled.items())
    assert bits_of(chosen.values()) <= budget
    assert cost_of(chosen.values()) == pytest.approx(brute_force(scaled, budget), abs=1e-6)
    assert allocate(scaled, budget) == chosen


def test_a_budget_without_a_factor_in_common_with_the_sizes():
    """Divided by what sizes and budget share, which is 1, the solver gave up on coefficients of 10^10."""
    giga = 10**9
    layers = {
        "0": [Option((1, 8), n * giga, cost) for n, cost in ((1, 0.25), (22, 0.125), (23, 0.0))],
        "1": [Option((1, 8), n * giga, cost) for n, cost in ((3, 0.125), (24, 0.0))],
    }
    chosen = allocate(layers, 25 * giga - 1).values()
    assert bits_of(chosen) <= 25 * giga - 1
    assert cost_of(chosen) == brute_force(layers, 25 * giga - 1)


def test_one_bit_less_is_respected():
    """Sizes of a large model: one bit of 10^12 is far below the solver's tolerance."""
    options = [Option((2, -1), 10**12 - 1, 1.0), Option((3, -1), 10**12, 0.0)]
    layers = dict.fromkeys("abc", options)
    for less in (0, 1, 3):
        assert cost_of(allocate(layers, 3 * 10**12 - less).values()) == less
    with pytest.raises(LutlabError, match="below the smallest possible, 2999999999997 bits"):
        allocate(layers, 3 * 10**12 - 4)


def test_ties_go_to_fewer_bits():
    layers = {"a": [Option((4, -1), 40, 1.0), Option((3, 32), 30, 1.0), Option((3, 64), 30, 1.0)]}
    assert allocate(layers, 100)["a"] == layers["a"][1]


@given(weights=st.integers(1, 10**12), per_weight=st.integers(1, 64), more=st.integers(0, 10**12))
def test_a_size_is_its_own_budget(weights, per_weight, more):
    """A grid point's bits a weight, as a record prints them, is a budget that the grid point fits into."""
    bits = weights * per_weight + more % weights
    budget = budget_bits(bits / weights, weights)
    assert budget >= bits
    assert budget / weights <= bits / weights


@pytest.mark.parametrize("budget", [0, -1.0, math.nan, math.inf, True])
def test_a_budget_is_a_positive_number(budget):
    with pytest.raises(LutlabError, match="give a positive number of stored bits a weight"):
        budget_bits(budget, 100)
