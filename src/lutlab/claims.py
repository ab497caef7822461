"""Evaluate a claim's predicates (`q4_g32 <= q4_g64`) on numbers: a tiny, safe expression language.

Allowed: names, `name.column`, numbers, + - * /, comparisons, `and`, `or`, `not`, `abs`. Nothing else parses.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from lutlab.errors import LutlabError, nearest
from lutlab.records import ClaimResult
from lutlab.tables import Claim

Numbers = Mapping[
    str, Mapping[str, float | None]
]  # row name -> column -> value, None where there is none

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARE = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


class _Undecidable(Exception):
    """A value the predicate needs was not measured."""


def evaluate(predicate: str, numbers: Numbers, column: str | None = None) -> bool | None:
    """Truth of a predicate; None where a number it needs is missing.

    >>> evaluate("a <= 2 * b", {"a": {"ppl": 3.0}, "b": {"ppl": 2.0}}, "ppl")
    True

    Raises:
        LutlabError: the predicate does not parse or names an unknown row or column.
    """
    try:
        tree = ast.parse(predicate, mode="eval").body
    except SyntaxError as error:
        raise LutlabError(f"claim '{predicate}' does not parse: {error.msg}") from error
    try:
        return bool(_value(tree, numbers, column))
    except _Undecidable:
        return None


def _value(node: ast.expr, numbers: Numbers, column: str | None) -> float | bool:
    def value(child: ast.expr) -> float | bool:
        return _value(child, numbers, column)

    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=row) if column is not None:
            return _number(numbers, row, column)
        case ast.Attribute(value=ast.Name(id=row), attr=named):
            return _number(numbers, row, named)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](value(left), value(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _COMPARE[type(op)](value(left), value(right))
        case ast.BoolOp(op=op, values=children):
            decide: Callable[..., bool] = all if isinstance(op, ast.And) else any
            return decide([value(child) for child in children])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not value(operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value(operand)
        case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]):
            return abs(value(argument))
    raise LutlabError(
        f"'{ast.unparse(node)}' is not allowed in a claim: use row names, name.column, numbers, + - * /, comparisons, "
        "and, or, not, abs"
    )


def _number(numbers: Numbers, row: str, column: str) -> float:
    if row not in numbers:
        raise LutlabError(f"a claim names row '{row}': {nearest(row, numbers)}")
    if column not in numbers[row]:
        raise LutlabError(f"a claim names column '{column}': {nearest(column, numbers[row])}")
    if (found := numbers[row][column]) is None:
        raise _Undecidable
    return found


def judge(
    claim: Claim, published: Mapping[str, Numbers], measured: Mapping[str, Numbers]
) -> ClaimResult:
    """Evaluate every instance of a claim: each predicate x each model (first axis entry) x each column.

    Args:
        claim: of experiments/.
        published: first axis entry -> numbers of the paper.
        measured: the same of ours.
    """
    models = claim.only or list(published)
    counts = {"published": [0, 0], "measured": [0, 0]}
    failing = []
    for model in models:
        for column in claim.columns or [None]:
            for predicate in claim.holds:
                for side, numbers in (
                    ("published", published[model]),
                    ("measured", measured[model]),
                ):
                    truth = evaluate(predicate, numbers, column)
                    if truth is not None:
                        counts[side][0] += truth
                        counts[side][1] += 1
                    if side == "measured" and truth is False:
                        failing.append(" ".join(filter(None, (model, column, predicate))))
    return ClaimResult(
        claim.text,
        claim.where,
        tuple(counts["published"]),
        tuple(counts["measured"]),
        tuple(failing),
    )
