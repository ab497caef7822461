"""Numbers with their chance, to first order: what is computed of them has the error of what it is made of.

    e(a + b) = e(a) + e(b), sample by sample where both are of the same samples; e(a b) = b e(a) + a e(b), …

So two perplexities over the same windows have a difference that is known far better than either of them.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from lutlab.evaluators.noise import standard_error
from lutlab.experiment.store.noise import Shares
from lutlab.lazy import np

DRAWS = 200
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Uncertain:
    """A number. shares: of its deviation (store/noise.py), none of an exact one; sources: the records that it is of."""

    value: float
    shares: Shares = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """Standard error; 0 of an exact number."""
        return standard_error([*itertools.chain.from_iterable(self.shares.values())])

    def __add__(self, other: Uncertain) -> Uncertain:
        return _of(self.value + other.value, (1, self), (1, other))

    def __sub__(self, other: Uncertain) -> Uncertain:
        return _of(self.value - other.value, (1, self), (-1, other))

    def __mul__(self, other: Uncertain) -> Uncertain:
        return _of(self.value * other.value, (other.value, self), (self.value, other))

    def __truediv__(self, other: Uncertain) -> Uncertain:
        ratio = self.value / other.value
        return _of(ratio, (1 / other.value, self), (-ratio / other.value, other))

    def __neg__(self) -> Uncertain:
        return _of(-self.value, (-1, self))

    def __abs__(self) -> Uncertain:
        return self if self.value >= 0 else -self


def _of(value: float, *terms: tuple[float, Uncertain]) -> Uncertain:
    """A value that deviates as the sum of factor * term does."""
    shares: dict[str, tuple[float, ...]] = {}
    for factor, term in terms:
        for source, own in term.shares.items():
            so_far = shares.get(source) or (0.0,) * len(own)
            shares[source] = tuple(s + factor * e for s, e in zip(so_far, own, strict=True))
    return Uncertain(value, shares, tuple(s for _, term in terms for s in term.sources))


def mean(numbers: list[Uncertain]) -> Uncertain:
    """The mean of at least one number."""
    value = statistics.mean(number.value for number in numbers)
    return _of(value, *((1 / len(numbers), number) for number in numbers))


def drawn(numbers: Mapping[Name, Uncertain]) -> Iterator[dict[Name, float]]:
    """DRAWS sets of values as other samples might have given them; the same numbers give the same draws.

    Each share is multiplied by a normal variate of its sample, which moves all numbers of that sample together.
    """
    normal = np.random.default_rng(0)
    variates: dict[str, np.ndarray] = {}
    moved = {}
    for name, number in numbers.items():
        moved[name] = np.full(DRAWS, number.value)
        for source, own in number.shares.items():
            if source not in variates:
                variates[source] = normal.standard_normal((len(own), DRAWS))
            moved[name] += np.array(own) @ variates[source]
    for i in range(DRAWS):
        yield {name: float(values[i]) for name, values in moved.items()}
