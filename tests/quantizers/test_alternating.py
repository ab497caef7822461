"""The fast solver against a naive one: every codeword listed, lstsq for alpha, one group at a time."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lutlab.quantizers import alternating
from lutlab.quantizers.alternating import ceil32
from lutlab.quantizers.rtn import RTN

EXACT = torch.float64


def solve(weight, q, g=-1, *, rounds=100, offset=False, dtype=EXACT, **more):
    return alternating.solve(weight, q, g, rounds=rounds, offset=offset, dtype=dtype, **more)


def rebuild(codes, alpha, offset, g):
    """[N, K] float64, straight from the definition."""
    group = [0 if g == -1 else k // g for k in range(codes.shape[1])]
    out = torch.zeros(codes.shape, dtype=EXACT)
    if offset is not None:
        out += offset.double()[:, group]
    for b, plane in enumerate(alpha.double()):
        out += (2.0 * ((codes >> b) & 1) - 1) * plane[:, group]
    return out


def squared_error(weight, solution, g=-1):
    return (rebuild(*solution, g) - weight).square().sum(dim=1)


def signs(q):
    return np.array(list(itertools.product([-1.0, 1.0], repeat=q)))


def naive_codes(w, alpha):
    words = signs(len(alpha)) @ alpha
    return signs(len(alpha))[np.abs(w[:, None] - words).argmin(axis=1)]


def naive_greedy(w, q):
    rest, alpha = w.copy(), []
    for _ in range(q):
        alpha.append(np.abs(rest).mean())
        rest = rest - alpha[-1] * np.where(rest >= 0, 1.0, -1.0)
    return np.array(alpha)


def naive_errors(w, q, rounds):
    """Error after greedy with nearest codes, then after each round's least squares; lstsq, no shortcuts."""
    alpha = naive_greedy(w, q)
    planes = naive_codes(w, alpha)
    errors = [((planes @ alpha - w) ** 2).sum()]
    for _ in range(rounds):
        alpha = np.linalg.lstsq(planes, w, rcond=None)[0]
        errors.append(((planes @ alpha - w) ** 2).sum())
        planes = naive_codes(w, alpha)
    return errors


def from_greedy(weight, q, rounds):
    """Alternation from the paper's start alone: coefficients [q, N] and errors [N], not rounded."""
    data = alternating.sort_groups(weight.abs())
    start = torch.from_numpy(
        np.stack([naive_greedy(w, q) for w in weight.double().numpy()], axis=1)
    )
    start = start.sort(dim=0, descending=True).values
    return alternating.alternate(data, torch.arange(len(weight)), start, rounds, folded=True)


def gaussian(rows, in_features, seed):
    return torch.randn(rows, in_features, generator=torch.Generator().manual_seed(seed))


WEIGHTS = {
    "gaussian": lambda g, n: torch.randn(3, n, generator=g),
    "shifted": lambda g, n: torch.randn(3, n, generator=g) + 4,
    "few values": lambda g, n: torch.randint(-2, 3, (3, n), generator=g).float(),
    "heavy tail": lambda g, n: torch.randn(3, n, generator=g) ** 5,
    "constant": lambda g, n: torch.full((3, n), 0.3),
    "zeros": lambda g, n: torch.zeros(3, n),
    "large": lambda g, n: 1e30 * torch.randn(3, n, generator=g),
    "small": lambda g, n: 1e-30 * torch.randn(3, n, generator=g),
}


def draw(kind, columns, seed):
    return WEIGHTS[kind](torch.Generator().manual_seed(seed), columns)


ANY = {
    "kind": st.sampled_from(sorted(WEIGHTS)),
    "q": st.integers(1, 8),
    "columns": st.integers(1, 80),
    "seed": st.integers(0, 2**31),
}


@pytest.mark.parametrize(("q", "expected"), [(2, 0.1145), (3, 0.0335), (4, 0.00925)])
def test_gaussian_error(q, expected):
    """Relative squared error, g = 128; measured once with a program of its own."""
    weight = gaussian(512, 1024, 0)
    solution = solve(weight, q, 128, dtype=torch.float16)
    error = squared_error(weight, solution, 128).sum() / weight.square().sum()
    assert float(error) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("q", "expected"), [(2, 0.1284), (3, 0.0570), (4, 0.0317)])
def test_gaussian_error_of_greedy(q, expected):
    weight = gaussian(512, 1024, 0)
    codes, alpha = alternating.greedy(weight, q, 128, dtype=torch.float16)
    error = squared_error(weight, (codes, alpha, None), 128).sum() / weight.square().sum()
    assert float(error) == pytest.approx(expected, rel=0.02)


@given(q=st.integers(1, 8), columns=st.integers(1, 80), seed=st.integers(0, 2**31))
def test_greedy_is_the_papers_loop(q, columns, seed):
    weight = gaussian(3, columns, seed)
    codes, alpha = alternating.greedy(weight, q, -1, dtype=EXACT)
    for row, w in enumerate(weight.double().numpy()):
        np.testing.assert_allclose(alpha[:, row, 0], naive_greedy(w, q), rtol=1e-9, atol=1e-12)
        rest = w.copy()
        for b in range(q):
            plus = rest >= 0
            assert np.array_equal((codes[row].numpy() >> b) & 1, plus)
            rest -= np.where(plus, 1, -1) * alpha[b, row, 0].item()


@given(**ANY, offset=st.booleans(), dtype=st.sampled_from([torch.float16, torch.float32, EXACT]))
def test_codes_are_nearest_and_alpha_is_canonical(kind, q, columns, seed, offset, dtype):
    weight = draw(kind if dtype != torch.float16 or kind != "large" else "gaussian", columns, seed)
    codes, alpha, z = solution = solve(weight, q, offset=offset, dtype=dtype)
    assert alpha.dtype == dtype
    assert (alpha >= 0).all()
    assert (alpha[1:] <= alpha[:-1]).all()
    assert (z is not None) == offset
    words = torch.from_numpy(signs(q)) @ alpha[:, :, 0].double()  # [2^q, N]
    if offset:
        words = words + z.double().T
    w = weight.double()
    best = (w.unsqueeze(0) - words.unsqueeze(2)).abs().amin(dim=0)
    slack = 1e-14 * (words.abs().amax() + w.abs().amax())  # additions in another order
    assert ((rebuild(*solution, -1) - w).abs() <= best + slack).all()
    assert int(codes.max()) < 2**q


@given(q=st.integers(1, 4), columns=st.integers(8, 60), seed=st.integers(0, 2**31))
def test_every_round_is_the_naive_round(q, columns, seed):
    """Same alpha after each of five rounds wherever lstsq's planes are independent; same error otherwise."""
    weight = gaussian(1, columns, seed)
    w = weight[0].double().numpy()
    alpha = naive_greedy(w, q)
    for rounds in range(1, 6):
        planes = naive_codes(w, alpha)
        if np.linalg.matrix_rank(planes) < q:
            return
        before = ((planes @ alpha - w) ** 2).sum()
        alpha = np.linalg.lstsq(planes, w, rcond=None)[0]
        if ((planes @ alpha - w) ** 2).sum() >= before * (1 - 1e-9):
            return  # the fixed point: rounding decides whether one more step is taken
        ours = from_greedy(weight, q, rounds)[0][:, 0]
        np.testing.assert_allclose(ours, np.sort(np.abs(alpha))[::-1], rtol=1e-7, atol=1e-9)


@given(**ANY, offset=st.booleans())
def test_error_never_rises_from_round_to_round(kind, q, columns, seed, offset):
    """With offset, more rounds also move one of the two starts: it is monotone against rounds=0 only."""
    weight = draw(kind, columns, seed)
    norm = weight.double().square().sum(dim=1)
    last = squared_error(weight, solve(weight, q, rounds=0, offset=offset))
    for rounds in (1, 2, 3, 5, 8, 100):
        error = squared_error(weight, solve(weight, q, rounds=rounds, offset=offset))
        assert (error <= last + 1e-12 * norm).all()
        if not offset:
            last = error


@given(**ANY)
def test_at_rest_alpha_is_least_squares_for_its_codes(kind, q, columns, seed):
    """Degenerate groups included: lstsq on the returned codes finds nothing better."""
    weight = draw(kind, columns, seed)
    solution = solve(weight, q, rounds=10_000)
    codes = solution[0]
    error = squared_error(weight, solution)
    for row, w in enumerate(weight.double().numpy()):
        planes = np.stack([2.0 * ((codes[row].numpy() >> b) & 1) - 1 for b in range(q)], axis=1)
        best = planes @ np.linalg.lstsq(planes, w, rcond=None)[0] - w
        assert error[row] <= (best**2).sum() + 1e-11 * (w**2).sum()


@given(q=st.integers(1, 3), columns=st.integers(8, 40), seed=st.integers(0, 2**31))
def test_ends_where_the_naive_alternation_ends(q, columns, seed):
    weight = gaussian(1, columns, seed)
    w = weight[0].double().numpy()
    errors = naive_errors(w, q, 60)
    ours = float(from_greedy(weight, q, 60)[1])
    # A dependent plane may be resolved differently and end elsewhere; both must improve on the same start.
    planes = naive_codes(w, naive_greedy(w, q))
    if np.linalg.matrix_rank(planes) == q and columns >= 4 * 2**q:
        assert ours == pytest.approx(errors[-1], rel=1e-6, abs=1e-12)
    assert ours <= errors[0] * (1 + 1e-9) + 1e-12
    assert float(squared_error(weight, solve(weight, q, rounds=60))[0]) <= ours + 1e-12


def nearest_error(weight, levels):
    """Squared error of weights [N, K] at the nearest of levels [N, L], by row, float64."""
    away = (weight.double().unsqueeze(2) - levels.unsqueeze(1)).abs().amin(dim=2)
    return away.square().sum(dim=1)


def rtn_of(weight, q, variant):
    """RTN's squared error by row as stored, and the centre of its levels."""
    stored = RTN(variant=variant).quantize(weight, q, -1)
    scale, zero = stored.scale.double(), stored.zero_point.double()
    error = (scale * (stored.codes - zero) - weight).square().sum(dim=1)
    return error, (scale * ((2**q - 1) / 2 - zero))[:, 0]


@given(
    **(ANY | {"q": st.integers(1, 4)}), dtype=st.sampled_from([torch.float16, torch.float32, EXACT])
)
def test_binary_codes_err_no_more_than_the_uniform_ones_they_contain(kind, q, columns, seed, dtype):
    """With coefficients as stored; of RTN in float16, up to the rounding of its centre, which float16 may not hold."""
    weight = draw("gaussian" if kind == "large" else kind, columns, seed)
    slack = 1e-12 * weight.double().square().sum(dim=1)
    plain, extended = (
        squared_error(weight, solve(weight, q, offset=offset, dtype=dtype))
        for offset in (False, True)
    )
    width = 2.0 * weight.double().abs().amax(dim=1, keepdim=True)
    planes = [(width / (2**q - 1) * 2.0 ** (b - 1)).to(dtype).double() for b in range(q)]
    symmetric = torch.cat(planes, dim=1) @ torch.from_numpy(signs(q)).T
    assert (plain <= nearest_error(weight, symmetric) + slack).all()
    assert (extended <= plain + slack).all()
    for variant in ("gptq", "awq", "autoawq"):
        error, centre = rtn_of(weight, q, variant)
        moved = centre.abs() * 2.0**-11 + 2.0**-24 if dtype == torch.float16 else 0.0
        assert (extended <= (error.sqrt() + columns**0.5 * moved) ** 2 + slack).all()


@given(**ANY)
def test_offset_is_never_worse_than_symmetric_nor_than_the_grid(kind, q, columns, seed):
    """The min-max grid, not rounded."""
    weight = draw(kind, columns, seed)
    low, high = (end.double() for end in weight.aminmax(dim=1, keepdim=True))
    grid = low + (high - low) * torch.arange(2**q) / (2**q - 1)
    error = squared_error(weight, solve(weight, q, offset=True))
    bound = torch.minimum(squared_error(weight, solve(weight, q)), nearest_error(weight, grid))
    assert (error <= bound + 1e-12 * weight.double().square().sum(dim=1)).all()


def test_offset_pays_on_shifted_weights():
    weight = gaussian(8, 128, 0) + 5
    plain = squared_error(weight, solve(weight, 2)).sum()
    assert squared_error(weight, solve(weight, 2, offset=True)).sum() < 0.5 * plain


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("q", [1, 3, 6, 8])
def test_result_does_not_depend_on_chunks_or_threads(q, offset, monkeypatch):
    weight = gaussian(9, 150, 1)
    whole = solve(weight, q, 32, offset=offset)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        monkeypatch.setattr(alternating, "CHUNK_WEIGHTS", 1)
        alone = solve(weight, q, 32, offset=offset)
    finally:
        torch.set_num_threads(threads)
    monkeypatch.setattr(alternating, "CHUNK_WEIGHTS", 300)
    parts = solve(weight, q, 32, offset=offset)
    for a, b, c in zip(whole, alone, parts, strict=True):
        assert a is b is c is None or (torch.equal(a, b) and torch.equal(a, c))


def test_threads_are_given_back_even_after_an_error():
    threads = torch.get_num_threads()
    with pytest.raises(TypeError):
        alternating.solve(gaussian(2, 16, 0), 2, 8, rounds="many", offset=False, dtype=EXACT)
    assert torch.get_num_threads() == threads


def test_rows_are_solved_as_if_alone_and_ragged_groups_too():
    weight = gaussian(4, 75, 2)
    codes, alpha, _ = solve(weight, 3, 32)
    for row, (group, columns) in itertools.product(
        range(4), enumerate([slice(0, 32), slice(32, 64), slice(64, 75)])
    ):
        alone = solve(weight[row : row + 1, columns], 3)
        assert torch.equal(alone[0][0], codes[row, columns])
        assert torch.equal(alone[1][:, 0, 0], alpha[:, row, group])


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
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("offset", [False, True])
def test_gpu_agrees_with_cpu(offset):
    weight = gaussian(64, 512, 3)
    here = squared_error(weight, solve(weight, 3, 128, offset=offset), 128)
    there = [None if t is None else t.cpu() for t in solve(weight.cuda(), 3, 128, offset=offset)]
    assert torch.allclose(here, squared_error(weight, there, 128), rtol=1e-9)
