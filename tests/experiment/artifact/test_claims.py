"""Claims: what is evaluated, what counts, what a front is, and which differences chance alone may have made."""

import math
import random
import re
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.base.refusals import refused

from lutlab.evaluators.noise import deviations
from lutlab.experiment.artifact.artifact import Claim, Curve
from lutlab.experiment.artifact.claims import judge
from lutlab.experiment.artifact.pareto import dominates, front
from lutlab.experiment.artifact.predicates import evaluate
from lutlab.experiment.artifact.uncertain import DRAWS, TAIL, Uncertain, drawn, mean, student

NUMBERS = {"a": {"ppl": 3.0, "ms": 10.0}, "b": {"ppl": 2.0, "ms": None}}
NUMBERS |= {"zero": {"ppl": 0.0}, "large": {"ppl": 1e300}}


@pytest.mark.parametrize(("predicate", "truth"), [
    ("a < b", False),
    ("a <= 2 * b", True),
    ("a - b == 1 and not a < b", True),
    ("abs(b - a) > 2 or a / b == 1.5", True),
    ("-a < b", True),
    ("a.ms > 9", True),
    ("a.ms < b.ms", None),
    ("a / zero < 1", None),
    ("a / (zero * 1e300) > 1", None),
    ("a / (a - a) == 1", None),
    ("a / zero > 1 and a < 9", None),
    ("large * large - large * large < 1", None),
])  # fmt: skip
def test_predicates(predicate: str, truth: bool | None) -> None:
    assert evaluate(predicate, NUMBERS, "ppl") is truth


@pytest.mark.parametrize(("predicate", "message"), [
    ("a <", "does not parse"),
    ("a < b < 3", "not allowed"),
    ("aa < b", "did you mean 'a'"),
    ("a.pp < 1", "did you mean 'ppl'"),
    ("'x' == 'x'", "a claim names row 'x'"),
    ("front(a) > 0", "not allowed"),
    ("dominated('a') > 0", "not allowed"),
    ("front('a') > 0", "matches no point"),
])  # fmt: skip
def test_nothing_else_is_evaluated(predicate: str, message: str) -> None:
    refused(message, evaluate, predicate, NUMBERS, "ppl")


GRID = {
    f"{model}/q{q}/{g}": {"ppl": ppl, "ratio": ratio}
    for model, row in (("s", 12.0), ("m", 13.0))
    for q, g, ratio, ppl in ((4, "g32", 2.0, 10.0), (4, "row", 4.0, row), (3, "g32", 3.0, 11.0), (3, "row", 5.0, 20.0))
} | {"s/fp16": {"ppl": 9.0, "ratio": 1.0}, "m/fp16": {"ppl": 9.5, "ratio": 1.0}}  # fmt: skip
CURVE = Curve(x="ratio", y="ppl", series=("q",), larger=(True, False), per=1, baseline="*/fp16")


def judged(measured=GRID, published=None, columns=("ppl",), **claim):
    if "fronts" not in claim:
        claim["columns"] = columns
    claim = Claim(text="t", where="Table 1", **claim)
    return judge(claim, published or measured, measured, CURVE)


def test_judge_counts_each_scope_column_and_predicate() -> None:
    published = {"m/a": {"ppl": 1.0, "ms": 1.0}, "m/b": {"ppl": 1.0, "ms": 2.0}}
    measured = {"m/a": {"ppl": 2.0, "ms": None}, "m/b": {"ppl": 1.0, "ms": 5.0}}
    result = judged(measured, published, ["ppl", "ms"], holds=["a <= b", "b <= a"])
    assert (result.published, result.measured) == ((3, 4), (1, 2))
    assert result.failing == ("m ppl a <= b",)


@pytest.mark.parametrize(("claim", "counts", "failing"), [
    ({"holds": ["g32 < row"]}, (4, 4), ()),
    ({"holds": ["g32 < row"], "only": ["s/*"]}, (2, 2), ()),
    ({"holds": ["fp16 > 9"]}, (1, 2), ("s ppl fp16 > 9",)),
    ({"holds": ['"m/q4/row" > "s/q4/row"']}, (1, 1), ()),
    ({"holds": ['"m/q4/row".ppl > "s/q4/row".ppl'], "columns": []}, (1, 1), ()),
    ({"fronts": ['on_front("q*") == 4']}, (2, 2), ()),
    ({"fronts": ['front("*/row") == 2', 'front("*/row") < front("*")']}, (4, 4), ()),
    ({"fronts": ['dominated("q4/*", "q3/*") > 0']}, (0, 2), None),
    ({"fronts": ['on_front("q3/*") == 2'], "only": ["m"]}, (1, 1), ()),
])  # fmt: skip
def test_names_mean_rows_under_the_axes_before_the_last(claim, counts, failing) -> None:
    result = judged(**claim)
    assert result.measured == counts
    assert failing is None or result.failing == failing


def test_a_name_that_no_scope_has_is_an_error() -> None:
    refused("did you mean 'g32'", judged, holds=["g33 < row"])


def test_a_front_is_of_what_was_measured_and_undecidable_where_a_point_is_missing() -> None:
    worse = GRID | {"s/q4/row": {"ppl": 21.0, "ratio": 4.0}}
    fronts = ['dominated("q4/*", "q3/*") == 1', 'on_front("*") == 3']
    assert judged(worse, fronts=fronts).measured == (2, 4)
    partial = GRID | {"s/q4/row": {"ppl": None, "ratio": 4.0}}
    assert judged(partial, fronts=['on_front("*") > 0']).measured == (1, 1)


def near(value: float, *shares: float, source: str = "text", origin: str = "") -> dict:
    """A perplexity of a thousand windows, all but the first ones without a share in its deviation."""
    own = (*shares, *(0.0,) * (1000 - len(shares)))
    return {"ppl": Uncertain(value, {source: own}, (origin,) if origin else ())}


def judged_on(rows: dict, *holds: str) -> tuple[tuple[int, int], tuple[str, ...], int]:
    result = judged(rows, holds=holds)
    below_noise = tuple(re.sub(r" \(.*", "", name) for name in result.below_noise)
    return result.measured, below_noise, result.repeated


def test_a_difference_below_two_errors_decides_nothing() -> None:
    paired = {"m/a": near(10.0, 3.0, 4.0), "m/b": near(11.1, 3.3, 4.4)}  # error of a - b: 0.5
    assert judged_on(paired, "a < b", "b < a") == ((1, 2), (), 0)
    apart = paired | {"m/b": near(11.1, 3.3, 4.4, source="other")}
    assert judged_on(apart, "a < b") == ((0, 0), ("m ppl a < b",), 0)
    closer = paired | {"m/b": near(10.9, 3.3, 4.4)}
    assert judged_on(closer, "a < b", "a < 0.92 * b")[1] == ("m ppl a < b", "m ppl a < 0.92 * b")
    assert judged_on({"m/a": near(10.0, 3.0), "m/b": near(10.0, 3.0)}, "a <= b")[0] == (1, 1)


@pytest.mark.parametrize(("value", "holds"), [(11.7, False), (12.1, True)])
def test_of_four_windows_a_difference_is_3_3_errors_or_more(value: float, holds: bool) -> None:
    a = {"ppl": Uncertain(10.0, {"text": (3.0, 1.0, 1.0, 1.0)})}
    b = {"ppl": Uncertain(value, {"text": (3.0, 1.0, 1.0, 1.6)})}  # error of the difference: 0.6
    result = judged({"m/a": a, "m/b": b}, holds=["a < b"])
    named = result.holding if holds else result.below_noise
    assert named == (f"m ppl a < b (-{value - 10:.2f} ± 0.60)",)
    assert result.instances() == f"— {'holds' if holds else 'below noise'}: {named[0]}"


@pytest.mark.parametrize(("predicate", "counts"), [
    ("a < b and c < d", (0, 0)),  # unknown and true
    ("a < b and d < c", (0, 1)),
    ("a < b or c < d", (1, 1)),
    ("a < b or d < c", (0, 0)),
    ("not a < b", (0, 0)),
])  # fmt: skip
def test_what_is_unknown_may_not_matter(predicate: str, counts: tuple[int, int]) -> None:
    rows = {"m/a": near(1.0, 0.5), "m/b": near(1.1, source="b"), "m/c": near(2.0), "m/d": near(3.0)}
    assert judged_on(rows, predicate)[0] == counts


def test_instances_of_the_same_records_count_once() -> None:
    a, b = near(1.0, origin="record a"), near(2.0, origin="record b")
    rows = {"7b/a": a, "7b/b": b, "30b/a": a, "30b/b": b}
    assert judged_on(rows, "a < b") == ((1, 1), (), 1)
    whole = ('"7b/a" < "7b/b"', '"30b/a" < "30b/b"', '"30b/a" > "30b/b"')
    assert judged_on(rows, *whole) == ((1, 2), (), 1)
    assert judged_on(rows | {"30b/b": near(2.0, origin="another")}, "a < b") == ((2, 2), (), 0)


@pytest.mark.parametrize(("error", "counts"), [(0.1, (1, 1)), (3.0, (0, 0))])
def test_a_front_that_other_samples_would_change_is_below_noise(error, counts) -> None:
    rows = {key: row | near(row["ppl"], error, source=key) for key, row in GRID.items()}
    result = judged(rows, fronts=['on_front("*") == 4'], only=["s"])
    assert result.measured == counts
    assert bool(result.below_noise) == (counts == (0, 0))


POINTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


@given(POINTS, st.tuples(st.booleans(), st.booleans()))
def test_the_front_is_what_no_point_beats(points: list, larger: tuple) -> None:
    def beaten(point: tuple, by: tuple) -> bool:
        """At least as good in both, and another one."""
        gains = [(b - p) * (1 if up else -1) for b, p, up in zip(by, point, larger, strict=True)]
        return min(gains) >= 0 and by != point

    best = [i for i, p in enumerate(points) if not any(beaten(p, by) for by in points)]
    assert front(points, larger) == best
    assert all(dominates(by, p, larger) == beaten(p, by) for p in points for by in points)


def test_what_is_no_number_is_not_on_the_front() -> None:
    assert front([(1.0, math.nan), (0.5, 1.0)], (True, True)) == [1]
    assert front([], (True, True)) == []


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


def test_columns_of_one_record_are_not_averaged_away() -> None:
    """`accuracy` and `accuracy_norm` of the same examples, whose chance has two sources."""
    names = ("accuracy", "accuracy_norm", "accuracy_norm")
    dependent = [Uncertain(5.0, {n: (0.3, 0.4)}, (f"0ab {n}",)) for n in names]
    assert mean(dependent).error == pytest.approx(0.5)
    assert mean(dependent[1:]).error == pytest.approx(0.5), "of one source"
    apart = [Uncertain(5.0, {n: (0.3, 0.4)}, (f"{n} accuracy",)) for n in ("0ab", "1cd")]
    assert mean(apart).error == pytest.approx(0.5 / math.sqrt(2))


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
