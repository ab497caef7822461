from __future__ import annotations

import re

import pytest

from lutlab.base.errors import LutlabError
from lutlab.experiment.artifact.artifact import Claim, Curve
from lutlab.experiment.artifact.claims import judge
from lutlab.experiment.artifact.predicates import evaluate
from lutlab.experiment.artifact.uncertain import Uncertain

NUMBERS = {"a": {"ppl": 3.0, "ms": 10.0}, "b": {"ppl": 2.0, "ms": None}}


@pytest.mark.parametrize(
    ("predicate", "truth"),
    [
        ("a < b", False),
        ("a <= 2 * b", True),
        ("a - b == 1 and not a < b", True),
        ("abs(b - a) > 2 or a / b == 1.5", True),
        ("-a < b", True),
        ("a.ms > 9", True),
        ("a.ms < b.ms", None),
    ],
)
def test_predicates(predicate: str, truth: bool | None) -> None:
    assert evaluate(predicate, NUMBERS, "ppl") is truth


@pytest.mark.parametrize(
    ("predicate", "message"),
    [
        ("a <", "does not parse"),
        ("__import__('os')", "not allowed"),
        ("a.__class__.x", "not allowed"),
        ("a < b < 3", "not allowed"),
        ("aa < b", "did you mean 'a'"),
        ("a.pp < 1", "did you mean 'ppl'"),
        ("'x' == 'x'", "a claim names row 'x'"),
        ("front(a) > 0", "not allowed"),
        ("dominated('a') > 0", "not allowed"),
        ("front('a') > 0", "matches no point"),
    ],
)
def test_nothing_else_is_evaluated(predicate: str, message: str) -> None:
    with pytest.raises(LutlabError, match=message):
        evaluate(predicate, NUMBERS, "ppl")


def test_judge_counts_each_scope_column_and_predicate() -> None:
    claim = Claim(text="t", where="w", holds=["a <= b", "b <= a"], columns=["ppl", "ms"])
    published = {"m/a": {"ppl": 1.0, "ms": 1.0}, "m/b": {"ppl": 1.0, "ms": 2.0}}
    measured = {"m/a": {"ppl": 2.0, "ms": None}, "m/b": {"ppl": 1.0, "ms": 5.0}}
    result = judge(claim, published, measured)
    assert result.published == (3, 4)
    assert result.measured == (1, 2)
    assert result.failing == ("m ppl a <= b",)


GRID = {
    f"{model}/q{q}/{g}": {"ppl": ppl, "ratio": ratio}
    for model, extra in (("s", 0), ("m", 1))
    for q, g, ratio, ppl in (
        (4, "g32", 2.0, 10.0),
        (4, "row", 4.0, 12.0 + extra),
        (3, "g32", 3.0, 11.0),
        (3, "row", 5.0, 20.0),
    )
} | {"s/fp16": {"ppl": 9.0, "ratio": 1.0}, "m/fp16": {"ppl": 9.5, "ratio": 1.0}}
CURVE = Curve(x="ratio", y="ppl", series=("q",), larger=(True, False), per=1, baseline="*/fp16")


def judged(**claim: list[str]) -> tuple[tuple[int, int], tuple[str, ...]]:
    result = judge(Claim(text="t", where="w", **claim), GRID, GRID, CURVE)
    return result.measured, result.failing


def test_names_mean_rows_under_the_axes_before_the_last() -> None:
    assert judged(holds=["g32 < row"], columns=["ppl"]) == ((4, 4), ())
    assert judged(holds=["g32 < row"], columns=["ppl"], only=["s/*"]) == ((2, 2), ())
    assert judged(holds=["fp16 > 9"], columns=["ppl"]) == ((1, 2), ("s ppl fp16 > 9",))
    assert judged(holds=['"m/q4/row" > "s/q4/row"'], columns=["ppl"])[0] == (1, 1)
    assert judged(holds=['"m/q4/row".ppl > "s/q4/row".ppl'])[0] == (1, 1)


def test_a_name_that_no_scope_has_is_an_error() -> None:
    with pytest.raises(LutlabError, match="did you mean 'g32'"):
        judged(holds=["g33 < row"], columns=["ppl"])


def test_fronts_are_counted_for_each_model() -> None:
    assert judged(fronts=['on_front("q*") == 4'])[0] == (2, 2)
    assert judged(fronts=['front("*/row") == 2', 'front("*/row") < front("*")'])[0] == (4, 4)
    assert judged(fronts=['dominated("q4/*", "q3/*") > 0'])[0] == (0, 2)
    assert judged(fronts=['on_front("q3/*") == 2'], only=["m"])[0] == (1, 1)
    worse = GRID | {"s/q4/row": {"ppl": 21.0, "ratio": 4.0}}
    claim = Claim(
        text="t", where="w", fronts=['dominated("q4/*", "q3/*") == 1', 'on_front("*") == 3']
    )
    assert judge(claim, {}, worse, CURVE).measured == (2, 4)


def test_a_front_with_a_missing_point_is_undecidable() -> None:
    partial = GRID | {"s/q4/row": {"ppl": None, "ratio": 4.0}}
    claim = Claim(text="t", where="w", fronts=['on_front("*") > 0'])
    assert judge(claim, {}, partial, CURVE).measured == (1, 1)


def near(value: float, *shares: float, source: str = "text", of: str = "") -> dict:
    """A perplexity of a thousand windows, all but the first ones without a share in its deviation."""
    own = (*shares, *(0.0,) * (1000 - len(shares)))
    return {"ppl": Uncertain(value, {source: own}, (of,) if of else ())}


def judged_on(rows: dict, *holds: str) -> tuple[tuple[int, int], tuple[str, ...], int]:
    claim = Claim(text="t", where="w", holds=holds, columns=["ppl"])
    result = judge(claim, {key: {"ppl": None} for key in rows}, rows)
    return (
        result.measured,
        tuple(re.sub(r" \(.*", "", n) for n in result.below_noise),
        result.repeated,
    )


def test_a_difference_below_two_errors_decides_nothing() -> None:
    paired = {"m/a": near(10.0, 3.0, 4.0), "m/b": near(11.1, 3.3, 4.4)}  # error of a - b: 0.5
    assert judged_on(paired, "a < b", "b < a") == ((1, 2), (), 0)
    apart = paired | {"m/b": near(11.1, 3.3, 4.4, source="other")}
    assert judged_on(apart, "a < b") == ((0, 0), ("m ppl a < b",), 0)
    closer = paired | {"m/b": near(10.9, 3.3, 4.4)}
    assert judged_on(closer, "a < b", "a < 0.92 * b")[1] == ("m ppl a < b", "m ppl a < 0.92 * b")
    assert judged_on({"m/a": near(10.0, 3.0), "m/b": near(10.0, 3.0)}, "a <= b")[0] == (1, 1)


@pytest.mark.parametrize(("b", "holds"), [(11.7, False), (12.1, True)])
def test_of_four_windows_a_difference_is_3_3_errors_or_more(b: float, holds: bool) -> None:
    a = {"ppl": Uncertain(10.0, {"text": (3.0, 1.0, 1.0, 1.0)})}
    b = {"ppl": Uncertain(b, {"text": (3.0, 1.0, 1.0, 1.6)})}  # error of the difference: 0.6
    result = judge(
        Claim(text="t", where="w", holds=["a < b"], columns=["ppl"]), {}, {"m/a": a, "m/b": b}
    )
    named = {True: result.holding, False: result.below_noise}[holds]
    assert named == (f"m ppl a < b (-{b['ppl'].value - 10:.2f} ± 0.60)",)
    assert result.instances() == f"— {'holds' if holds else 'below noise'}: {named[0]}"


@pytest.mark.parametrize(
    ("predicate", "counts"),
    [
        ("a < b and c < d", (0, 0)),  # unknown and true
        ("a < b and d < c", (0, 1)),
        ("a < b or c < d", (1, 1)),
        ("a < b or d < c", (0, 0)),
        ("not a < b", (0, 0)),
    ],
)
def test_what_is_unknown_may_not_matter(predicate: str, counts: tuple[int, int]) -> None:
    rows = {"m/a": near(1.0, 0.5), "m/b": near(1.1, source="b"), "m/c": near(2.0), "m/d": near(3.0)}
    assert judged_on(rows, predicate)[0] == counts


def test_instances_of_the_same_records_count_once() -> None:
    rows = {
        f"{model}/{row}": near(value, of=f"record {row}")
        for model in ("7b", "30b")
        for row, value in (("a", 1.0), ("b", 2.0))
    }
    assert judged_on(rows, "a < b") == ((1, 1), (), 1)
    whole = ('"7b/a" < "7b/b"', '"30b/a" < "30b/b"', '"30b/a" > "30b/b"')
    assert judged_on(rows, *whole) == ((1, 2), (), 1)
    other = rows | {"30b/b": near(2.0, of="of another")}
    assert judged_on(other, "a < b") == ((2, 2), (), 0)


@pytest.mark.parametrize(("error", "counts"), [(0.1, (1, 1)), (3.0, (0, 0))])
def test_a_front_that_other_samples_would_change_is_below_noise(error, counts) -> None:
    rows = {
        key: near(row["ppl"], error, source=key) | {"ratio": row["ratio"]}
        for key, row in GRID.items()
    }
    claim = Claim(text="t", where="w", fronts=['on_front("*") == 4'], only=["s"])
    result = judge(claim, {}, rows, CURVE)
    assert result.measured == counts
    assert bool(result.below_noise) == (counts == (0, 0))
