"""A claim over a whole table: every predicate, in every scope that has the rows it names, in every column.

On the paper's numbers an instance holds or fails. On ours it may also be below noise: other samples might have decided
it otherwise (predicates.py; of fronts, draws of uncertain.py). Instances that say the same of the same records, as
of two models of the paper with one stand-in, are one.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from lutlab.experiment.artifact.artifact import Claim, Curve
from lutlab.experiment.artifact.outcome import ClaimResult
from lutlab.experiment.artifact.predicates import (
    Number,
    Numbers,
    Points,
    Scope,
    Truth,
    margin,
    meaning,
    parse,
    truth,
)
from lutlab.experiment.artifact.uncertain import DRAWS, TAIL, Uncertain, drawn

FLIPS = TAIL * DRAWS  # draws that may decide a front otherwise


# A predicate in a scope: its name, whether it is true, and its meaning, which is that of another instance that says the
# same of the same records.
_Instance = tuple[str, Truth, str]


def judge(
    claim: Claim, published: Numbers, measured: Numbers, curve: Curve | None = None
) -> ClaimResult:
    """Evaluate every instance of a claim: each predicate x each scope x each column.

    Numbers are by row key and column, ours Uncertain where chance moves them or their records are known. The curve is
    the artifact's figure, for `fronts`.
    """
    theirs = _decided([*_holds(claim, published), *_fronts(claim, published, curve)])
    every = _decided([*_holds(claim, measured), *_fronts(claim, measured, curve)])
    ours = list({instance[2]: instance for instance in reversed(every)}.values())[::-1]
    named = {sign: tuple(name for name, truth, _ in ours if truth is sign) for sign in Truth}
    holds, failing = len(named[Truth.HOLDS]), named[Truth.FAILS]
    return ClaimResult(
        claim.text,
        claim.where,
        published=(sum(truth is Truth.HOLDS for _, truth, _ in theirs), len(theirs)),
        measured=(holds, holds + len(failing)),
        failing=failing,
        below_noise=named[Truth.BELOW_NOISE],
        holding=named[Truth.HOLDS],
        repeated=len(every) - len(ours),
    )


def _decided(instances: Sequence[_Instance]) -> list[_Instance]:
    return [instance for instance in instances if instance[1] is not Truth.MISSING]


def _holds(claim: Claim, numbers: Numbers) -> Iterator[_Instance]:
    """Every predicate in every scope that has the rows it names."""
    scopes = _grouped(numbers, claim.only, lambda key: key.rpartition("/")[0])
    columns: Sequence[str | None] = claim.columns or [None]
    for predicate in claim.holds:
        named = {n.id for n in ast.walk(parse(predicate)) if isinstance(n, ast.Name)} - {"abs"}
        fitting = {scope: rows for scope, rows in scopes.items() if named <= set(rows)}
        if not named:
            fitting = {"": {}}  # whole keys mean the same everywhere
        if not fitting and scopes:  # let the error name what is wrong
            fitting = {"": {name: row for rows in scopes.values() for name, row in rows.items()}}
        for (group, rows), column in itertools.product(fitting.items(), columns):
            scope = Scope(rows, column, numbers)
            decided = truth(predicate, scope)
            name = " ".join(filter(None, (group, column, predicate)))
            if decided is Truth.MISSING:
                yield name, decided, name
                continue
            sense = meaning(predicate, scope) or name
            difference = margin(predicate, scope)
            yield f"{name} ({difference})" if difference else name, decided, sense


def _fronts(claim: Claim, numbers: Numbers, curve: Curve | None) -> Iterator[_Instance]:
    if not claim.fronts or curve is None:
        return
    points = {
        key: (row[curve.x], row[curve.y])
        for key, row in numbers.items()
        if not fnmatchcase(key, curve.baseline)
    }
    groups = _grouped(points, claim.only, curve.front_of)
    for predicate, (group, members) in itertools.product(claim.fronts, groups.items()):
        sources = {row: [_sources(n) for n in point] for row, point in members.items()}
        known = all(part for point in sources.values() for part in point)
        name = " ".join(filter(None, (group, predicate)))
        sense = f"{predicate} {sources}" if known else name
        yield name, _of_points(predicate, members, curve), sense


def _of_points(
    predicate: str, members: Mapping[str, tuple[Number | None, Number | None]], curve: Curve
) -> Truth:
    """Truth of a predicate about points: below noise where more than FLIPS draws of the points say otherwise."""

    def truth_of(values: Mapping[tuple[str, int], float]) -> Truth:
        points: Points = {
            row: (values[row, 0], values[row, 1]) if (row, 1) in values else None for row in members
        }
        return truth(predicate, Scope({}, points=points, larger=curve.larger))

    numbers = {
        (row, axis): number if isinstance(number, Uncertain) else Uncertain(number)
        for row, point in members.items()
        for axis, number in enumerate(point)
        if number is not None and None not in point
    }
    decided = truth_of({place: number.value for place, number in numbers.items()})
    if decided is Truth.MISSING or not any(number.shares for number in numbers.values()):
        return decided
    flips = sum(truth_of(values) is not decided for values in drawn(numbers))
    return Truth.BELOW_NOISE if flips > FLIPS else decided


def _sources(number: Number | None) -> tuple[str, ...]:
    return number.sources if isinstance(number, Uncertain) else ()


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
