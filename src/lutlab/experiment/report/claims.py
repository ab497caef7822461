"""A claim as a line: does it hold in the paper's own numbers, does it hold in ours, and where not."""

from __future__ import annotations

from dataclasses import dataclass

from lutlab.experiment.artifact.outcome import ClaimResult

HOLDS, BREAKS, UNDECIDED = "✓", "✗", "–"


@dataclass(frozen=True)
class ClaimView:
    """`paper` and `ours` read like `✓ paper 12/12` and `✗ ours 11/12`; `sign` is that of ours."""

    text: str
    where: str
    sign: str
    paper: str
    ours: str
    failing: tuple[str, ...]

    def failing_text(self, most: int | None = None) -> str:
        """The instances that do not hold in ours, at most `most` of them and then how many more."""
        if most is None or len(self.failing) <= most:
            return "; ".join(self.failing)
        return "; ".join((*self.failing[:most], f"and {len(self.failing) - most} more"))


def view(claim: ClaimResult) -> ClaimView:
    """Print a claim's two counts."""
    sign = _sign(claim.measured)
    return ClaimView(
        text=claim.text,
        where=claim.where,
        sign=sign,
        paper=_count("paper", claim.published),
        ours=_count("ours", claim.measured, claim.not_judged),
        failing=claim.failing,
    )


def _sign(count: tuple[int, int]) -> str:
    holds, decidable = count
    if not decidable:
        return UNDECIDED
    return HOLDS if holds == decidable else BREAKS


def _count(whose: str, count: tuple[int, int], not_judged: str = "") -> str:
    holds, decidable = count
    if not_judged:
        return f"{UNDECIDED} {whose} not judged: {not_judged}"
    if not decidable:
        return f"{UNDECIDED} {whose} not decidable here"
    return f"{_sign(count)} {whose} {holds}/{decidable}"
