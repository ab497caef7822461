"""Average bits of a weight as the 2/4/16-bit paper counts them, scales and zero points included (Eq. 6, 10).

    n + (n + Ns) / g1 + (Ns + 16) / (g1 g2)              second order, Eq. 6's branch that the text calls (7)
    a (second order of 2 bits) + (1 - a) 4               Eq. 10: a is the share of 2-bit groups
    + (16 + 16 - 2) r                                    section 4.2: a share r of outliers, in CSR

Li et al. (ICCAD 2024). Eq. 10 gives groups of 4 bits neither scale nor zero: that holds with one of each a row, which
is stored here and counted in bits_per_weight, not in this average.
"""

from __future__ import annotations


def second_order(n: int, g1: int, g2: int, scale_bits: int = 4) -> float:
    """Bits a weight of n-bit groups of g1 whose scales are codes, g2 of them with a step and a zero.

    >>> second_order(2, 8, 16)
    2.90625
    """
    return n + (n + scale_bits) / g1 + (scale_bits + 16) / (g1 * g2)


def average(narrow: float, g1: int, g2: int, outliers: float = 0.0) -> float:
    """Eq. 10: bits a weight where this share of groups has 2 bits and the others 4; outliers: their share of weights.

    >>> average(0.75, 16, 16)
    2.83984375
    """
    return narrow * second_order(2, g1, g2) + (1 - narrow) * 4 + 30 * outliers
