"""The Pareto front: points that no other point beats on one axis without losing on the other.

a dominates b: a is at least as good as b on both axes and better on one. The front: points that none dominates.
"""

from __future__ import annotations

from collections.abc import Sequence

Point = tuple[float, float]
Better = tuple[bool, bool]  # for x and y: is the larger value the better one


def dominates(a: Point, b: Point, larger: Better) -> bool:
    """Whether `a` dominates `b`; equal points do not dominate each other.

    >>> dominates((4.0, 9.0), (3.0, 9.0), (True, False))
    True
    """
    gains = [x - y if up else y - x for x, y, up in zip(a, b, larger, strict=True)]
    return all(gain >= 0 for gain in gains) and any(gain > 0 for gain in gains)


def front(points: Sequence[Point], larger: Better) -> list[int]:
    """Indices of the points that none dominates, in the order given; a point that is not a number is never on it.

    >>> front([(1.0, 9.0), (2.0, 9.0), (3.0, 12.0), (2.5, 13.0)], (True, False))
    [1, 2]
    """
    # signed so that smaller is better, then from left to right: what is on it goes further down
    signed = [tuple(-v if up else v for v, up in zip(p, larger, strict=True)) for p in points]
    real = [i for i, (x, y) in enumerate(signed) if x == x and y == y]
    members: list[int] = []
    for i in sorted(real, key=signed.__getitem__):
        if not members or signed[i][1] < signed[members[-1]][1] or signed[i] == signed[members[-1]]:
            members.append(i)
    return sorted(members)
