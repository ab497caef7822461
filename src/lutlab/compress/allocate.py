"""Widths of all layers that fit into a budget of bits together: an exact integer program.

    minimise sum_l cost[l, o_l]   over one option o_l a layer   subject to   sum_l bits[l, o_l] <= budget

A multiple-choice knapsack, solved by HiGHS (scipy.optimize.milp): a variable in {0, 1} for each layer and option. Bits
are whole numbers and the budget is checked on them after solving, so it is never exceeded, not by one bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from lutlab.errors import LutlabError
from lutlab.groups import Width

# HiGHS stops within 1e-6 of the optimum, in units of the objective: costs are scaled to this largest difference.
_LARGEST_COST = 1e6
# Where the proof of optimality is given up, for hundreds of layers of equal shapes: the best answer by then stands.
# A count of nodes, unlike a time, gives the same answer on every machine.
_NODES = 5000
_MOST_BITS = 1e9  # a weight, of a budget: far beyond what any takes, and within what a float counts


@dataclass(frozen=True)
class Option:
    """One way to store a layer. width: (q, g), None for full precision; bits: of every buffer; cost: to be low."""

    width: Width | None
    bits: int
    cost: float


def budget_bits(budget: float, weights: int) -> int:
    """The most bits whose quotient by `weights` is at most `budget` bits a weight.

    >>> budget_bits(3.3, 1000)
    3300

    Raises:
        LutlabError: the budget is not a positive number.
    """
    if isinstance(budget, bool) or not 0 < budget <= _MOST_BITS:
        raise LutlabError(
            f"budget={budget}: give a positive number of stored bits a weight, as 3.5"
        )
    bits = math.floor(budget * weights) + 1
    while bits / weights > budget:
        bits -= 1
    return bits


def allocate(options: Mapping[str, Sequence[Option]], budget: int) -> dict[str, Option]:
    """The options of least total cost that fit into the budget.

    Args:
        options: layer name -> at least one option each, of finite cost.
        budget: bits of all layers together.

    Returns:
        Layer name -> one of its options. Of options of equal cost the smaller one, of equal ones the first.

    Raises:
        LutlabError: the smallest options together exceed the budget, or the solver gives up.
    """
    smallest = sum(min(option.bits for option in some) for some in options.values())
    if smallest > budget:
        raise LutlabError(
            f"a budget of {budget} bits is below the smallest possible, {smallest} bits: "
            "raise it, or allow fewer bits or larger groups"
        )
    useful = {name: _undominated(some) for name, some in options.items()}
    layer = np.concatenate([[i] * len(some) for i, some in enumerate(useful.values())])
    every = [option for some in useful.values() for option in some]
    bits = np.array([option.bits for option in every])
    cost = np.concatenate([[o.cost - some[-1].cost for o in some] for some in useful.values()])
    cost *= _LARGEST_COST / (cost.max() or 1.0)
    # What options take beyond the smallest of their layer, without a common factor: small coefficients, small rounding
    # errors in the solver, which gives up on coefficients of 10^10.
    extra = np.concatenate([[o.bits - some[0].bits for o in some] for some in useful.values()])
    unit = math.gcd(*extra.tolist()) or 1
    columns = np.arange(len(every))
    one_each = csr_array((np.ones(len(every)), (layer, columns)))
    rows, lower, upper = [one_each], [np.ones(len(useful))], [np.ones(len(useful))]
    rows.append(csr_array((extra // unit)[None].astype(float)))
    lower.append([0.0])
    upper.append([float((budget - smallest) // unit)])
    while True:
        found = milp(
            cost,
            integrality=np.ones(len(every)),
            bounds=(0, 1),
            constraints=LinearConstraint(
                vstack(rows), np.concatenate(lower), np.concatenate(upper)
            ),
            options={"mip_rel_gap": 0, "node_limit": _NODES},
        )
        if found.x is None:
            raise LutlabError(f"the solver found no allocation of widths: {found.message}")
        chosen = np.flatnonzero(found.x > 0.5)
        if bits[chosen].sum() <= budget:
            return dict(zip(useful, (every[i] for i in chosen), strict=True))
        # the solver's tolerance let too much through: forbid exactly this choice
        rows.append(csr_array(np.isin(columns, chosen)[None].astype(float)))
        lower.append([0.0])
        upper.append([len(useful) - 1.0])


def _undominated(options: Sequence[Option]) -> list[Option]:
    """Options by rising bits and falling cost, without those that are neither smaller nor better than another."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda option: (option.bits, option.cost)):
        if not kept or option.cost < kept[-1].cost:
            kept.append(option)
    return kept
