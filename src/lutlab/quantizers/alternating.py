"""Alternating multi-bit binary coding: the planes B_b and coefficients alpha_b that fit a group in least squares.

    min ||w - sum_b alpha_b B_b||^2 (+ offset z):  alpha = (B^T B)^-1 B^T w  <->  B = nearest of the 2^q codewords

Xu et al., "Alternating Multi-bit Quantization for Recurrent Neural Networks" (ICLR 2018), sections 2 and 3; the solver
behind LUT-GEMM v3 section 4.3 ([54]) and nuQmm section III ([20]). Extended BCQ, LUT-GEMM Eq. 2, adds the offset.

Three observations make a round cost O(2^q log g) a group instead of O(q^2 g), without approximation:

1. Codewords split the sorted weights into intervals, so B is 2^q - 1 thresholds. Each group is sorted once; a round is
   a binary search, and prefix sums give n_j and s_j, count and sum of the weights of codeword j.
2. With v_j in {-1, +1}^q the signs of codeword j, B^T w = sum_j s_j v_j and B^T B = sum_j n_j v_j v_j^T are the first
   and second order Walsh coefficients of s and n: one butterfly over j gives all of them, and B^T B exactly.
3. Without offset the codewords are symmetric: w and -w have opposite codes. The solver then sees |w| with the sign of
   the first plane fixed to +1, half of the thresholds. With an offset it sees w and the offset's own plane, which is +1
   everywhere. In both cases there is ONE constant plane and k free ones: k = q - 1 folded to |w|, k = q with offset.

The fixed point depends on the start, and the paper's greedy one leaves out the outliers of a group: from q = 4 on it
can end above the uniform grid that binary codes contain. So unless starts="greedy" asks for the paper's, each group
starts twice, greedily and from the best of a few uniform grids, and the better end is kept. To look at a grid costs
about a round.

Inside: coefficients [1+k, n] float64, the constant plane first, then the free ones, descending. L = 2^k codewords in
natural order: j counts up, its highest bit is the sign of the largest free plane. n groups of g weights; groups are
the last axis of all that is small: an operation is then a few long vectors, not many short ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from lutlab.base.groups import blocks, group_count
from lutlab.base.lazy import np, torch
from lutlab.quantizers.grid import Grid, Rule
from lutlab.quantizers.one_thread import one_thread

# Weights solved at a time: a batch must amortise the interpreter over its slowest groups, and still fit the memory of
# a small machine once per thread (about 40 bytes a weight).
CHUNK_WEIGHTS = 2**21
# Errors are sums in float64: an improvement below this share of ||w||^2 is rounding noise, the codes are at rest.
NOISE = 2.0**-46
# Of the width of a group's uniform grid. Of 7 layers of SmolLM2-135M at q = 3, 4 and g = 64 the two clipped ones take
# another 6 and 10 % of the squared error (3 % with offset); two more, of 0.55 and 0.4, take nothing, and add 2 % at
# q = 2 to weights with heavy tails.
CLIPS = (1.0, 0.85, 0.7)
Starts = Literal["greedy", "best"]
RULES: tuple[Rule, ...] = ("gptq", "autoawq")  # of RTN's grids among the starts
# B^T B holds integers; a pivot below this share of its diagonal g is a plane that depends on the others.
SINGULAR = 1e-9


def solve(
    weight: torch.Tensor,
    q: int,
    g: int,
    *,
    rounds: int,
    offset: bool,
    dtype: torch.dtype,
    starts: Starts = "best",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Fit every group, round the coefficients to `dtype`, take the nearest codes of the rounded coefficients.

    Deterministic, and independent of CHUNK_WEIGHTS and of the number of threads: groups never mix.

    In every group the squared error, with coefficients as stored, is at most

        without offset   that of the uniform levels +-s/2, +-3s/2, ..., s = 2 max|w| / (2^q - 1)
        with offset      that without offset, of as many rounds; of the min-max grid; of RTN's, gptq and awq, whose
                         scale is float16 (grid.py)

    where these grids are written as alpha_b = 2^(b-1) s and z and rounded to `dtype`, up to float64's rounding of
    ||w||^2. In float32 RTN's grids are exact: the error is at most RTN's. In float16 RTN's s (2^q - 1) / 2 - s zero = z
    may not be: with n weights in the group and RTN's error E, the error is at most (sqrt(E) + sqrt(n) d)^2,
    d = 2^-11 |z| + 2^-24. Weights that lie on RTN's grid, where E = 0, show that no more can be had of float16.

    Args:
        weight: [N, K] finite float32 on CPU or GPU.
        q: planes, 1-8.
        g: weights of a group along K; -1 = all of K.
        rounds: most rounds from each start; 0 keeps the better start. A group stops by itself where its error stops
            falling.
        offset: fit z as well, from the solution without it and from a uniform grid.
        dtype: dtype to which alpha and z are rounded (float64: not rounded).
        starts: starts of a group: greedy, as the papers'; best, a uniform grid as well.

    Returns:
        codes [N, K] uint8, alpha [q, N, G] >= 0 and descending along q, z [N, G] or None.
    """
    codes, planes = _in_chunks(
        weight,
        g,
        q + offset,
        dtype,
        lambda values: _fit(values, q, rounds, offset, dtype, starts),
        lambda values, fitted: nearest_codes(values, fitted, not offset),
    )
    if offset:
        return codes, planes[1:].contiguous(), planes[0].contiguous()
    return codes, planes, None


def greedy(
    weight: torch.Tensor, q: int, g: int, *, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy coefficients rounded to `dtype`, and the greedy codes that follow from the rounded ones: sign by sign.

    The codes are not always the nearest ones: an alpha may be above the sum of those before it or below the sum of
    those after it.

    Returns:
        codes [N, K] uint8, alpha [q, N, G] in the order found.
    """
    return _in_chunks(
        weight,
        g,
        q,
        dtype,
        lambda values: _greedy(sort_groups(values.abs()), q),
        _successive_signs,
    )


def nearest(
    weight: torch.Tensor, g: int, alpha: torch.Tensor, offset: torch.Tensor | None
) -> torch.Tensor:
    """Codes [N, K] uint8 of the codewords nearest to weights [N, K] float32; alpha [q, N, G], offset [N, G] or None."""
    planes = alpha if offset is None else torch.cat((offset.unsqueeze(0), alpha))
    codes = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    for at, columns, groups, values in _pieces(weight, g, 2 ** len(planes)):
        some = planes[:, at, groups].flatten(1).double()
        found = nearest_codes(values.reshape(-1, values.shape[-1]), some, offset is None)
        codes[at, columns] = found.view(values.shape[0], -1)
    return codes


def _in_chunks(
    weight: torch.Tensor,
    g: int,
    planes: int,
    dtype: torch.dtype,
    fit: Callable[[torch.Tensor], torch.Tensor],
    assign: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [N, K] by `assign` from coefficients [planes, N, G] by `fit`, rounded to dtype."""
    rows, in_features = weight.shape
    codes = torch.empty(rows, in_features, dtype=torch.uint8, device=weight.device)
    coefficients = weight.new_empty(planes, rows, group_count(g, in_features), dtype=dtype)

    def work(piece: tuple[slice, slice, slice, torch.Tensor]) -> None:
        at, columns, group_columns, values = piece
        flat = values.reshape(-1, values.shape[-1])
        fitted = fit(flat).to(dtype)
        coefficients[:, at, group_columns] = fitted.view(-1, *values.shape[:2])
        codes[at, columns] = assign(flat, fitted.double()).view(values.shape[0], -1)

    pieces = _pieces(weight, g, 2**planes)
    if weight.device.type != "cpu":
        for piece in pieces:
            work(piece)
        return codes, coefficients
    with one_thread() as threads, ThreadPoolExecutor(threads) as pool:  # a chunk a thread
        list(pool.map(work, pieces))  # list: raises what a worker raised
    return codes, coefficients


def _pieces(
    weight: torch.Tensor, g: int, words: int
) -> Iterator[tuple[slice, slice, slice, torch.Tensor]]:
    """Rows and columns of a chunk, its columns of G, its weights [rows, groups, length]."""
    for columns, group_columns, block in blocks(weight, g):
        # Small groups of many codewords keep more numbers a codeword than a weight.
        step = max(1, CHUNK_WEIGHTS // (block.shape[1] * max(block.shape[2], words)))
        for first in range(0, block.shape[0], step):
            at = slice(first, first + step)
            yield at, columns, group_columns, block[at]


def _canonical(a: torch.Tensor, folded: bool) -> torch.Tensor:
    """[1+k, n] -> [1+k, n]: alphas >= 0, descending. Flipping or renaming planes does not change the codewords."""
    fixed = 0 if folded else 1  # the offset is no alpha: it keeps its sign and its place
    alpha = list(a[fixed:].abs().unbind(0))
    for last in range(len(alpha) - 1, 0, -1):
        for i in range(last):
            alpha[i], alpha[i + 1] = (
                torch.maximum(alpha[i], alpha[i + 1]),
                torch.minimum(alpha[i], alpha[i + 1]),
            )
    return torch.stack([*a[:fixed].unbind(0), *alpha])


# ---- from a start to its fixed point ----


def alternate(
    data: SortedGroups, row: torch.Tensor, start: torch.Tensor, rounds: int, folded: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Alternate from start [1+k, n], whose column i belongs to group row[i].

    A group at rest is carried along until a quarter of them are: taking groups out costs as much as a third of a round.

    Returns:
        coefficients [1+k, n] and their error [n] with nearest codes (an upper bound of it after a last round); never
        above that of start.
    """
    gram, rhs = normal_equations(data, row, start, folded)
    square = data.square[row]
    best, least = start.clone(), squared_error(square, gram, rhs, start)
    active, current, error = torch.arange(len(row), device=row.device), start, least.clone()
    for number in range(rounds):
        if number:
            gram, rhs = normal_equations(data, row, current, folded)
        fitted = least_squares(gram, rhs, current, SINGULAR * data.length)
        fitted_error = squared_error(square, gram, rhs, fitted)
        falls = fitted_error < error - NOISE * square
        moving = falls.nonzero().squeeze(1)
        if not len(moving):
            break
        current = torch.where(falls, _canonical(fitted, folded), current)
        error = torch.where(falls, fitted_error, error)
        if 4 * len(moving) < 3 * len(active):
            best[:, active], least[active] = current, error
            active, row, square = active[moving], row[moving], square[moving]
            current, error = current[:, moving], error[moving]
    best[:, active], least[active] = current, error
    return best, least


def _fit(
    values: torch.Tensor, q: int, rounds: int, offset: bool, dtype: torch.dtype, starts: Starts
) -> torch.Tensor:
    """[n, length] float32 -> coefficients as stored, [q, n] float64, or with offset [1+q, n], the offset first."""
    data = sort_groups(values.abs())
    start = _canonical(_greedy(data, q), folded=True)
    best = starts == "best"
    grids = _symmetric_grids(data, q) if best else []
    alpha = _better_end(data, start, grids, rounds, dtype, folded=True)
    if not offset:
        return alpha
    data = sort_groups(values)
    start = torch.nn.functional.pad(alpha, (0, 0, 1, 0))
    grids = _grids(data, q) if best else []
    return _better_end(data, start, grids, rounds, dtype, folded=False)


def _better_end(
    data: SortedGroups,
    start: torch.Tensor,
    grids: list[torch.Tensor],
    rounds: int,
    dtype: torch.dtype,
    folded: bool,
) -> torch.Tensor:
    """Coefficients [1+k, n] float64, rounded to dtype, that err no more than `start` or any grid, so rounded.

    Alternation goes from `start` [1+k, n] and from the best of the grids. Rounding may undo what it has gained: its
    end is compared with the starts once more, all of them rounded.
    """
    row = torch.arange(len(data.square), device=data.square.device)
    starts = [start]
    if grids:
        starts.append(_least(data, row, [each.to(dtype).double() for each in grids], folded))
    ends, error = alternate(data, row.repeat(len(starts)), torch.cat(starts, dim=1), rounds, folded)
    end, *others = ends.chunk(len(starts), dim=1)
    if others:
        first, second = error.nan_to_num(torch.inf).chunk(2)  # nan: a start beyond dtype's range
        end = torch.where(first <= second, end, others[0])
    return _least(data, row, [each.to(dtype).double() for each in (end, *starts)], folded)


def _least(
    data: SortedGroups, row: torch.Tensor, candidates: list[torch.Tensor], folded: bool
) -> torch.Tensor:
    """Of coefficients [1+k, n] those that err least in each group, with nearest codes.

    The first of equals; and the first where it is beyond its dtype's range, for the caller to refuse.
    """

    def error(a: torch.Tensor) -> torch.Tensor:
        return squared_error(data.square, *normal_equations(data, row, a, folded), a)

    best, *others = candidates
    least = error(best)
    for other in others:
        size = error(other)
        best = torch.where(size < least, other, best)
        least = torch.where(size < least, size, least)
    return best


def _greedy(data: SortedGroups, q: int) -> torch.Tensor:
    """Greedy coefficients [q, n] of |w| (Xu et al. section 2): alpha_b = mean |r|, B_b = sign(r), r -= alpha_b B_b.

    The codes so far cut |w| into 2^(b-1) intervals, each with one centre c, and r = |w| - c: so B_b cuts each interval
    at its centre, and sum |r| follows from prefix sums.
    """
    row = torch.arange(len(data.square), device=data.square.device)
    edges = torch.stack((row * data.length, row * data.length + data.length)).int()
    centres = torch.zeros(1, len(row), dtype=torch.float64, device=row.device)
    planes = []
    for _ in range(q):
        low, high = edges[:-1], edges[1:]
        cut = edges_at(data, row, centres).clamp(low, high)
        sums = prefix_sums(data, row, edges)
        spread = sums[:-1] + sums[1:] - 2 * prefix_sums(data, row, cut)
        spread += centres * (2 * cut - low - high)
        step = spread.cumsum(dim=0)[-1:] / data.length  # in this order; a sum's would depend on n
        planes.append(step)
        if len(planes) == 1:
            centres = step  # |w| >= 0: its first sign is + everywhere
            continue
        edges = torch.cat((torch.stack((low, cut), dim=1).flatten(0, 1), edges[-1:]))
        centres = torch.stack((centres - step, centres + step), dim=1).flatten(0, 1)
    return torch.cat(planes)


def _successive_signs(values: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    """[n, length] float32, [q, n] float64 -> codes [n, length] uint8: B_b = sign(r), r -= alpha_b B_b, sign(0) = +1."""
    rest = values.double()
    codes = torch.zeros_like(values, dtype=torch.uint8)
    for b, alpha in enumerate(coefficients.unsqueeze(2)):
        plus = rest >= 0
        codes |= plus.to(torch.uint8) << b
        rest -= torch.where(plus, alpha, -alpha)
    return codes


def _symmetric_grids(data: SortedGroups, q: int) -> list[torch.Tensor]:
    """Uniform grids around 0, up to the largest |w| and clipped, as coefficients [q, n]."""
    step = 2 * data.ascending.view(-1, data.length)[:, -1].double() / (2**q - 1)
    return [uniform_planes(clip * step, q) for clip in CLIPS]


def _grids(data: SortedGroups, q: int) -> list[torch.Tensor]:
    """Uniform grids as coefficients [1+q, n]: from the smallest to the largest weight, clipped on both sides, RTN's."""
    low, high = data.ascending.view(-1, data.length)[:, [0, -1]].unbind(dim=1)
    top = 2**q - 1
    step, centre = (high.double() - low.double()) / top, (high.double() + low.double()) / 2
    grids = [uniform_planes(clip * step, q, centre) for clip in CLIPS]
    for variant in RULES:
        scale, zero = Grid(variant, "fp16").of_range(low, high, q)
        scale = scale.double()
        grids.append(uniform_planes(scale, q, scale * (top / 2 - zero.double())))
    return grids


def uniform_planes(step: torch.Tensor, q: int, centre: torch.Tensor | None = None) -> torch.Tensor:
    """Coefficients [q, n] of 2^q levels at a distance of step [n], or [1+q, n] around centre [n]: LUT-GEMM Eq. 5."""
    planes = [step * 2.0 ** (b - 1) for b in reversed(range(q))]
    return torch.stack(planes if centre is None else [centre, *planes])


# ---- groups cut into intervals by codewords ----


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
    limits = ceil32(thresholds).view(-1)
    first = (row * data.length).to(torch.int32)
    at = first.repeat(len(thresholds))
    left = data.length
    while left > 1:
        half = left // 2
        at.add_(data.ascending[half - 1 :].index_select(0, at) < limits, alpha=half)
        left -= half
    at += data.ascending.index_select(0, at) < limits
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
        irregular = both[:, :, which]
        irregular[:, 1] *= signs
        both[:, :, which] = torch.zeros_like(irregular).scatter_(
            0, order.unsqueeze(1).expand_as(irregular), irregular
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
