"""GPTQ with binary codes fitted on the way: the naive version agrees, and few bits err less than the uniform grid's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.quantizers.naive_gptq import agree, naive_gptq
from tests.quantizers.naive_grids import planes_of
from tests.quantizers.weights import correlated, drawn, output_error, quantize

from lutlab import formats
from lutlab.quantizers.bcq import BCQ
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.gptq_bcq import GPTQBCQ, solve_from_grid


def binary_book(q, offset):
    """Codewords of the solver (tested by itself) for every row of a group; nearest by all distances."""

    def fit(values):
        how = {"rounds": GPTQBCQ().rounds, "offset": offset, "dtype": torch.float16}
        alpha, z = solve_from_grid(values.contiguous(), q, **how)
        words = (planes_of(range(2**q), q) @ alpha.double()).t()  # [N, 2^q], by code
        words = words + z.double().unsqueeze(1) if offset else words

        def column(w):
            distance = (w[:, None] - words).abs()
            two = distance.sort(dim=1).values[:, :2]
            codes = distance.argmin(dim=1)
            value = words.gather(1, codes[:, None])[:, 0]
            return codes.to(torch.uint8), value, (two[:, 1] - two[:, 0]) / values.abs().amax(dim=1)

        return column

    return fit


@settings(max_examples=15)
@given(
    q=st.integers(1, 4), g=st.sampled_from([-1, 8, 13, 32]), in_features=st.integers(16, 45),
    act_order=st.booleans(), offset=st.booleans(), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_codes_of_static_groups_equal_the_naive_ones(q, g, in_features, act_order, offset, seed):
    weight, hessian = drawn(5, in_features, seed=seed), correlated(in_features, seed)
    order = {"act_order": act_order, "static_groups": True}
    tensor = quantize(GPTQBCQ(offset=offset, **order), weight, q, g, hessian)
    assert tensor.order is None
    agree(tensor, naive_gptq(weight, hessian, g, binary_book(q, offset), **order), tie=1e-4)


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(("q", "g"), [(2, 32), (3, 40), (4, -1)])
def test_groups_fitted_on_the_way_equal_the_naive_ones(q, g, act_order, offset):
    """float32 against float64 may send a solver elsewhere, or a value across a tie: in few rows."""
    weight, hessian = drawn(40, 96), correlated(96)
    tensor = quantize(GPTQBCQ(act_order=act_order, offset=offset), weight, q, g, hessian)
    naive = naive_gptq(weight, hessian, g, binary_book(q, offset), act_order=act_order)
    assert agree(tensor, naive, tie=torch.inf) >= 0.9


@pytest.mark.parametrize(("q", "g"), [(1, 16), (2, 32), (3, 128), (4, -1), (8, 64)])
@pytest.mark.parametrize("offset", [False, True])
def test_a_few_rounds_from_the_grid_err_little_more_than_the_solver(q, g, offset):
    """On inputs without correlation this is BCQ; method bcq tries more starts, to the end."""
    weight, methods = drawn(16, 256), (GPTQBCQ(offset=offset), BCQ(offset=offset))
    ours, best = (output_error(method, weight, q, g, torch.eye(256)) for method in methods)
    assert ours <= 1.15 * best


def assert_beats_converted(weight, q, g, **options):
    """Same inputs, same damping, no more bits stored; (a) uniform GPTQ packed by Eq. 5, (b) this method."""
    hessian, methods = correlated(weight.shape[1]), (GPTQ(**options), GPTQBCQ(**options))
    converted, fitted = (formats.pack(quantize(m, weight, q, g, hessian)) for m in methods)
    assert fitted.bits_stored <= converted.to_bcq().bits_stored
    uniform, ours = (output_error(method, weight, q, g, hessian) for method in methods)
    assert ours < uniform


@pytest.mark.parametrize("g", [32, 64, 128])
@pytest.mark.parametrize("q", [1, 2, 3])
def test_beats_converted_gptq_at_few_bits(q, g):
    assert_beats_converted(drawn(48, 256), q, g, act_order=(q + g // 32) % 2 == 0)


@pytest.mark.parametrize(("q", "g"), [(2, 32), (2, 128), (3, 32), (3, 128)])
def test_beats_converted_gptq_on_real_weights(shared, q, g):
    safetensors = pytest.importorskip("safetensors")
    file = shared / "models" / "gpt2-124m-attention-only" / "weights.safetensors"
    if not file.is_file():
        pytest.skip(f"no {file}")
    with safetensors.safe_open(file, "pt") as tensors:
        weight = tensors.get_tensor("transformer.h.0.attn.q_proj.weight").float()
    assert_beats_converted(weight[:96].contiguous(), q, g)
