"""The Pareto front against its definition, on any points."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lutlab.experiment.artifact.pareto import dominates, front

POINTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)
BETTER = st.tuples(st.booleans(), st.booleans())


@given(POINTS, BETTER)
def test_every_point_is_on_the_front_or_beaten_by_one_that_is(points: list, larger: tuple) -> None:
    found = front(points, larger)
    for i, point in enumerate(points):
        beaten = any(dominates(points[j], point, larger) for j in found)
        assert (i in found) != beaten


@given(POINTS, BETTER)
def test_a_front_is_a_staircase(points: list, larger: tuple) -> None:
    """Sorted from good to bad x, y only gets better; equal points are all on it."""
    distinct = {points[i] for i in front(points, larger)}
    ordered = sorted(distinct, key=lambda p: -p[0] if larger[0] else p[0])
    ys = [y if larger[1] else -y for _, y in ordered]
    assert ys == sorted(set(ys))


def test_what_is_no_number_is_not_on_the_front() -> None:
    assert front([(1.0, float("nan")), (0.5, 1.0)], (True, True)) == [1]
    assert front([], (True, True)) == []
