"""GPTQ against a naive version of the paper, column by column, and what must hold of any error compensation."""

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.quantizers.naive_gptq import agree, naive_gptq
from tests.quantizers.naive_grids import uniform_book
from tests.quantizers.weights import (
    assert_same,
    correlated,
    drawn,
    output_error,
    quantize,
    stats_of,
)

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import CalibStats
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.rtn import RTN


@given(
    q=st.integers(1, 8), g=st.sampled_from([-1, 8, 13, 32]), in_features=st.integers(1, 60),
    block_size=st.sampled_from([1, 8, 20, 128]), variant=st.sampled_from(["gptq", "awq", "autoawq"]),
    order=st.fixed_dictionaries({
        "damp": st.sampled_from([0.01, 0.1]), "act_order": st.booleans(), "static_groups": st.booleans(),
    }),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_codes_equal_the_naive_ones(q, g, in_features, block_size, variant, order, seed):
    weight, hessian = drawn(6, in_features, seed=seed), correlated(in_features, seed)
    method = GPTQ(block_size=block_size, variant=variant, scale_dtype="fp32", **order)
    tensor = quantize(method, weight, q, g, hessian)
    agree(tensor, naive_gptq(weight, hessian, g, uniform_book(q, variant), **order), tie=1e-3)


@pytest.mark.parametrize("scale_dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("g", [-1, 32, 72])
def test_nearly_every_row_is_equal_to_the_last_code(g, act_order, scale_dtype):
    weight, hessian = drawn(40, 96), correlated(96)
    method = GPTQ(act_order=act_order, scale_dtype=scale_dtype)
    book = uniform_book(3, half=scale_dtype == "fp16")
    naive = naive_gptq(weight, hessian, g, book, act_order=act_order)
    assert agree(quantize(method, weight, 3, g, hessian), naive, tie=1e-3) >= 0.9


@pytest.mark.parametrize("g", [-1, 8, 24])
@pytest.mark.parametrize("grid", [("gptq", "fp16", False), ("gptq", "fp16", True), ("awq", "fp16", False)])  # fmt: skip
def test_uncorrelated_inputs_give_rtn(g, grid):
    weight, plain = drawn(7, 50), RTN(*grid)
    hessian = torch.diag(torch.rand(50, generator=torch.Generator().manual_seed(1)) + 0.1)
    tensor = quantize(GPTQ(**vars(plain)), weight, 3, g, hessian)
    assert_same(vars(tensor), vars(plain.quantize(weight, 3, g)))


def test_sweeps_leave_a_symmetric_grid_where_it_is():
    weight, hessian = drawn(48, 160), correlated(160)
    plain, swept = GPTQ(symmetric=True), GPTQ(symmetric=True, sweeps=2)
    assert (quantize(swept, weight, 3, 32, hessian).zero_point == 4).all()
    before, after = (output_error(method, weight, 3, 32, hessian) for method in (plain, swept))
    assert after < before


@pytest.mark.parametrize("g", [-1, 8, 24])
def test_act_order_is_quantizing_permuted_channels(g):
    weight, hessian = drawn(9, 60), correlated(60)
    order = torch.argsort(hessian.diagonal(), descending=True)
    there = quantize(GPTQ(act_order=True), weight, 3, g, hessian)
    expected = quantize(GPTQ(), weight[:, order], 3, g, hessian[order][:, order])
    assert torch.equal(formats.dequantize(there)[:, order], formats.dequantize(expected))
    if g == -1:
        assert there.order is None, "one group needs no order"
    else:
        assert_same(there.order, order.int())
        assert_same(there.codes, expected.codes)


def test_static_groups_need_no_order():
    weight, hessian = drawn(9, 60), correlated(60)
    tensor = quantize(GPTQ(act_order=True, static_groups=True), weight, 3, 16, hessian)
    assert tensor.order is None
    assert torch.equal(tensor.scale, RTN().quantize(weight, 3, 16).scale)


def test_dead_columns_are_zeroed_and_leave_the_others_alone():
    weight, hessian = drawn(8, 40), correlated(40)
    dead = torch.tensor([0, 7, 8, 39])
    hessian[dead], hessian[:, dead] = 0, 0
    out = formats.dequantize(quantize(GPTQ(act_order=True), weight, 4, -1, hessian))
    assert (out[:, dead] == 0).all()
    alive = torch.tensor([k for k in range(40) if k not in dead])
    same_damp = 0.01 * len(alive) / 40  # the mean of the diagonal counts the dead
    method = GPTQ(act_order=True, damp=same_damp)
    without = quantize(method, weight[:, alive], 4, -1, hessian[alive][:, alive])
    assert torch.equal(out[:, alive], formats.dequantize(without))


def test_no_input_at_all_gives_zeros():
    tensor = quantize(GPTQ(), drawn(3, 16), 4, 8, torch.zeros(16, 16))
    assert (formats.dequantize(tensor) == 0).all()


def test_raises_damping_where_hessian_is_not_positive_definite_and_says_so(caplog):
    assert GPTQ(damp=0.05).prepare(stats_of(correlated(16))).damp == 0.05
    x = drawn(5, 64, seed=3)  # 5 tokens, 64 channels
    hessian = x.t() @ x / 5
    with caplog.at_level(logging.WARNING, logger="lutlab"):
        prepared = GPTQ(damp=0.0).prepare(stats_of(hessian))
    assert prepared.damp >= 1e-4
    assert f"raised to {prepared.damp:g}" in caplog.text
    ours, plain = (output_error(method, drawn(4, 64), 4, 16, hessian) for method in (GPTQ(), RTN()))  # fmt: skip
    assert ours < plain


def test_scale_of_the_inputs_does_not_matter():
    weight, hessian = drawn(8, 40), correlated(40)
    small, large = (quantize(GPTQ(), weight, 3, 16, hessian * size) for size in (1, 2.0**20))
    assert_same(small.codes, large.codes)


@pytest.mark.parametrize(("at", "value", "message"), [
    ((3, 4), torch.nan, "not finite"), ((3, 4), torch.inf, "not finite"), ((3, 3), -1.0, "negative"),
])  # fmt: skip
def test_refuses_inputs_without_a_hessian(at, value, message):
    hessian = correlated(16)
    hessian[at] = value
    with pytest.raises(LutlabError, match=message):
        GPTQ().prepare(CalibStats(hessian, torch.ones(16), 1))
