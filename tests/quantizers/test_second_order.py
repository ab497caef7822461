"""Coefficients of second order: codes come back, grids hold what they must, and few bits cost next to nothing."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.checks import refused
from tests.kernels.weights import second_order_tensor
from tests.quantizers.weights import (
    assert_same,
    correlated,
    drawn,
    exact,
    quantize,
    row_errors,
    stats_of,
)

from lutlab import formats
from lutlab.base import second_order
from lutlab.quantizers.coefficient_grids import Grids, on_grids
from lutlab.quantizers.coefficients import quantized
from lutlab.quantizers.contract import make_method
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.gptq_bcq import GPTQBCQ
from lutlab.quantizers.hessian_bcq import HessianBCQ

METHODS = (GPTQBCQ, HessianBCQ)


@given(
    bits=st.integers(1, 7), significant=st.integers(1, 15), place=st.integers(-24, 5), zero=st.integers(-128, 126),
)  # fmt: skip
def test_every_point_of_a_grid_is_a_float16_and_has_its_code(bits, significant, place, zero):
    code = torch.arange(2**bits, dtype=torch.uint8).view(1, 1, -1)
    zero = min(zero, 128 - 2**bits)
    grid = torch.tensor([[significant * 2.0**place]]).half(), torch.tensor([[zero]])
    a = second_order.decoded(code, *grid)
    assert a.flatten().tolist() == [(c + zero) * significant * 2.0**place for c in range(2**bits)]
    assert torch.equal(second_order.nearest(a, *grid, bits), code)


def test_weights_are_by_the_definition():
    tensor = second_order_tensor(5, 45, 3, 16, scale_bits=5, ordered=True)
    grids = tensor.scale_step.double()[:, :, None], tensor.scale_zero.double()[:, :, None]
    a = (grids[0] * (tensor.scale_code + grids[1])).half()
    binary = tensor.binary()
    assert_same((binary.alpha, binary.offset), (a[:3], a[3]))
    assert_same(formats.dequantize(tensor), exact(binary).float())


@given(seed=st.integers(0, 2**31), groups=st.integers(1, 20), bits=st.sampled_from([4, 7]))
def test_a_grid_errs_by_half_a_step_of_the_range_at_most_on_average(seed, groups, bits):
    a = drawn(3, 4, groups, seed=seed) * 0.1 + torch.tensor([2.0, 0.5, 0.0])[:, None, None]
    step, zero = second_order.grid(a, bits)
    error = second_order.decoded(second_order.nearest(a, step, zero, bits), step, zero).float() - a
    low, high = a.aminmax(dim=2)
    widest = torch.maximum((high - low) / (2**bits - 1), torch.maximum(-low, high) / 127)
    assert (error.square().mean(dim=2).sqrt() <= widest * 0.6).all()
    mantissa, _ = torch.frexp(step.double())
    assert (mantissa * 16 % 1 == 0).all()


@pytest.mark.parametrize("value", [0.0, 0.75, -3.0])
def test_equal_coefficients_and_zeros_have_a_grid(value):
    a = torch.full((1, 2, 5), value)
    grid = second_order.grid(a, 4)
    back = second_order.decoded(second_order.nearest(a, *grid, 4), *grid)
    torch.testing.assert_close(back.float(), a, rtol=0.005, atol=0)


@pytest.mark.parametrize("method", [*METHODS, GPTQ])
@pytest.mark.parametrize(("q", "g", "bits"), [(2, 16, 4), (3, 32, 4), (3, 32, 7)])
def test_few_bits_of_a_coefficient_cost_hardly_any_error(method, q, g, bits):
    weight, hessian = drawn(96, 192), correlated(192)
    option, p, more = (
        ("scale_bits", 1, {"sweeps": 2}) if method is GPTQ else ("alpha_bits", q + 1, {})
    )
    few_bits = method(**{option: bits}, **more)
    wide, few = (quantize(m, weight, q, g, hessian) for m in (method(**more), few_bits))
    ours, theirs = (row_errors(weight, tensor, hessian).sum() for tensor in (few, wide))
    assert ours <= (1.08 if bits == 4 else 1.05) * theirs
    less = (16 - bits) * p * 192 // g - 24 * p  # of a row
    sizes = [formats.pack(tensor).bits_stored for tensor in (wide, few)]
    assert sizes[0] - sizes[1] == 96 * less
    assert formats.name_of(formats.pack(few)) == few_bits.format


@pytest.mark.parametrize("offset", [True, False])
def test_a_sweep_on_grids_never_errs_more_than_moving_to_them(offset):
    weight, hessian = drawn(24, 96), correlated(96)
    wide = quantize(HessianBCQ(offset=offset), weight, 2, 16, hessian)
    moved = on_grids(wide, Grids(second_order.coefficients(wide.alpha, wide.offset), 4))
    swept = quantize(HessianBCQ(offset=offset, alpha_bits=4), weight, 2, 16, hessian)
    assert_same((swept.scale_step, swept.scale_zero), (moved.scale_step, moved.scale_zero))
    errors = [row_errors(weight, tensor, hessian) for tensor in (swept, moved)]
    assert (errors[0] <= (1 + 1e-9) * errors[1]).all()
    assert errors[0].sum() < 0.99 * errors[1].sum()


@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"sweeps": 1, "act_order": True}])
def test_scales_lie_on_their_grids_and_a_sweep_on_them_errs_less(options):
    weight, hessian = drawn(24, 96), correlated(96)
    wide = quantize(GPTQ(**options), weight, 3, 16, hessian)
    few = quantize(GPTQ(scale_bits=4, **options), weight, 3, 16, hessian)
    grids = Grids(wide.scale.unsqueeze(0), 4)
    assert_same((few.scale_step, few.scale_zero), (grids.step, grids.zero))
    scale = second_order.decoded(grids.codes(wide.scale.unsqueeze(0)), grids.step, grids.zero)[0]
    moved = row_errors(weight, replace(wide, scale=scale), hessian)
    assert (row_errors(weight, few, hessian) <= (1 + 1e-9) * moved).all()
    assert (few.uniform().scale > 0).all()
    if "symmetric" in options:
        assert (few.zero_point == 4).all()


def test_hessian_uniform_is_gptq_with_these_options():
    options = {"sweeps": 3, "true_sequential": True, "target": "stream", "first_token": 50.0}
    options |= {"damp": 1.0, "sweep_damp": 1.0}
    ours, gptq = make_method("hessian_uniform"), make_method("gptq", scale_bits=4, **options)
    assert vars(ours) == vars(gptq)
    weight, hessian = drawn(8, 64), correlated(64)
    assert_same(*(vars(quantize(method, weight, 3, 32, hessian)) for method in (ours, gptq)))


@pytest.mark.parametrize("options", [{}, {"offset": True}, {"solver": "greedy"}])
def test_weights_alone_take_the_nearest_codes_of_coefficients_on_grids(options):
    weight = drawn(12, 70)
    wide, few = (
        make_method("bcq", alpha_bits=b, **options).quantize(weight, 3, 16) for b in (16, 4)
    )
    codes = torch.arange(8, dtype=torch.uint8).view(1, 8).expand(12, 8)
    errors = []
    for group in range(5):  # all words of each group, one beside the other
        part = {n: getattr(few, n)[:, :, group : group + 1] for n in ("scale_code",)}
        words = formats.dequantize(replace(few, codes=codes, group_size=-1, **part))
        distance = (weight[:, 16 * group : 16 * group + 16, None] - words[:, None]).abs()
        errors.append(distance.amin(dim=2))
    error = (formats.dequantize(few) - weight).abs()
    torch.testing.assert_close(error, torch.cat(errors, dim=1))
    assert error.square().sum() < 1.2 * (formats.dequantize(wide) - weight).square().sum()


@pytest.mark.parametrize(
    ("method", "bits", "most"), [(GPTQ, "scale_bits", 1.1), (HessianBCQ, "alpha_bits", 1.35)]
)
def test_a_row_with_a_group_of_outliers_loses_little(method, bits, most):
    weight, hessian = drawn(16, 128), torch.eye(128)
    weight[:, 32:48] *= 50
    wide, few = (quantize(method(sweeps=1, **{bits: b}), weight, 3, 16, hessian) for b in (16, 4))
    errors = [row_errors(weight, tensor, hessian).sum() for tensor in (wide, few)]
    assert errors[1] <= most * errors[0]


def test_rows_of_zeros_stay_zeros():
    weight = drawn(4, 64)
    weight[1] = 0
    uniform = [GPTQ(scale_bits=4, variant=variant) for variant in ("gptq", "awq")]
    for method in (*(m(alpha_bits=4) for m in METHODS), *uniform):
        tensor = quantize(method, weight, 2, 16, correlated(64))
        assert (formats.dequantize(tensor)[1] == 0).all()
        assert method not in uniform or (tensor.uniform().scale > 0).all()


def test_weights_too_small_for_a_grid_of_float16_are_refused_not_lost():
    method = GPTQBCQ(alpha_bits=4)
    prepared = method.prepare(stats_of(correlated(64)))
    refused(
        r"on grids \(alpha_bits, scale_bits\) have no others",
        quantized,
        method,
        drawn(4, 64) * 1e-7,
        2,
        16,
        prepared,
    )


def test_what_has_no_meaning_is_refused():
    for method in METHODS:
        refused("alpha_bits=3: give 4 to 7, or 16", method, alpha_bits=3)
        refused("take alpha_dtype=fp16, or alpha_bits=16", method, alpha_bits=4, alpha_dtype="fp32")
    refused("scale_bits=8: give 4 to 7, or 16", GPTQ, scale_bits=8)
    refused("take scale_dtype=fp16, or scale_bits=16", GPTQ, scale_bits=4, scale_dtype="fp32")
