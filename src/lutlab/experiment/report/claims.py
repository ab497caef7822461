"""A claim as a line: does it hold in the paper's own numbers, does it in ours, where not, and where noise hides it."""

from __future__ import annotations

from dataclasses import dataclass

from lutlab.experiment.artifact.outcome import ClaimResult

HOLDS, BREAKS, UNDECIDED = "✓", "✗", "–"


@dataclass(frozen=True)
class ClaimView:
    """`paper` reads `✓ paper 12/12`, `ours` `✗ ours 9 hold, 1 fails, 2 below noise`; `sign` is that of ours."""

    text: str
    where: str
    sign: str
    paper: str
    ours: str
    failing: tuple[str, ...]
    below_noise: tuple[str, ...] = ()

    def instances(self, most: int | None = None) -> str:
        """`— fails: …. below noise: …`: the instances that do not hold in ours, at most `most` of each kind.

        Empty where all hold.
        """
        kinds = {"fails": self.failing, "below noise": self.below_noise}
        told = [f"{kind}: {_listed(names, most)}" for kind, names in kinds.items() if names]
        return f"— {'. '.join(told)}" if told else ""


def view(claim: ClaimResult) -> ClaimView:
    """Print a claim's counts."""
    holding, decidable = claim.measured
    hidden = len(claim.below_noise)
    sign = _sign(holding, decidable)
    ours = f"{UNDECIDED} ours not decidable here"
    if claim.not_judged:
        ours = f"{UNDECIDED} ours not judged: {claim.not_judged}"
    elif decidable or hidden:
        fail = decidable - holding
        ours = f"{sign} ours {holding} hold{'s' * (holding == 1)}, {fail} fail{'s' * (fail == 1)}, {hidden} below noise"
    if claim.repeated:
        ours += f" ({claim.repeated} of the same records not counted)"
    return ClaimView(
        text=claim.text,
        where=claim.where,
        sign=sign,
        paper=_paper(*claim.published),
        ours=ours,
        failing=claim.failing,
        below_noise=claim.below_noise,
    )


def _sign(holding: int, decidable: int) -> str:
    if not decidable:
        return UNDECIDED
    return HOLDS if holding == decidable else BREAKS


def _paper(holding: int, decidable: int) -> str:
    if not decidable:
        return f"{UNDECIDED} paper not decidable here"
    return f"{_sign(holding, decidable)} paper {holding}/{decidable}"


def _listed(names: tuple[str, ...], most: int | None) -> str:
    if most is None or len(names) <= most:
        return "; ".join(names)
    return "; ".join((*names[:most], f"and {len(names) - most} more"))
