"""A group of weights cut into intervals by codewords: what a round of binary coding needs, in O(2^k log g) a group.

    n_j, s_j = count and sum of the weights nearest to codeword j = differences of prefix sums at the midpoints
    B^T B = sum_j n_j v_j v_j^T,  B^T w = sum_j s_j v_j,  v_j in {-1, +1}^(1+k) the signs of codeword j

First and second order Walsh coefficients of n and s: one butterfly over j gives all of them, B^T B exactly (integers).
Used by alternating.py (Xu et al., ICLR 2018), which says what the constant plane and `folded` are.

Inside: n groups of `length` weights; coefficients [1+k, n] float64, the constant plane first, then the k free planes,
descending. L = 2^k codewords in natural order: j counts up, its highest bit is the sign of the largest free plane.
Groups are the last axis of all that is small: an operation is then a few long vectors, not many short ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from lutlab.lazy import np, torch

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
    rounded = values.float()
    up = torch.nextafter(rounded, torch.full_like(rounded, torch.inf))
    return torch.where(rounded.double() < values, up, rounded)


def edges_at(data: SortedGroups, row: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    """Flat index of the first weight of group row[i] that is >= thresholds[j, i]: int32 [t, n].

    Branchless: all searches take the same steps. Four operations a step, 32-bit indices: this is half of a round.
    """
    wanted = ceil32(thresholds).view(-1)
    first = (row * data.length).to(torch.int32)
    at = first.repeat(len(thresholds))
    left = data.length
    while left > 1:
        half = left // 2
        at.add_(data.ascending[half - 1 :].index_select(0, at) < wanted, alpha=half)
        left -= half
    at += data.ascending.index_select(0, at) < wanted
    return at.view(thresholds.shape)


def prefix_sums(data: SortedGroups, row: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """Sum of the weights of a group before each edge: float64 [t, n]. A row of prefix is one longer than a group."""
    return data.prefix.index_select(0, (edges + row.int()).view(-1)).view_as(edges)


def codewords(coefficients: torch.Tensor) -> torch.Tensor:
    """[1+k, n] -> [2^k, n]: constant + all signed sums of the free planes, in natural order."""
    words = coefficients[:1]
    for plane in coefficients[1:].unbind(0):
        words = torch.stack((words - plane, words + plane), dim=1).flatten(0, 1)
    return words


def ordered(
    words: torch.Tensor, folded: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sort the codewords a weight is compared with; folded, a negative codeword stands for its opposite.

    Returns:
        levels [L, n] ascending; and for the m groups whose order is not natural (some alpha is below the sum of the
        smaller ones): which, the natural index of their levels [L, m] int64, and -1 where a level is the opposite of
        its codeword [L, m].
    """
    irregular = (words[1:] < words[:-1]).any(dim=0)
    if folded:
        irregular |= words[0] < 0
    which = irregular.nonzero().squeeze(1)
    picked = words[:, which]
    signs = torch.ones_like(picked)
    if folded:
        signs[picked < 0] = -1
    ascending, order = torch.sort(picked * signs, dim=0, stable=True)
    levels = words.index_copy(1, which, ascending) if len(which) else words
    return levels, which, order, signs.gather(0, order)


def normal_equations(
    data: SortedGroups, row: torch.Tensor, coefficients: torch.Tensor, folded: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """B^T B [1+k, 1+k, n] and B^T w [1+k, n] of the nearest codes."""
    levels, which, order, signs = ordered(codewords(coefficients), folded)
    count, n = levels.shape
    edges = torch.empty(count + 1, n, dtype=torch.int32, device=levels.device)
    torch.mul(row, data.length, out=edges[0])
    torch.add(edges[0], data.length, out=edges[-1])
    if count > 1:
        edges[1:-1] = edges_at(data, row, (levels[1:] + levels[:-1]) / 2)
    sums = prefix_sums(data, row, edges)
    both = torch.stack((edges.diff(dim=0).double(), sums.diff(dim=0)), dim=1)  # [L, 2, n]
    if len(which):
        found = both[:, :, which]
        found[:, 1] *= signs
        both[:, :, which] = torch.zeros_like(found).scatter_(
            0, order.unsqueeze(1).expand_as(found), found
        )
    counts, sums = _walsh(both).unbind(1)
    free = len(coefficients) - 1
    mask = torch.tensor([0, *(1 << (free - 1 - plane) for plane in range(free))], device=row.device)
    pairs = mask.unsqueeze(0) ^ mask.unsqueeze(1)
    gram = counts.index_select(0, pairs.view(-1)).view(free + 1, free + 1, n)
    return gram, sums.index_select(0, mask)


def _walsh(values: torch.Tensor) -> torch.Tensor:
    """[2^k, ...] -> [2^k, ...]: out[m] = sum_j values[j] * product over bits b of m of (+1 if bit b of j else -1)."""
    count, *rest = values.shape
    half = 1
    while half < count:
        low, high = values.view(-1, 2, half, *rest).unbind(1)
        values = torch.stack((low + high, high - low), dim=1).view(count, *rest)
        half *= 2
    return values


def squared_error(
    square: torch.Tensor, gram: torch.Tensor, rhs: torch.Tensor, a: torch.Tensor
) -> torch.Tensor:
    """||w - B a||^2 = w.w + a.((B^T B) a - 2 B^T w), [n] float64, of a [1+k, n]."""
    return square + _dot(a, _dot(gram, a) - 2 * rhs)


def _dot(rows: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """[p, ..., n], [p, n] -> [..., n]: sum_j rows[j] a[j], in this order. A torch.sum's order depends on n."""
    total = rows[0] * a[0]
    for row, a_j in zip(rows[1:], a[1:], strict=True):
        total += row * a_j
    return total


def least_squares(
    gram: torch.Tensor, rhs: torch.Tensor, a: torch.Tensor, least: float
) -> torch.Tensor:
    """The minimiser [1+k, n] of ||w - B a||^2 by L D L^T, elementwise over groups.

    A plane whose pivot is not above `least` depends on the others.

    Where planes depend on each other (more codewords than weights, constant weights) minimisers form a subspace; a
    dependent plane then keeps its present coefficient. A minimum-norm choice would be as good now, but would make two
    equal planes of equal size, which no later round can tell apart.
    """
    step = rhs - _dot(gram, a)
    schur = gram.clone()
    scaled = []  # columns of L below the diagonal
    for b in range(len(a)):
        pivot = schur[b, b]
        inverse = torch.where(pivot > least, pivot.reciprocal(), 0.0)
        column = schur[b + 1 :, b] * inverse
        schur[b + 1 :, b + 1 :] -= column.unsqueeze(1) * schur[b, b + 1 :]
        step[b + 1 :] -= column * step[b]
        step[b] *= inverse
        scaled.append(column)
    for b in reversed(range(len(a) - 1)):
        step[b] -= _dot(scaled[b], step[b + 1 :])
    return step.add_(a)


def nearest_codes(values: torch.Tensor, coefficients: torch.Tensor, folded: bool) -> torch.Tensor:
    """Nearest codes of weights in their own order; half way between two codewords, the upper one.

    Args:
        values: [n, length] float32, signed.
        coefficients: [1+k, n] float64. Folded, the constant plane is bit 0 of a code and the free planes follow;
            otherwise the free planes begin at bit 0.
        folded: there is no offset.

    Returns:
        [n, length] uint8.
    """
    levels, which, order, signs = ordered(codewords(coefficients), folded)
    count, free = len(levels), len(coefficients) - 1
    natural = torch.arange(count, device=values.device)
    code = torch.full_like(natural, int(folded))
    for plane in range(free):
        code |= ((natural >> (free - 1 - plane)) & 1) << (plane + folded)
    opposite = 2 ** (free + folded) - 1
    table = code.to(torch.uint8).unsqueeze(1).repeat(1, len(values))
    table[:, which] = torch.where(signs > 0, code[order], code[order] ^ opposite).to(torch.uint8)

    size = values.abs() if folded else values
    thresholds = ceil32((levels[1:] + levels[:-1]) / 2)
    codes = table[0].unsqueeze(1).repeat(1, values.shape[1])
    for j in range(count - 1):  # passing a threshold flips the bits in which its two codes differ
        passed = (size >= thresholds[j].unsqueeze(1)).view(torch.uint8)
        codes ^= passed.mul_((table[j] ^ table[j + 1]).unsqueeze(1))
    if folded:
        codes ^= (values < 0).view(torch.uint8).mul_(opposite)
    return codes
