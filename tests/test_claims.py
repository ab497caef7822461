from __future__ import annotations

import pytest

from lutlab.claims import evaluate, judge
from lutlab.errors import LutlabError
from lutlab.tables import Claim

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
        ("'x' == 'x'", "not allowed"),
    ],
)
def test_nothing_else_is_evaluated(predicate: str, message: str) -> None:
    with pytest.raises(LutlabError, match=message):
        evaluate(predicate, NUMBERS, "ppl")


def test_judge_counts_each_model_column_and_predicate() -> None:
    claim = Claim(text="t", where="w", holds=["a <= b", "b <= a"], columns=["ppl", "ms"])
    published = {"m": {"a": {"ppl": 1.0, "ms": 1.0}, "b": {"ppl": 1.0, "ms": 2.0}}}
    measured = {"m": {"a": {"ppl": 2.0, "ms": None}, "b": {"ppl": 1.0, "ms": 5.0}}}
    result = judge(claim, published, measured)
    assert result.published == (3, 4)
    assert result.measured == (1, 2)
    assert result.failing == ("m ppl a <= b",)
