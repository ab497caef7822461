"""Predicates of claims, evaluated on numbers: a tiny, safe expression language.

    q4_g32 <= q4_g64                        rows, for each value of the axes before the last, in the column at hand
    fp16.latency_1gpu / q3.latency_1gpu     rows and their columns
    "llama-7b/q4/g16" < "llama-7b/fp16"     any rows, by their whole keys
    on_front("g*") > 0                      points on the Pareto front of the figure whose keys match a pattern
    front("q4*") < front("*")               points on the front of the matching points alone
    dominated("q3/*", "q4/*") > 0           points of the first pattern that one of the second dominates

Also allowed: numbers, + - * /, comparisons, `and`, `or`, `not`, `abs`. Nothing else parses.

A comparison of numbers that chance moves is decided where its two sides are further apart than chance explains
(uncertain.py, `noise`); else it is below noise, and so is a predicate that it decides. One that divides by zero, or
whose numbers grow too large for a float, cannot be decided, as if a number of it were missing.
"""

from __future__ import annotations

import ast
import math
import operator
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase

from lutlab.base.errors import LutlabError, nearest
from lutlab.experiment.artifact.pareto import Better, Point, dominates, front
from lutlab.experiment.artifact.uncertain import Uncertain

Number = float | Uncertain
Numbers = Mapping[str, Mapping[str, Number | None]]  # row name -> column -> value, None: missing
Points = Mapping[str, Point | None]  # row name -> (x, y), None where one of them is missing
_DEEPEST = 50  # operations inside each other; the deepest of experiments/ has 11
_LONGEST = 2000  # characters
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


class Truth(Enum):
    """Whether a predicate is true; MISSING: a number that it needs was not measured, or is none, as 1 / 0."""

    HOLDS = "holds"
    FAILS = "fails"
    BELOW_NOISE = "below noise"
    MISSING = "missing"


class _Missing(Exception):
    """A value that the predicate needs was not measured, or is no number."""


@dataclass(frozen=True)
class Scope:
    """Meanings of names: rows by their names here, all rows by whole key, the column at hand, the points of a front."""

    rows: Numbers
    column: str | None = None
    all_rows: Numbers = field(default_factory=dict)
    points: Points = field(default_factory=dict)
    larger: Better = (True, True)


def evaluate(predicate: str, numbers: Numbers, column: str | None = None) -> bool | None:
    """Truth of a predicate on exact numbers; None where one that it needs is missing.

    >>> evaluate("a <= 2 * b", {"a": {"ppl": 3.0}, "b": {"ppl": 2.0}}, "ppl")
    True

    Raises:
        LutlabError: the predicate does not parse or names an unknown row or column.
    """
    decided = truth(predicate, Scope(numbers, column, numbers))
    return {Truth.HOLDS: True, Truth.FAILS: False}.get(decided)


def truth(predicate: str, scope: Scope) -> Truth:
    """Truth of a predicate where names mean what the scope says.

    Raises:
        LutlabError: the predicate does not parse or names an unknown row or column.
    """
    try:
        value = _value(parse(predicate), scope)
    except _Missing:
        return Truth.MISSING
    if value is None:
        return Truth.BELOW_NOISE
    if isinstance(value, Uncertain):
        raise LutlabError(f"claim '{predicate}' is a number: compare it with another")
    return Truth.HOLDS if value else Truth.FAILS


def margin(predicate: str, scope: Scope) -> Uncertain | None:
    """Left side minus right side of a predicate that is one comparison of numbers; None of another, or where exact."""
    expression = parse(predicate)
    if not isinstance(expression, ast.Compare):
        return None
    difference = _side(expression.left, scope) - _side(expression.comparators[0], scope)
    return difference if difference.shares else None


def parse(predicate: str) -> ast.expr:
    """The expression of a predicate."""
    shown = textwrap.shorten(predicate, 100, placeholder=" …")
    if len(predicate) > _LONGEST:
        raise LutlabError(
            f"claim '{predicate[:100]} …' is longer than {_LONGEST} characters: split it"
        )
    try:
        expression = ast.parse(predicate, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise LutlabError(f"claim '{shown}' does not parse: {error}") from error
    level: list[ast.AST] = [expression]
    depth = 0
    while level := [child for node in level for child in ast.iter_child_nodes(node)]:
        depth += 1
    if depth > _DEEPEST:
        raise LutlabError(f"claim '{shown}' is nested {depth} deep: {_DEEPEST} is the most")
    return expression


def _value(node: ast.expr, scope: Scope) -> Uncertain | bool | None:
    """A number, or a truth: None where it is below noise."""
    match node:
        case ast.Constant(value=int() | float() as constant) if _is_finite(constant):
            return Uncertain(constant)
        case ast.Name(id=row) if scope.column is not None:
            return _number(scope.rows, row, scope.column)
        case ast.Attribute(value=ast.Name(id=row), attr=named):
            return _number(scope.rows, row, named)
        case ast.Constant(value=str() as row) if scope.column is not None:
            return _number(scope.all_rows, row, scope.column)
        case ast.Attribute(value=ast.Constant(value=str() as row), attr=named):
            return _number(scope.all_rows, row, named)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _computed(op, _side(left, scope), _side(right, scope))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            return _compared(op, _side(left, scope), _side(right, scope))
        case ast.BoolOp(op=op, values=children):
            truths = [_truth(child, scope) for child in children]
            deciding = isinstance(op, ast.Or)  # one true decides `or`, one false `and`
            if deciding in truths:
                return deciding
            return None if None in truths else not deciding
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return None if (holds := _truth(operand, scope)) is None else not holds
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_side(operand, scope)
        case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]):
            return abs(_side(argument, scope))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _COUNTS:
            constants = [a.value for a in arguments if isinstance(a, ast.Constant)]
            patterns = [value for value in constants if isinstance(value, str)]
            if len(patterns) == len(arguments) == _COUNTS[name]:
                return _count(name, patterns, scope)
    raise LutlabError(
        f"'{ast.unparse(node)}' is not allowed in a claim: use row names, name.column, numbers, + - * /, comparisons, "
        f"and, or, not, abs, {', '.join(_COUNTS)}"
    )


def _side(node: ast.expr, scope: Scope) -> Uncertain:
    """The number of an operand."""
    value = _value(node, scope)
    if isinstance(value, Uncertain):
        return value
    raise LutlabError(f"a claim computes with '{ast.unparse(node)}', which is no number")


def _truth(node: ast.expr, scope: Scope) -> bool | None:
    """The truth of an operand."""
    value = _value(node, scope)
    if isinstance(value, Uncertain):
        raise LutlabError(f"a claim takes '{ast.unparse(node)}' for a truth: compare it")
    return value


def _is_finite(constant: float) -> bool:
    """Whether a constant is a number that a float can hold; True and False are none."""
    try:
        return not isinstance(constant, bool) and math.isfinite(constant)
    except OverflowError:
        return False


def _computed(op: ast.operator, left: Uncertain, right: Uncertain) -> Uncertain:
    try:
        value: Uncertain = _BINARY[type(op)](left, right)
    except (ZeroDivisionError, OverflowError) as error:
        raise _Missing from error
    if math.isfinite(left.value) and math.isfinite(right.value) and not math.isfinite(value.value):
        raise _Missing  # too large
    return value


def _compared(op: ast.cmpop, left: Uncertain, right: Uncertain) -> bool | None:
    margin = left - right
    if abs(margin.value) < margin.noise:
        return None
    return _COMPARE[type(op)](left.value, right.value)


def _number(numbers: Numbers, row: str, column: str) -> Uncertain:
    if row not in numbers:
        raise LutlabError(f"a claim names row '{row}': {nearest(row, numbers)}")
    if column not in numbers[row]:
        raise LutlabError(f"a claim names column '{column}': {nearest(column, numbers[row])}")
    if (number := numbers[row][column]) is None:
        raise _Missing
    return number if isinstance(number, Uncertain) else Uncertain(number)


class _Sources(ast.NodeTransformer):
    """Puts the records that a name stands for in its place."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.known = True

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id == "abs":
            return node
        return self._sources(self.scope.rows, node.id, self.scope.column)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not isinstance(node.value, str):
            return node
        return self._sources(self.scope.all_rows, node.value, self.scope.column)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        match node.value:
            case ast.Name(id=row):
                return self._sources(self.scope.rows, row, node.attr)
            case ast.Constant(value=str() as row):
                return self._sources(self.scope.all_rows, row, node.attr)
        return node

    def _sources(self, numbers: Numbers, row: str, column: str | None) -> ast.expr:
        assert column is not None  # without one, `_value` refuses a bare name
        sources = _number(numbers, row, column).sources
        self.known &= bool(sources)
        return ast.Tuple([ast.Constant(source) for source in sources], ast.Load())


def meaning(predicate: str, scope: Scope) -> str:
    """The predicate with records in the place of rows: two that say the same of the same records are equal.

    Empty where a number is of no record. All of a predicate's numbers are to be there (not MISSING).
    """
    sources = _Sources(scope)
    text = ast.unparse(sources.visit(parse(predicate)))
    return text if sources.known else ""


# ---- counting points of a figure ----

_COUNTS = {"on_front": 1, "front": 1, "dominated": 2}  # function -> number of patterns


def _count(name: str, patterns: Sequence[str], scope: Scope) -> Uncertain:
    chosen = [_matching(pattern, scope.points) for pattern in patterns]
    points = {row: point for row, point in scope.points.items() if point is not None}
    if len(points) < len(scope.points):
        raise _Missing  # a point not measured might dominate any other
    if name == "dominated":
        worse, rivals = ([points[row] for row in rows] for rows in chosen)
        # What any rival dominates, one on their front does.
        best_rivals = [rivals[i] for i in front(rivals, scope.larger)]
        return Uncertain(
            sum(any(dominates(b, w, scope.larger) for b in best_rivals) for w in worse)
        )
    rows = list(points) if name == "on_front" else chosen[0]
    best = {rows[i] for i in front([points[row] for row in rows], scope.larger)}
    return Uncertain(len(best.intersection(chosen[0])))


def _matching(pattern: str, points: Points) -> list[str]:
    rows = [row for row in points if fnmatchcase(row, pattern)]
    if not rows:
        raise LutlabError(f"'{pattern}' in a claim matches no point: {nearest(pattern, points)}")
    return rows
