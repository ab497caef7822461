"""Numbers with their chance, to first order: what is computed of them has the error of what it is made of.

    e(a + b) = e(a) + e(b), sample by sample where both are of the same samples; e(a b) = b e(a) + a e(b), …

So two perplexities over the same windows have a difference that is known far better than either of them.

An error is itself estimated of its samples, of four windows only roughly: so a difference is told from 0 by Student's
t, 2 errors of many samples, 3.3 of four, 14 of two. Of several sources the degrees of freedom are those of Welch (1947)
and Satterthwaite (1946): (sum of v)^2 / sum of v^2 / (n - 1), v: a source's variance, n: number of its samples.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from lutlab.base.lazy import np
from lutlab.evaluators.noise import standard_error
from lutlab.experiment.store.noise import Shares

DRAWS = 200
# Chance that a normal variate is above 2: what a difference may be by chance, to either side.
TAIL = statistics.NormalDist().cdf(-2)
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

    @property
    def noise(self) -> float:
        """The least distance from 0 that chance does not explain: Student's t times the error; 0 of an exact number."""
        variances = [(standard_error(parts) ** 2, len(parts) - 1) for parts in self.shares.values()]
        if not (total := sum(variance for variance, _ in variances)):
            return 0.0
        if math.isinf(total) or any(variance and not freedom for variance, freedom in variances):
            return math.inf  # of one sample
        freedom = total**2 / sum(v**2 / n for v, n in variances if v)
        return student(freedom) * math.sqrt(total)

    def __str__(self) -> str:
        """`-0.93 ± 0.12`: the error with two digits, the value with as many decimals."""
        if not 0 < self.error < math.inf:
            return f"{self.value:+.4g}"
        decimals = min(9, max(0, 1 - math.floor(math.log10(self.error))))
        return f"{self.value:+.{decimals}f} ± {self.error:.{decimals}f}"

    def __add__(self, other: Uncertain) -> Uncertain:
        return _combined(self.value + other.value, (1, self), (1, other))

    def __sub__(self, other: Uncertain) -> Uncertain:
        return _combined(self.value - other.value, (1, self), (-1, other))

    def __mul__(self, other: Uncertain) -> Uncertain:
        return _combined(self.value * other.value, (other.value, self), (self.value, other))

    def __truediv__(self, other: Uncertain) -> Uncertain:
        ratio = self.value / other.value
        return _combined(ratio, (1 / other.value, self), (-ratio / other.value, other))

    def __neg__(self) -> Uncertain:
        return _combined(-self.value, (-1, self))

    def __abs__(self) -> Uncertain:
        return self if self.value >= 0 else -self


def _combined(value: float, *terms: tuple[float, Uncertain]) -> Uncertain:
    """A value that deviates as the sum of factor * term does."""
    shares: dict[str, tuple[float, ...]] = {}
    for factor, term in terms:
        for source, parts in term.shares.items():
            so_far = shares.get(source) or (0.0,) * len(parts)
            shares[source] = tuple(s + factor * e for s, e in zip(so_far, parts, strict=True))
    return Uncertain(value, shares, tuple(s for _, term in terms for s in term.sources))


def mean(numbers: list[Uncertain]) -> Uncertain:
    """The mean of at least one number.

    Numbers of one record move together: where their chance has one source, share by share, and where it has several, as
    that of `accuracy` and `accuracy_norm`, nobody knows how far, so that their errors add up.
    """
    value = statistics.mean(number.value for number in numbers)
    by_record: dict[str, list[Uncertain]] = {}
    for i, number in enumerate(numbers):
        record = " ".join(sorted({source.partition(" ")[0] for source in number.sources}))
        by_record.setdefault(record or str(i), []).append(number)
    terms: list[Uncertain] = []
    for record, group in by_record.items():
        of_one_source = len({frozenset(number.shares) for number in group}) == 1
        terms += group if of_one_source else [_added(record, group)]
    return _combined(value, *((1 / len(numbers), term) for term in terms))


def _added(record: str, numbers: list[Uncertain]) -> Uncertain:
    """A sum whose error is the sum of errors, in equal shares of a source of its own."""
    samples = max(len(parts) for number in numbers for parts in number.shares.values())
    share = sum(number.error for number in numbers) / math.sqrt(samples)
    sources = tuple(source for number in numbers for source in number.sources)
    total = sum(number.value for number in numbers)
    return Uncertain(total, {f"{record} added": (share,) * samples}, sources)


def student(freedom: float) -> float:
    """Value that Student's t with some degrees of freedom exceeds with probability TAIL."""
    from scipy.special import stdtrit

    return float(-stdtrit(freedom, TAIL))


def drawn(numbers: Mapping[Name, Uncertain]) -> Iterator[dict[Name, float]]:
    """DRAWS sets of values as other samples might have given them; the same numbers give the same draws.

    Each share is multiplied by a normal variate of its sample, which moves all numbers of that sample together, and
    that by a factor of its source, which makes Student's t of them: the error is known no better than that.
    """
    draw = np.random.default_rng(0)
    moved = {name: np.full(DRAWS, number.value) for name, number in numbers.items()}
    for source in dict.fromkeys(s for number in numbers.values() for s in number.shares):
        of_source = {name: n.shares[source] for name, n in numbers.items() if source in n.shares}
        samples = len(next(iter(of_source.values())))
        freedom = max(1, samples - 1)
        factor = np.sqrt(freedom / draw.chisquare(freedom, DRAWS))
        variates = draw.standard_normal((samples, DRAWS)) * factor
        for name, shares in of_source.items():
            moved[name] += np.array(shares) @ variates
    for i in range(DRAWS):
        yield {name: float(values[i]) for name, values in moved.items()}
