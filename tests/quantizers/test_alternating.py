"""The fast solver against a naive one: every codeword listed, lstsq for alpha, one group at a time."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.quantizers.naive_grids import planes_of
from tests.quantizers.weights import assert_same, drawn, exact

from lutlab.base.tensors import BCQTensor
from lutlab.quantizers import alternating
from lutlab.quantizers.alternating import ceil32
from lutlab.quantizers.rtn import RTN

EXACT = torch.float64
DTYPES = st.sampled_from([torch.float16, torch.float32, EXACT])
SEEDS = st.integers(0, 2**31)


def solve(weight, q, g=-1, *, rounds=100, offset=False, dtype=EXACT, starts="best"):
    return alternating.solve(weight, q, g, rounds=rounds, offset=offset, dtype=dtype, starts=starts)


def rebuild(solution, g=-1):
    """[N, K] float64, straight from the definition."""
    return exact(BCQTensor(*solution, len(solution[1]), g))


def squared_error(weight, solution, g=-1):
    return (rebuild(solution, g) - weight).square().sum(dim=1)


def signs(q):
    return planes_of(range(2**q), q)


def naive_codes(w, alpha):
    planes = signs(len(alpha)).numpy()
    return planes[np.abs(w[:, None] - planes @ alpha).argmin(axis=1)]


def naive_greedy(w, q):
    rest, alpha = w.copy(), []
    for _ in range(q):
        alpha.append(np.abs(rest).mean())
        rest = rest - alpha[-1] * np.where(rest >= 0, 1.0, -1.0)
    return np.array(alpha)


def least_squares(w, planes):
    """alpha by lstsq, no shortcuts, and its squared error."""
    alpha = np.linalg.lstsq(planes, w, rcond=None)[0]
    return alpha, ((planes @ alpha - w) ** 2).sum()


WEIGHTS = {
    "gaussian": lambda noise: noise,
    "shifted": lambda noise: noise + 4,
    "few values": lambda noise: noise.round().clamp(-2, 2),
    "heavy tail": lambda noise: noise**5,
    "constant": lambda noise: torch.full_like(noise, 0.3),
    "zeros": torch.zeros_like,
    "large": lambda noise: 1e30 * noise,
    "small": lambda noise: 1e-30 * noise,
}


def made(kind, columns, seed):
    return WEIGHTS[kind](drawn(3, columns, seed=seed))


def weights(*but):
    """[3, K] of any kind but those named."""
    return st.builds(made, st.sampled_from(sorted(WEIGHTS.keys() - but)), st.integers(1, 80), SEEDS)


@given(q=st.integers(1, 8), columns=st.integers(1, 80), seed=SEEDS)
def test_greedy_is_the_papers_loop(q, columns, seed):
    weight = drawn(3, columns, seed=seed)
    codes, alpha = alternating.greedy(weight, q, -1, dtype=EXACT)
    for row, w in enumerate(weight.double().numpy()):
        np.testing.assert_allclose(alpha[:, row, 0], naive_greedy(w, q), rtol=1e-9, atol=1e-12)
        rest = w.copy()
        for b in range(q):
            plus = rest >= 0
            assert np.array_equal((codes[row].numpy() >> b) & 1, plus)
            rest -= np.where(plus, 1, -1) * alpha[b, row, 0].item()


@given(st.data(), st.integers(1, 8), st.booleans(), DTYPES)
def test_codes_are_nearest_and_alpha_is_canonical(data, q, offset, dtype):
    weight = data.draw(weights(*["large"] * (dtype == torch.float16)))
    codes, alpha, z = solution = solve(weight, q, offset=offset, dtype=dtype)
    assert (alpha.dtype, z is not None) == (dtype, offset)
    assert (alpha >= 0).all()
    assert (alpha[1:] <= alpha[:-1]).all()
    words = signs(q) @ alpha[:, :, 0].double()  # [2^q, N]
    if offset:
        words = words + z.double().T
    w = weight.double()
    best = (w.unsqueeze(0) - words.unsqueeze(2)).abs().amin(dim=0)
    slack = 1e-14 * (words.abs().amax() + w.abs().amax())  # additions in another order
    assert ((rebuild(solution) - w).abs() <= best + slack).all()
    assert int(codes.max()) < 2**q


@given(q=st.integers(1, 4), columns=st.integers(8, 60), seed=SEEDS)
def test_every_round_is_the_naive_round(q, columns, seed):
    """Same alpha after each of five rounds wherever lstsq's planes are independent; same error otherwise."""
    weight = drawn(1, columns, seed=seed)
    w = weight[0].double().numpy()
    alpha = naive_greedy(w, q)
    for rounds in range(1, 6):
        planes = naive_codes(w, alpha)
        if np.linalg.matrix_rank(planes) < q:
            return
        before = ((planes @ alpha - w) ** 2).sum()
        alpha, error = least_squares(w, planes)
        if error >= before * (1 - 1e-9):
            return  # the fixed point: rounding decides whether one more step is taken
        ours = solve(weight, q, rounds=rounds, starts="greedy")[1][:, 0, 0]
        np.testing.assert_allclose(ours, np.sort(np.abs(alpha))[::-1], rtol=1e-7, atol=1e-9)


@given(weights(), st.integers(1, 8), st.booleans())
def test_error_never_rises_from_round_to_round(weight, q, offset):
    """With offset, more rounds also move one of the two starts: it is monotone against rounds=0 only."""
    slack = 1e-12 * weight.double().square().sum(dim=1)
    last = squared_error(weight, solve(weight, q, rounds=0, offset=offset))
    for rounds in (1, 2, 3, 5, 8, 100):
        error = squared_error(weight, solve(weight, q, rounds=rounds, offset=offset))
        assert (error <= last + slack).all()
        if not offset:
            last = error


@given(weights(), st.integers(1, 8))
def test_at_rest_alpha_is_least_squares_for_its_codes(weight, q):
    """Degenerate groups included: lstsq on the returned codes finds nothing better."""
    codes, *_ = solution = solve(weight, q, rounds=10_000)
    error = squared_error(weight, solution)
    for row, w in enumerate(weight.double().numpy()):
        planes = planes_of(codes[row], q).numpy()
        assert error[row] <= least_squares(w, planes)[1] + 1e-11 * (w**2).sum()


@given(q=st.integers(1, 3), columns=st.integers(8, 40), seed=SEEDS)
def test_ends_where_the_naive_alternation_ends(q, columns, seed):
    weight = drawn(1, columns, seed=seed)
    w = weight[0].double().numpy()
    alpha = naive_greedy(w, q)
    start = planes = naive_codes(w, alpha)
    first = ((planes @ alpha - w) ** 2).sum()
    for _ in range(60):
        alpha, last = least_squares(w, planes)
        planes = naive_codes(w, alpha)
    ours = float(squared_error(weight, solve(weight, q, rounds=60, starts="greedy"))[0])
    # A dependent plane may be resolved differently and end elsewhere; both must improve on the same start.
    if np.linalg.matrix_rank(start) == q and columns >= 4 * 2**q:
        assert ours == pytest.approx(last, rel=1e-6, abs=1e-12)
    assert ours <= first * (1 + 1e-9) + 1e-12
    assert float(squared_error(weight, solve(weight, q, rounds=60))[0]) <= ours + 1e-12


def nearest_error(weight, levels):
    """Squared error of weights [N, K] at the nearest of levels [N, L], by row, float64."""
    away = (weight.double().unsqueeze(2) - levels.unsqueeze(1)).abs().amin(dim=2)
    return away.square().sum(dim=1)


@given(weights("large"), st.integers(1, 4), DTYPES)
def test_binary_codes_err_no_more_than_the_uniform_ones_they_contain(weight, q, dtype):
    """With coefficients as stored; of RTN in float16, up to the rounding of its centre, which float16 may not hold."""
    slack = 1e-12 * weight.double().square().sum(dim=1)
    plain, extended = (
        squared_error(weight, solve(weight, q, offset=offset, dtype=dtype))
        for offset in (False, True)
    )
    width = 2.0 * weight.double().abs().amax(dim=1, keepdim=True)
    planes = [(width / (2**q - 1) * 2.0 ** (b - 1)).to(dtype).double() for b in range(q)]
    symmetric = torch.cat(planes, dim=1) @ signs(q).T
    assert (plain <= nearest_error(weight, symmetric) + slack).all()
    assert (extended <= plain + slack).all()
    for variant in ("gptq", "awq", "autoawq"):
        stored = RTN(variant=variant).quantize(weight, q, -1)
        error = (exact(stored) - weight).square().sum(dim=1)
        centre = stored.scale.double() * ((2**q - 1) / 2 - stored.zero_point.double())
        moved = centre.abs()[:, 0] * 2.0**-11 + 2.0**-24 if dtype == torch.float16 else 0.0
        assert (extended <= (error.sqrt() + weight.shape[1] ** 0.5 * moved) ** 2 + slack).all()


@given(weights(), st.integers(1, 8))
def test_offset_is_never_worse_than_symmetric_nor_than_the_grid(weight, q):
    """The min-max grid, not rounded."""
    low, high = (end.double() for end in weight.aminmax(dim=1, keepdim=True))
    grid = low + (high - low) * torch.arange(2**q) / (2**q - 1)
    error = squared_error(weight, solve(weight, q, offset=True))
    bound = torch.minimum(squared_error(weight, solve(weight, q)), nearest_error(weight, grid))
    assert (error <= bound + 1e-12 * weight.double().square().sum(dim=1)).all()


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("q", [1, 3, 6, 8])
def test_result_does_not_depend_on_chunks_or_threads(q, offset, monkeypatch, on_threads):
    weight, threads = drawn(9, 150, seed=1), torch.get_num_threads()
    whole = solve(weight, q, 32, offset=offset)
    for used, chunk in ((1, 1), (threads, 300)):
        monkeypatch.setattr(alternating, "CHUNK_WEIGHTS", chunk)
        assert_same(on_threads(used, lambda: solve(weight, q, 32, offset=offset)), whole)


def test_threads_are_given_back_even_after_an_error():
    threads = torch.get_num_threads()
    with pytest.raises(TypeError):
        solve(drawn(2, 16), 2, 8, rounds="many")
    assert torch.get_num_threads() == threads


def test_rows_are_solved_as_if_alone_and_ragged_groups_too():
    weight = drawn(4, 75, seed=2)
    codes, alpha, _ = solve(weight, 3, 32)
    for row, (group, first) in itertools.product(range(4), enumerate((0, 32, 64))):
        columns = slice(first, first + 32)
        alone = solve(weight[row : row + 1, columns], 3)
        assert_same((alone[0][0], alone[1][:, 0, 0]), (codes[row, columns], alpha[:, row, group]))


def test_zero_has_the_positive_sign():
    codes, alpha, _ = solve(torch.tensor([[0.0, -0.0, 1.0, -1.0] * 2]), 1)
    assert codes[0, :4].tolist() == [1, 1, 1, 0]
    assert alpha.item() == 0.5


@given(st.floats(-1e30, 1e30), st.integers(-2, 2))
def test_a_float32_is_below_a_threshold_exactly_if_it_is_below_the_rounded_one(value, steps):
    """Thresholds are float64, weights float32: rounding a threshold to nearest would move weights beside it."""
    threshold = torch.tensor(value, dtype=EXACT)
    weight = threshold.float()
    for _ in range(abs(steps)):
        weight = torch.nextafter(weight, torch.tensor(float(steps)) * torch.inf)
    assert bool(weight < ceil32(threshold)) == (weight.item() < value)


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [False, True])
def test_gpu_agrees_with_cpu(offset):
    weight = drawn(64, 512, seed=3)
    here = squared_error(weight, solve(weight, 3, 128, offset=offset), 128)
    there = [None if t is None else t.cpu() for t in solve(weight.cuda(), 3, 128, offset=offset)]
    torch.testing.assert_close(here, squared_error(weight, there, 128), rtol=1e-9, atol=1e-8)
