"""A group of weights cut into intervals by codewords: what a round of binary coding needs, in O(2^k log g) a group.

    n_j, s_j = count and sum of the weights nearest to codeword j = differences of prefix sums at the midpoints
    B^T B = sum_j n_j v_j v_j^T,  B^T w = sum_j s_j v_j,  v_j in {-1, +1}^(1+k) the signs of codeword j

First and second order Walsh coefficients of n and s: one butterfly over j gives all of them, B^T B exactly (integers).
Used by alternating.py (Xu et al., ICLR 2018), which says what the constant plane and `folded` are.

Inside: n groups of `length` weights; coefficients [n, 1+k] float64, the constant plane first, then the k free planes,
descending. L = 2^k codewords in natural order: j counts up, its highest bit is the sign of the largest free plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# B^T B holds integers; a pivot below this share of its diagonal g is a plane that depends on the others.
SINGULAR = 1e-9


@dataclass(frozen=True)
class SortedGroups:
    """n groups of `length` weights: ascending [n * length] float32; prefix [n * (length + 1)] float64 sums from 0."""

    ascending: torch.Tensor
    prefix: torch.Tensor
    square: torch.Tensor  # [n] float64, sum of squares
    length: int


def sort_groups(values: torch.Tensor) -> SortedGroups:
    """Sort the rows of [n, length] float32."""
    import numpy as np
    import torch

    n, length = values.shape
    if values.device.type == "cpu":
        # numpy sorts short float32 rows with vector instructions, some 50 times faster than torch.sort.
        ascending = torch.from_numpy(np.sort(values.numpy(), axis=1))
    else:
        ascending = torch.sort(values, dim=1).values
    prefix = values.new_zeros(n, length + 1, dtype=torch.float64)
    torch.cumsum(ascending, dim=1, dtype=torch.float64, out=prefix[:, 1:])
    square = torch.linalg.vector_norm(values, dim=1, dtype=torch.float64).square_()
    return SortedGroups(ascending.view(-1), prefix.view(-1), square, length)


def ceil32(values: torch.Tensor) -> torch.Tensor:
    """The smallest float32 at or above each float64: a float32 is below the one exactly if it is below the other."""
    import torch

    rounded = values.float()
    up = torch.nextafter(rounded, torch.full_like(rounded, torch.inf))
    return torch.where(rounded.double() < values, up, rounded)


def edges_at(data: SortedGroups, row: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    """Flat index of the first weight of group row[i] that is >= thresholds[i, j]: int32 [n, t].

    Branchless: all searches take the same steps. Four operations a step, 32-bit indices: this is half of a round.
    """
    import torch

    wanted = ceil32(thresholds).view(-1)
    first = (row * data.length).to(torch.int32).unsqueeze(1)
    at = first.repeat(1, thresholds.shape[1]).view(-1)
    left = data.length
    while left > 1:
        half = left // 2
        at.add_(data.ascending[half - 1 :].index_select(0, at) < wanted, alpha=half)
        left -= half
    at += data.ascending.index_select(0, at) < wanted
    return at.view(thresholds.shape)


def prefix_sums(data: SortedGroups, row: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """Sum of the weights of a group before each edge: float64 [n, t]. A row of prefix is one longer than a group."""
    return data.prefix.index_select(0, (edges + row.int().unsqueeze(1)).view(-1)).view_as(edges)


def codewords(coefficients: torch.Tensor) -> torch.Tensor:
    """[n, 1+k] -> [n, 2^k]: constant + all signed sums of the free planes, in natural order."""
    import torch

    both = torch.tensor([-1.0, 1.0], dtype=torch.float64, device=coefficients.device)
    words = coefficients[:, :1]
    for plane in coefficients[:, 1:].unbind(1):
        words = (words.unsqueeze(2) + plane.view(-1, 1, 1) * both).flatten(1)
    return words


def _irregular(words: torch.Tensor, folded: bool) -> torch.Tensor:
    """Groups whose natural order is not the sorted one: some alpha is below the sum of the smaller ones."""
    bad = (words[:, 1:] < words[:, :-1]).any(dim=1)
    if folded:
        bad |= words[:, 0] < 0
    return bad.nonzero().squeeze(1)


def ordered(
    words: torch.Tensor, folded: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sort the codewords a weight is compared with; folded, a negative codeword stands for its opposite.

    Returns:
        levels [n, L] ascending; and for the m groups whose order is not natural: which, the natural index of their
        levels [m, L] int64, and -1 where a level is the opposite of its codeword [m, L].
    """
    import torch

    which = _irregular(words, folded)
    picked = words[which]
    signs = torch.ones_like(picked)
    if folded:
        signs[picked < 0] = -1
    ascending, order = torch.sort(picked * signs, dim=1, stable=True)
    levels = words.index_copy(0, which, ascending) if len(which) else words
    return levels, which, order, signs.gather(1, order)


def normal_equations(
    data: SortedGroups, row: torch.Tensor, coefficients: torch.Tensor, folded: bool
) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]]:
    """B^T B and B^T w of the nearest codes, as nested lists of [n] vectors."""
    import torch

    levels, which, order, signs = ordered(codewords(coefficients), folded)
    n, count = levels.shape
    edges = torch.empty(n, count + 1, dtype=torch.int32, device=levels.device)
    edges[:, 0] = row * data.length
    edges[:, -1] = edges[:, 0] + data.length
    if count > 1:
        edges[:, 1:-1] = edges_at(data, row, (levels[:, 1:] + levels[:, :-1]) / 2)
    both = torch.stack((edges.diff(dim=1).double(), prefix_sums(data, row, edges).diff(dim=1)))
    if len(which):
        natural = torch.zeros_like(both[:, which])
        natural[0].scatter_(1, order, both[0, which])
        natural[1].scatter_(1, order, both[1, which] * signs)
        both[:, which] = natural
    counts, sums = _walsh(both.permute(2, 0, 1).contiguous()).unbind(1)
    free = coefficients.shape[1] - 1
    mask = [0, *(1 << (free - 1 - plane) for plane in range(free))]
    gram = [[counts[a ^ b] for b in mask] for a in mask]
    return gram, [sums[a] for a in mask]


def _walsh(values: torch.Tensor) -> torch.Tensor:
    """[2^k, ...] -> [2^k, ...]: out[m] = sum_j values[j] * product over bits b of m of (+1 if bit b of j else -1)."""
    import torch

    count, *rest = values.shape
    half = 1
    while half < count:
        pairs = values.view(-1, 2, half, *rest)
        low, high = pairs[:, 0], pairs[:, 1]
        values = torch.stack((low + high, high - low), dim=1).view(count, *rest)
        half *= 2
    return values


def squared_error(
    square: torch.Tensor,
    gram: list[list[torch.Tensor]],
    rhs: list[torch.Tensor],
    a: tuple[torch.Tensor, ...],
) -> torch.Tensor:
    """||w - B a||^2 = w.w - 2 a.(B^T w) + a.(B^T B) a, [n] float64."""
    error = square.clone()
    for i, a_i in enumerate(a):
        slope = rhs[i] * -2
        for j, a_j in enumerate(a):
            slope += gram[i][j] * a_j
        error += slope * a_i
    return error


def least_squares(
    gram: list[list[torch.Tensor]],
    rhs: list[torch.Tensor],
    a: tuple[torch.Tensor, ...],
    length: int,
) -> list[torch.Tensor]:
    """The minimiser of ||w - B a||^2 by L D L^T, elementwise over groups.

    Where planes depend on each other (more codewords than weights, constant weights) minimisers form a subspace; a
    dependent plane then keeps its present coefficient. A minimum-norm choice would be as good now, but would make two
    equal planes of equal size, which no later round can tell apart.
    """
    import torch

    size = len(rhs)
    step = [rhs[i] - sum(gram[i][j] * a[j] for j in range(size)) for i in range(size)]
    schur = [list(row) for row in gram]
    scaled: list[dict[int, torch.Tensor]] = [{} for _ in range(size)]
    for b in range(size):
        pivot = schur[b][b]
        inverse = torch.where(pivot > SINGULAR * length, pivot.reciprocal(), 0.0)
        for i in range(b + 1, size):
            scaled[b][i] = schur[i][b] * inverse
            for j in range(b + 1, i + 1):
                schur[i][j] = schur[i][j] - scaled[b][i] * schur[j][b]
            step[i] = step[i] - scaled[b][i] * step[b]
        step[b] = step[b] * inverse
    for b in reversed(range(size)):
        for i in range(b + 1, size):
            step[b] = step[b] - scaled[b][i] * step[i]
    return [a[i] + step[i] for i in range(size)]


def nearest_codes(values: torch.Tensor, coefficients: torch.Tensor, folded: bool) -> torch.Tensor:
    """Nearest codes of weights in their own order; half way between two codewords, the upper one.

    Args:
        values: [n, length] float32, signed.
        coefficients: [n, 1+k] float64. Folded, the constant plane is bit 0 of a code and the free planes follow;
            otherwise the free planes begin at bit 0.
        folded: there is no offset.

    Returns:
        [n, length] uint8.
    """
    import torch

    levels, which, order, signs = ordered(codewords(coefficients), folded)
    count, free = levels.shape[1], coefficients.shape[1] - 1
    natural = torch.arange(count, device=values.device)
    code = torch.full_like(natural, int(folded))
    for plane in range(free):
        code |= ((natural >> (free - 1 - plane)) & 1) << (plane + folded)
    opposite = 2 ** (free + folded) - 1
    table = code.to(torch.uint8).repeat(len(levels), 1)
    table[which] = torch.where(signs > 0, code[order], code[order] ^ opposite).to(torch.uint8)

    size = values.abs() if folded else values
    thresholds = ceil32((levels[:, 1:] + levels[:, :-1]) / 2)
    codes = table[:, :1].repeat(1, values.shape[1])
    for j in range(count - 1):  # passing a threshold flips the bits in which its two codes differ
        passed = (size >= thresholds[:, j : j + 1]).view(torch.uint8)
        codes ^= passed.mul_(table[:, j : j + 1] ^ table[:, j + 1 : j + 2])
    if folded:
        codes ^= (values < 0).view(torch.uint8).mul_(opposite)
    return codes
