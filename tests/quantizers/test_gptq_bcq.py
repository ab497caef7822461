"""GPTQ with binary codes fitted on the way: the naive version agrees, and few bits err less than the uniform grid's."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.quantizers.naive_gptq import agree, correlated, naive_gptq
from tests.quantizers.test_gptq import by_channel, quantize, random_weight, weighted_error

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.quantizers.bcq import BCQ
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.gptq_bcq import GPTQBCQ, solve_from_grid


def fitted_codes(values, q, offset, dtype=torch.float16):
    return solve_from_grid(values, q, rounds=GPTQBCQ().rounds, offset=offset, dtype=dtype)


def binary_book(q, offset):
    """Codewords of the solver (tested by itself) for every row of a group; nearest by all distances."""

    def fit(values):
        alpha, z = fitted_codes(values.contiguous(), q, offset)
        signs = torch.tensor(
            [[2.0 * (code >> b & 1) - 1 for b in range(q)] for code in range(2**q)]
        )
        words = alpha.double().t() @ signs.double().t()
        if offset:
            words += z.double().unsqueeze(1)

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
    q=st.integers(1, 4),
    g=st.sampled_from([-1, 8, 13, 32]),
    in_features=st.integers(16, 45),
    act_order=st.booleans(),
    offset=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_codes_of_static_groups_equal_the_naive_ones(q, g, in_features, act_order, offset, seed):
    weight, hessian = random_weight(5, in_features, seed), correlated(in_features, seed)
    order = {"act_order": act_order, "static_groups": True}
    tensor = quantize(GPTQBCQ(offset=offset, **order), weight, q, g, hessian)
    naive = naive_gptq(weight, hessian, g, binary_book(q, offset=offset), **order)
    assert tensor.order is None
    agree(tensor.codes, naive, tie=1e-4)


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(("q", "g"), [(2, 32), (3, 40), (4, -1)])
def test_groups_fitted_on_the_way_equal_the_naive_ones(q, g, act_order, offset):
    """float32 against float64 may send a solver elsewhere, or a value across a tie: in few rows."""
    weight, hessian = random_weight(40, 96), correlated(96)
    tensor = quantize(GPTQBCQ(act_order=act_order, offset=offset), weight, q, g, hessian)
    naive = naive_gptq(weight, hessian, g, binary_book(q, offset=offset), act_order=act_order)
    assert (by_channel(tensor) == naive.codes).all(dim=1).float().mean() >= 0.9


@pytest.mark.parametrize(("q", "g"), [(1, 16), (2, 32), (3, 128), (4, -1), (8, 64)])
@pytest.mark.parametrize("offset", [False, True])
def test_a_few_rounds_from_the_grid_err_little_more_than_the_solver(q, g, offset):
    """On inputs without correlation this is BCQ; method bcq tries more starts, to the end."""
    weight = random_weight(16, 256)
    ours = quantize(GPTQBCQ(offset=offset), weight, q, g, torch.eye(256))
    error = (formats.dequantize(ours) - weight).square().sum()
    best = formats.dequantize(BCQ(offset=offset).quantize(weight, q, g))
    assert error <= 1.15 * (best - weight).square().sum()


@pytest.mark.parametrize("g", [32, 64, 128])
@pytest.mark.parametrize("q", [1, 2, 3])
def test_beats_converted_gptq_at_few_bits(q, g):
    """Same inputs, same damping, no more bits stored; (a) uniform GPTQ packed by Eq. 5, (b) this method."""
    act_order = (q + g // 32) % 2 == 0
    weight, hessian = random_weight(48, 256), correlated(256)
    converted = quantize(GPTQ(act_order=act_order), weight, q, g, hessian)
    fitted = quantize(GPTQBCQ(act_order=act_order), weight, q, g, hessian)
    assert formats.pack(fitted).bits_stored <= formats.pack(converted).to_bcq().bits_stored
    error = weighted_error(weight, fitted, hessian)
    assert error < weighted_error(weight, converted, hessian)


@pytest.mark.parametrize(("q", "g"), [(2, 32), (2, 128), (3, 32), (3, 128)])
def test_beats_converted_gptq_on_real_weights(shared, q, g):
    safetensors = pytest.importorskip("safetensors")
    file = shared / "models" / "gpt2-124m-attention-only" / "weights.safetensors"
    if not file.is_file():
        pytest.skip(f"no {file}")
    with safetensors.safe_open(file, "pt") as tensors:
        weight = tensors.get_tensor("transformer.h.0.attn.q_proj.weight").float()[:96].contiguous()
    hessian = correlated(weight.shape[1])
    converted = quantize(GPTQ(), weight, q, g, hessian)
    fitted = quantize(GPTQBCQ(), weight, q, g, hessian)
    error = weighted_error(weight, fitted, hessian)
    assert error < weighted_error(weight, converted, hessian)


def test_output_error_is_below_bcqs():
    weight, hessian = random_weight(32, 128), correlated(128)
    ours = quantize(GPTQBCQ(offset=False), weight, 3, 32, hessian)
    alone = BCQ().quantize(weight, 3, 32)
    assert weighted_error(weight, ours, hessian) < 0.6 * weighted_error(weight, alone, hessian)


def test_every_code_is_the_nearest_of_its_group():
    """On inputs without correlation W' is W: no other codeword of the group may be nearer."""
    weight = random_weight(6, 64)
    tensor = quantize(GPTQBCQ(), weight, 3, 16, torch.eye(64))
    out = formats.dequantize(tensor)
    for row, group in itertools.product(range(6), range(4)):
        at = slice(16 * group, 16 * group + 16)
        signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=3))).double()
        words = signs @ tensor.alpha[:, row, group].double() + tensor.offset[row, group].double()
        nearest = (weight[row, at, None].double() - words).abs().amin(dim=1)
        assert torch.allclose((weight[row, at] - out[row, at]).abs().double(), nearest, atol=1e-6)


@pytest.mark.parametrize("options", [{"rounds": 0}, {"damp": -1}])
def test_refuses_options_out_of_range(options):
    with pytest.raises(LutlabError, match="of at least"):
        GPTQBCQ(**options)


def test_refuses_coefficients_beyond_fp16():
    with pytest.raises(LutlabError, match="alpha_dtype=fp32"):
        quantize(GPTQBCQ(), 1e6 * random_weight(2, 16), 3, 8, torch.eye(16))
