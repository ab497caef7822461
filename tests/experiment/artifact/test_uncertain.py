"""Errors to first order against draws of the samples, of expressions over the same windows and over others."""

import math
import random
import statistics

import pytest

from lutlab.evaluators.noise import deviations
from lutlab.experiment.artifact.uncertain import DRAWS, TAIL, Uncertain, drawn, mean, student

N, TIMES = 80, 1500


def ppl(nll: list[float]) -> float:
    return math.exp(statistics.fmean(nll))


def uncertain(nll: list[float], text: str) -> Uncertain:
    value = ppl(nll)
    return Uncertain(value, {text: deviations([value * x for x in nll])})


def windows() -> list[list[float]]:
    """Mean nll of the windows of one text by three models that find the same windows hard."""
    draw = random.Random(3)
    hard = [draw.gauss(3, 0.4) for _ in range(N)]
    return [[x + shift + draw.gauss(0, 0.05) for x in hard] for shift in (0.0, 0.02, 0.2)]


EXPRESSIONS = {
    "difference": lambda a, b, c: a - b,
    "ratio": lambda a, b, c: c / a - b / a,
    "product": lambda a, b, c: a * b - c,
    "degradation": lambda a, b, c: abs(b - c) - (c - a),
    "mean": lambda a, b, c: mean([a, b, c]) if isinstance(a, Uncertain) else (a + b + c) / 3,
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_the_error_is_that_of_windows_drawn_again(name: str) -> None:
    expression, models, draw = EXPRESSIONS[name], windows(), random.Random(5)
    computed = expression(*(uncertain(nll, "text") for nll in models))
    assert computed.value == pytest.approx(expression(*map(ppl, models)), rel=1e-12)
    again = []
    for _ in range(TIMES):
        chosen = draw.choices(range(N), k=N)  # the same windows for every model
        again.append(expression(*(ppl([nll[i] for i in chosen]) for nll in models)))
    assert computed.error == pytest.approx(statistics.stdev(again), rel=0.12)


def test_of_other_windows_errors_add_up() -> None:
    first, second, _ = windows()
    a, b = uncertain(first, "text"), uncertain(second, "text")
    apart = a - uncertain(second, "another")
    assert apart.error == pytest.approx(math.hypot(a.error, b.error))
    assert (a - b).error < apart.error / 5
    assert (a - a).error == 0


def test_few_samples_decide_less() -> None:
    """Against printed tables of Student's t, and against how often chance alone passes for a difference."""
    assert [round(student(n), 2) for n in (1, 3, 7, 63, 1e9)] == [13.97, 3.31, 2.43, 2.04, 2.0]
    draw = random.Random(11)
    for n in (2, 4, 30):
        passed = 0
        for _ in range(TIMES * 4):
            sample = [draw.gauss(0, 1) for _ in range(n)]
            difference = Uncertain(statistics.fmean(sample), {"text": deviations(sample)})
            passed += abs(difference.value) > difference.noise
        assert passed / (TIMES * 4) == pytest.approx(2 * TAIL, rel=0.2)
    assert Uncertain(1.0).noise == 0
    four = Uncertain(1.0, {"a": (0.1,) * 4})
    single = Uncertain(0.5, {"b": (1e-6,)})  # of one sample nothing is known
    for unknown in (single, Uncertain(1.0, {"b": (math.inf,)}), four - single):
        assert unknown.noise == math.inf
    apart = four - Uncertain(0.5, {"b": (0.1,) * 4})
    assert apart.noise == pytest.approx(student(6) * apart.error)


def test_draws_move_as_the_errors_say() -> None:
    a, b = (uncertain(nll, "text") for nll in windows()[:2])
    numbers = {"a": a, "b": b, "c": Uncertain(4.0)}
    draws = list(drawn(numbers))
    assert draws == list(drawn(numbers)), "the same numbers give the same draws"
    assert len(draws) == DRAWS
    difference = statistics.stdev(draw["a"] - draw["b"] for draw in draws)
    assert difference == pytest.approx((a - b).error, rel=0.2)
    assert {draw["c"] for draw in draws} == {4.0}
