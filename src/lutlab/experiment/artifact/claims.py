"""Evaluate a claim's predicates on numbers: a tiny, safe expression language.

    q4_g32 <= q4_g64                        rows, for each value of the axes before the last, in the column at hand
    fp16.latency_1gpu / q3.latency_1gpu     rows and their columns
    "llama-7b/q4/g16" < "llama-7b/fp16"     any rows, by their whole keys
    on_front("g*") > 0                      points on the Pareto front of the figure whose keys match a pattern
    front("q4*") < front("*")               points on the front of the matching points alone
    dominated("q3/*", "q4/*") > 0           points of the first pattern that one of the second dominates

Also allowed: numbers, + - * /, comparisons, `and`, `or`, `not`, `abs`. Nothing else parses.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from lutlab.errors import LutlabError, nearest
from lutlab.experiment.artifact.artifact import Claim
from lutlab.experiment.artifact.outcome import ClaimResult, Curve
from lutlab.experiment.artifact.pareto import Better, Point, dominates, front

Numbers = Mapping[
    str, Mapping[str, float | None]
]  # row name -> column -> value, None where there is none
Points = Mapping[str, Point | None]  # row name -> (x, y), None where one of them is missing


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


@dataclass(frozen=True)
class _Scope:
    """Meanings of names: rows by their names here, all rows by whole key, the column at hand, the points of a front."""

    rows: Numbers
    column: str | None = None
    all_rows: Numbers = field(default_factory=dict)
    points: Points = field(default_factory=dict)
    larger: Better = (True, True)


def evaluate(predicate: str, numbers: Numbers, column: str | None = None) -> bool | None:
    """Truth of a predicate; None where a number it needs is missing.

    >>> evaluate("a <= 2 * b", {"a": {"ppl": 3.0}, "b": {"ppl": 2.0}}, "ppl")
    True

    Raises:
        LutlabError: the predicate does not parse or names an unknown row or column.
    """
    return _truth(predicate, _Scope(numbers, column, numbers))


def _truth(predicate: str, scope: _Scope) -> bool | None:
    try:
        return bool(_value(_parse(predicate), scope))
    except _Undecidable:
        return None


def _parse(predicate: str) -> ast.expr:
    try:
        return ast.parse(predicate, mode="eval").body
    except SyntaxError as error:
        raise LutlabError(f"claim '{predicate}' does not parse: {error.msg}") from error


def _value(node: ast.expr, scope: _Scope) -> float | bool:
    def value(child: ast.expr) -> float | bool:
        return _value(child, scope)

    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=row) if scope.column is not None:
            return _number(scope.rows, row, scope.column)
        case ast.Attribute(value=ast.Name(id=row), attr=named):
            return _number(scope.rows, row, named)
        case ast.Constant(value=str() as row) if scope.column is not None:
            return _number(scope.all_rows, row, scope.column)
        case ast.Attribute(value=ast.Constant(value=str() as row), attr=named):
            return _number(scope.all_rows, row, named)
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
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _COUNTS:
            patterns = [a.value for a in arguments if isinstance(a, ast.Constant)]
            if len(patterns) == len(arguments) == _COUNTS[name]:
                return _count(name, patterns, scope)
    raise LutlabError(
        f"'{ast.unparse(node)}' is not allowed in a claim: use row names, name.column, numbers, + - * /, comparisons, "
        f"and, or, not, abs, {', '.join(_COUNTS)}"
    )


def _number(numbers: Numbers, row: str, column: str) -> float:
    if row not in numbers:
        raise LutlabError(f"a claim names row '{row}': {nearest(row, numbers)}")
    if column not in numbers[row]:
        raise LutlabError(f"a claim names column '{column}': {nearest(column, numbers[row])}")
    if (found := numbers[row][column]) is None:
        raise _Undecidable
    return found


# ---- counting points of a figure ----

_COUNTS = {"on_front": 1, "front": 1, "dominated": 2}  # function -> number of patterns


def _count(name: str, patterns: Sequence[str], scope: _Scope) -> int:
    chosen = [_matching(pattern, scope.points) for pattern in patterns]
    points = scope.points
    if any(point is None for point in points.values()):
        raise _Undecidable  # a point not measured might dominate any other
    if name == "dominated":
        worse, better = chosen
        return sum(
            any(dominates(points[b], points[w], scope.larger) for b in better) for w in worse
        )
    rows = list(points) if name == "on_front" else chosen[0]
    found = {rows[i] for i in front([points[row] for row in rows], scope.larger)}
    return len(found.intersection(chosen[0]))


def _matching(pattern: str, points: Points) -> list[str]:
    rows = [row for row in points if fnmatchcase(row, pattern)]
    if not rows:
        raise LutlabError(f"'{pattern}' in a claim matches no point: {nearest(pattern, points)}")
    return rows


# ---- a claim over a whole table ----


def judge(
    claim: Claim, published: Numbers, measured: Numbers, curve: Curve | None = None
) -> ClaimResult:
    """Evaluate every instance of a claim: each predicate x each scope x each column.

    Args:
        claim: of experiments/.
        published: row key -> column -> the paper's number.
        measured: the same of ours.
        curve: the artifact's figure, for `fronts`.
    """
    sides = {"published": published, "measured": measured}
    counts = {side: [0, 0] for side in sides}
    failing = []
    for side, numbers in sides.items():
        for instance, truth in (*_holds(claim, numbers), *_fronts(claim, numbers, curve)):
            if truth is not None:
                counts[side][0] += truth
                counts[side][1] += 1
            if side == "measured" and truth is False:
                failing.append(instance)
    return ClaimResult(
        claim.text,
        claim.where,
        tuple(counts["published"]),
        tuple(counts["measured"]),
        tuple(failing),
    )


def _holds(claim: Claim, numbers: Numbers) -> list[tuple[str, bool | None]]:
    """Every predicate in every scope that has the rows it names."""
    scopes = _grouped(numbers, claim.only, lambda key: key.rpartition("/")[0])
    instances = []
    for predicate in claim.holds:
        named = {n.id for n in ast.walk(_parse(predicate)) if isinstance(n, ast.Name)} - {"abs"}
        fitting = {scope: rows for scope, rows in scopes.items() if named <= set(rows)}
        if not named:
            fitting = {"": {}}  # whole keys mean the same everywhere
        if not fitting and scopes:  # let the error name what is wrong
            fitting = {"": {name: row for rows in scopes.values() for name, row in rows.items()}}
        for scope, rows in fitting.items():
            for column in claim.columns or [None]:
                truth = _truth(predicate, _Scope(rows, column, numbers))
                instances.append((" ".join(filter(None, (scope, column, predicate))), truth))
    return instances


def _fronts(claim: Claim, numbers: Numbers, curve: Curve | None) -> list[tuple[str, bool | None]]:
    if not claim.fronts or curve is None:
        return []
    points = {
        key: _point(row[curve.x], row[curve.y])
        for key, row in numbers.items()
        if not fnmatchcase(key, curve.baseline)
    }
    groups = _grouped(points, claim.only, curve.front_of)
    return [
        (
            " ".join(filter(None, (group, predicate))),
            _truth(predicate, _Scope({}, points=members, larger=curve.larger)),
        )
        for predicate in claim.fronts
        for group, members in groups.items()
    ]


def _point(x: float | None, y: float | None) -> Point | None:
    return None if x is None or y is None else (x, y)


def _grouped(
    rows: Mapping[str, Any], only: Sequence[str], prefix: Callable[[str], str]
) -> dict[str, dict[str, Any]]:
    """Rows by prefix, under the rest of their keys; only prefixes that match one of `only`, if given."""
    groups: dict[str, dict[str, Any]] = {}
    for key, row in rows.items():
        group = prefix(key)
        if not only or any(fnmatchcase(group, pattern) for pattern in only):
            groups.setdefault(group, {})[key[len(group) :].lstrip("/")] = row
    return groups
