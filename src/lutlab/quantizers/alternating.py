"""Alternating multi-bit binary coding: the planes B_b and coefficients alpha_b that fit a group in least squares.

    min ||w - sum_b alpha_b B_b||^2 (+ offset z):  alpha = (B^T B)^-1 B^T w  <->  B = nearest of the 2^q codewords

Xu et al., "Alternating Multi-bit Quantization for Recurrent Neural Networks" (ICLR 2018), sections 2 and 3; the solver
behind LUT-GEMM section 5.1 ([54]) and nuQmm section III ([20]). Extended BCQ, LUT-GEMM Eq. 2, adds the offset.

Three observations make a round cost O(2^q log g) a group instead of O(q^2 g), without approximation:

1. Codewords split the sorted weights into intervals, so B is 2^q - 1 thresholds. Each group is sorted once; a round is
   a binary search, and prefix sums give n_j and s_j, count and sum of the weights of codeword j.
2. With v_j in {-1, +1}^q the signs of codeword j, B^T w = sum_j s_j v_j and B^T B = sum_j n_j v_j v_j^T are the first
   and second order Walsh coefficients of s and n: one butterfly over j gives all of them, and B^T B exactly.
3. Without offset the codewords are symmetric: w and -w have opposite codes. The solver then sees |w| with the sign of
   the first plane fixed to +1, half of the thresholds. With an offset it sees w and the offset's own plane, which is +1
   everywhere. In both cases there is ONE constant plane and k free ones: k = q - 1 folded to |w|, k = q with offset.

Inside: coefficients [1+k, n] float64, the constant plane first, then the free ones, descending. L = 2^k codewords in
natural order: j counts up, its highest bit is the sign of the largest free plane. n groups of g weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from lutlab.groups import blocks, group_count
from lutlab.lazy import torch
from lutlab.quantizers.one_thread import one_thread
from lutlab.quantizers.sorted_groups import (
    SINGULAR,
    SortedGroups,
    edges_at,
    least_squares,
    nearest_codes,
    normal_equations,
    prefix_sums,
    sort_groups,
    squared_error,
)

# Weights solved at a time: a batch must amortise the interpreter over its slowest groups, and still fit the memory of
# a small machine once per thread (about 40 bytes a weight).
CHUNK_WEIGHTS = 2**21
# Errors are sums in float64: an improvement below this share of ||w||^2 is rounding noise, the codes are at rest.
NOISE = 2.0**-46


def solve(
    weight: torch.Tensor,
    q: int,
    g: int,
    *,
    rounds: int,
    offset: bool,
    dtype: torch.dtype,
    chunk_weights: int = CHUNK_WEIGHTS,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Fit every group, round the coefficients to `dtype`, take the nearest codes of the rounded coefficients.

    Deterministic, and independent of chunk_weights and of the number of threads: groups never mix. The error with
    offset is at most that of the symmetric solution of as many rounds, and that of the min-max grid.

    Args:
        weight: [N, K] finite float32 on CPU or GPU.
        q: planes, 1-8.
        g: weights of a group along K; -1 = all of K.
        rounds: most rounds; 0 keeps the greedy coefficients. A group stops by itself where its error stops falling.
        offset: fit z as well, from the symmetric solution and from the min-max grid; the better one is kept.
        dtype: dtype to which alpha and z are rounded (float64: not rounded).
        chunk_weights: weights solved at a time.

    Returns:
        codes [N, K] uint8, alpha [q, N, G] >= 0 and descending along q, z [N, G] or None.
    """
    codes, planes = _in_chunks(
        weight,
        g,
        q + offset,
        dtype,
        lambda values: _fit(values, q, rounds, offset),
        lambda values, fitted: nearest_codes(values, fitted, not offset),
        chunk_weights,
    )
    if offset:
        return codes, planes[1:].contiguous(), planes[0].contiguous()
    return codes, planes, None


def greedy(
    weight: torch.Tensor, q: int, g: int, *, dtype: torch.dtype, chunk_weights: int = CHUNK_WEIGHTS
) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy coefficients rounded to `dtype`, and the greedy codes that follow from the rounded ones: sign by sign.

    The codes are not always the nearest ones: an alpha may be above the sum of those before it or below the sum of
    those after it. `solve` with rounds=0 has the nearest codes of the same coefficients.

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
        chunk_weights,
    )


def _in_chunks(
    weight: torch.Tensor,
    g: int,
    planes: int,
    dtype: torch.dtype,
    fit: Callable[[torch.Tensor], torch.Tensor],
    assign: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    chunk_weights: int,
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

    for_each(work, _pieces(weight, g, 2**planes, chunk_weights), weight.device)
    return codes, coefficients


def _pieces(
    weight: torch.Tensor, g: int, words: int, chunk_weights: int
) -> Iterator[tuple[slice, slice, slice, torch.Tensor]]:
    """Rows and columns of a chunk, its columns of G, its weights [rows, groups, length]."""
    for columns, group_columns, block in blocks(weight, g):
        # Small groups of many codewords keep more numbers a codeword than a weight.
        step = max(1, chunk_weights // (block.shape[1] * max(block.shape[2], words)))
        for first in range(0, block.shape[0], step):
            at = slice(first, first + step)
            yield at, columns, group_columns, block[at]


def for_each(work: Callable, pieces: Iterator, device: torch.device) -> None:
    """Chunks side by side on a CPU, a thread each, one after the other on a GPU."""
    if device.type != "cpu":
        for piece in pieces:
            work(piece)
        return
    with one_thread() as threads, ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, pieces))  # list: raises what a worker raised


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
        found = squared_error(square, gram, rhs, fitted)
        falls = found < error - NOISE * square
        moving = falls.nonzero().squeeze(1)
        if not len(moving):
            break
        current = torch.where(falls, _canonical(fitted, folded), current)
        error = torch.where(falls, found, error)
        if 4 * len(moving) < 3 * len(active):
            best[:, active], least[active] = current, error
            active, row, square = active[moving], row[moving], square[moving]
            current, error = current[:, moving], error[moving]
    best[:, active], least[active] = current, error
    return best, least


def _fit(values: torch.Tensor, q: int, rounds: int, offset: bool) -> torch.Tensor:
    """[n, length] float32 -> coefficients [q, n] float64, or with offset [1+q, n], the offset first."""
    row = torch.arange(len(values), device=values.device)
    data = sort_groups(values.abs())
    start = _canonical(_greedy(data, q), folded=True)
    symmetric, _ = alternate(data, row, start, rounds, folded=True)
    if not offset:
        return symmetric
    data = sort_groups(values)
    starts = torch.cat(
        (torch.nn.functional.pad(symmetric, (0, 0, 1, 0)), _min_max_grid(data, q)), dim=1
    )
    fitted, error = alternate(data, row.repeat(2), starts, rounds, folded=False)
    first, second = error.chunk(2)
    return torch.where(first <= second, *fitted.chunk(2, dim=1))


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


def _min_max_grid(data: SortedGroups, q: int) -> torch.Tensor:
    """The uniform grid from the smallest to the largest weight as coefficients: LUT-GEMM Eq. 5."""
    ends = data.ascending.view(-1, data.length)[:, [0, -1]].double()
    scale = (ends[:, 1] - ends[:, 0]) / (2**q - 1)
    planes = [scale * 2.0 ** (b - 1) for b in reversed(range(q))]
    return torch.stack([ends.mean(dim=1), *planes])
