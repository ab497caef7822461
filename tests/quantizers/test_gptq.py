"""GPTQ against a naive version of the paper, column by column, and what must hold of any error compensation."""

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.quantizers.naive_gptq import agree, correlated, naive_gptq

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import CalibStats
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.rtn import RTN


def stats_of(hessian):
    return CalibStats(hessian, hessian.diagonal().sqrt(), 1)


def quantize(method, weight, q, g, hessian):
    return method.quantize(weight, q, g, method.prepare(stats_of(hessian)))


def random_weight(rows, in_features, seed=0):
    return torch.randn(rows, in_features, generator=torch.Generator().manual_seed(seed))


def weighted_error(weight, tensor, hessian):
    error = formats.dequantize(tensor).double() - weight.double()
    return ((error @ hessian.double()) * error).sum().item()


def uniform_book(q, variant="gptq", half=False):
    """The grid of GPTQ's or AWQ's repository for every row of a group."""
    top = 2**q - 1

    def fit(values):
        low, high = values.amin(1), values.amax(1)
        if variant != "autoawq":
            low, high = low.clamp(max=0), high.clamp(min=0)
        if variant == "gptq":
            empty = (low == 0) & (high == 0)
            low[empty], high[empty] = -1, 1
            scale = (high - low) / top
        else:
            scale = (high - low).clamp(min=1e-5) / top
        scale = scale.half().float() if half else scale
        zero = torch.round(-low / scale)
        zero = zero if variant == "gptq" else zero.clamp(0, top)

        def column(w):
            place = w / scale.double()
            codes = (torch.round(place) + zero).clamp(0, top)
            return codes, scale.double() * (codes - zero), ((place % 1) - 0.5).abs()

        return column

    return fit


def by_channel(tensor):
    if tensor.order is None:
        return tensor.codes
    codes = torch.empty_like(tensor.codes)
    codes[:, tensor.order.long()] = tensor.codes
    return codes


@given(
    q=st.integers(1, 8),
    g=st.sampled_from([-1, 8, 13, 32]),
    in_features=st.integers(1, 60),
    block_size=st.sampled_from([1, 8, 20, 128]),
    act_order=st.booleans(),
    static_groups=st.booleans(),
    variant=st.sampled_from(["gptq", "awq", "autoawq"]),
    damp=st.sampled_from([0.01, 0.1]),
    seed=st.integers(0, 2**31),
)
def test_codes_equal_the_naive_ones(
    q, g, in_features, block_size, act_order, static_groups, variant, damp, seed
):
    weight, hessian = random_weight(6, in_features, seed), correlated(in_features, seed)
    order = {"damp": damp, "act_order": act_order, "static_groups": static_groups}
    method = GPTQ(block_size=block_size, variant=variant, scale_dtype="fp32", **order)
    tensor = quantize(method, weight, q, g, hessian)
    naive = naive_gptq(weight, hessian, g, uniform_book(q, variant), **order)
    agree(by_channel(tensor), naive, tie=1e-3)


@pytest.mark.parametrize("scale_dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("g", [-1, 32, 72])
def test_nearly_every_row_is_equal_to_the_last_code(g, act_order, scale_dtype):
    weight, hessian = random_weight(40, 96), correlated(96)
    method = GPTQ(act_order=act_order, scale_dtype=scale_dtype)
    tensor = quantize(method, weight, 3, g, hessian)
    book = uniform_book(3, half=scale_dtype == "fp16")
    naive = naive_gptq(weight, hessian, g, book, act_order=act_order)
    assert (by_channel(tensor) == naive.codes).all(dim=1).float().mean() >= 0.9


@pytest.mark.parametrize(
    ("q", "g", "act_order", "static_groups"),
    [
        *((2, 32, False, False), (2, 32, True, True), (3, -1, True, False), (3, -1, False, True)),
        *((4, 48, False, True), (4, 48, True, False), (8, 16, False, False), (8, 16, True, True)),
    ],
)
def test_output_error_is_below_rtns(q, g, act_order, static_groups):
    weight, hessian = random_weight(48, 160), correlated(160)
    method = GPTQ(act_order=act_order, static_groups=static_groups)
    ours = weighted_error(weight, quantize(method, weight, q, g, hessian), hessian)
    assert ours < 0.7 * weighted_error(weight, RTN().quantize(weight, q, g), hessian)


@pytest.mark.parametrize("g", [-1, 8, 24])
@pytest.mark.parametrize(
    ("variant", "symmetric"), [("gptq", False), ("gptq", True), ("awq", False)]
)
def test_uncorrelated_inputs_give_rtn(g, variant, symmetric):
    weight = random_weight(7, 50)
    hessian = torch.diag(torch.rand(50, generator=torch.Generator().manual_seed(1)) + 0.1)
    tensor = quantize(GPTQ(variant=variant, symmetric=symmetric), weight, 3, g, hessian)
    expected = RTN(variant, symmetric=symmetric).quantize(weight, 3, g)
    assert torch.equal(tensor.codes, expected.codes)
    assert torch.equal(tensor.scale, expected.scale)
    assert torch.equal(tensor.zero_point, expected.zero_point)


def test_sweeps_leave_a_symmetric_grid_where_it_is():
    weight, hessian = random_weight(48, 160), correlated(160)
    before, after = (
        quantize(GPTQ(symmetric=True, sweeps=sweeps), weight, 3, 32, hessian) for sweeps in (0, 2)
    )
    assert bool((after.zero_point == 4).all())
    assert weighted_error(weight, after, hessian) < weighted_error(weight, before, hessian)


@pytest.mark.parametrize("g", [-1, 8, 24])
def test_act_order_is_quantizing_permuted_channels(g):
    weight, hessian = random_weight(9, 60), correlated(60)
    order = torch.argsort(hessian.diagonal(), descending=True)
    there = quantize(GPTQ(act_order=True), weight, 3, g, hessian)
    expected = quantize(GPTQ(), weight[:, order], 3, g, hessian[order][:, order])
    assert torch.equal(formats.dequantize(there)[:, order], formats.dequantize(expected))
    if g == -1:
        assert there.order is None, "one group needs no order"
    else:
        assert there.order.dtype == torch.int32
        assert torch.equal(there.order.long(), order)
        assert torch.equal(there.codes, expected.codes)


def test_static_groups_need_no_order():
    weight, hessian = random_weight(9, 60), correlated(60)
    tensor = quantize(GPTQ(act_order=True, static_groups=True), weight, 3, 16, hessian)
    assert tensor.order is None
    assert torch.equal(tensor.scale, RTN().quantize(weight, 3, 16).scale)


def test_block_size_changes_rounding_only():
    weight, hessian = random_weight(32, 200), correlated(200)
    one = quantize(GPTQ(block_size=1), weight, 4, 48, hessian)
    for block_size in (7, 64, 100, 128, 1000):
        other = quantize(GPTQ(block_size=block_size), weight, 4, 48, hessian)
        assert (one.codes == other.codes).float().mean() > 0.98


def test_dead_columns_are_zeroed_and_leave_the_others_alone():
    weight, hessian = random_weight(8, 40), correlated(40)
    dead = torch.tensor([0, 7, 8, 39])
    hessian[dead], hessian[:, dead] = 0, 0
    tensor = quantize(GPTQ(act_order=True), weight, 4, -1, hessian)
    assert (formats.dequantize(tensor)[:, dead] == 0).all()
    alive = torch.tensor([k for k in range(40) if k not in dead])
    same_damp = 0.01 * len(alive) / 40  # the mean of the diagonal counts the dead
    without = quantize(
        GPTQ(act_order=True, damp=same_damp), weight[:, alive], 4, -1, hessian[alive][:, alive]
    )
    assert torch.equal(formats.dequantize(tensor)[:, alive], formats.dequantize(without))


def test_no_input_at_all_gives_zeros():
    tensor = quantize(GPTQ(), random_weight(3, 16), 4, 8, torch.zeros(16, 16))
    assert (formats.dequantize(tensor) == 0).all()


def test_raises_damping_where_hessian_is_not_positive_definite(caplog):
    x = random_weight(5, 64, seed=3)  # 5 tokens, 64 channels
    hessian = x.t() @ x / 5
    with caplog.at_level(logging.WARNING, logger="lutlab"):
        prepared = GPTQ(damp=0.0).prepare(stats_of(hessian))
    assert prepared.damp >= 1e-4
    assert f"raised to {prepared.damp:g}" in caplog.text
    weight = random_weight(4, 64)
    tensor = GPTQ().quantize(weight, 4, 16, prepared)
    assert weighted_error(weight, tensor, hessian) < weighted_error(
        weight, RTN().quantize(weight, 4, 16), hessian
    )


def test_states_the_damping_used():
    assert GPTQ(damp=0.05).prepare(stats_of(correlated(16))).damp == 0.05


def test_scale_of_the_inputs_does_not_matter():
    weight, hessian = random_weight(8, 40), correlated(40)
    one = quantize(GPTQ(), weight, 3, 16, hessian)
    assert torch.equal(one.codes, quantize(GPTQ(), weight, 3, 16, 2.0**20 * hessian).codes)


def test_factor_makes_the_damped_hessian_diagonal():
    """(I + A)^-1 H (I + A)^-T = D, A strictly upper triangular."""
    hessian = correlated(50)
    prepared = GPTQ(act_order=True).prepare(stats_of(hessian))
    unit = prepared.feedback.t().double()
    assert torch.equal(unit, unit.triu())
    assert (unit.diagonal() == 1).all()
    at = prepared.order
    damped = hessian.double() + 0.01 * hessian.diagonal().double().mean() * torch.eye(50)
    found = torch.linalg.inv(unit) @ damped[at][:, at] @ torch.linalg.inv(unit).t()
    off = found - torch.diag(found.diagonal())
    assert (found.diagonal() > 0).all()
    assert off.abs().max() < 1e-5 * found.diagonal().max()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_refuses_inputs_that_are_no_numbers(bad):
    hessian = correlated(16)
    hessian[3, 4] = bad
    with pytest.raises(LutlabError, match="not finite"):
        GPTQ().prepare(stats_of(hessian))


def test_refuses_a_negative_diagonal():
    with pytest.raises(LutlabError, match="negative"):
        GPTQ().prepare(stats_of(-torch.eye(4)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": "full", "true_sequential": True}, "inputs=quantized"),
        ({"target": "outputs", "inputs": "full"}, "errors of the layers before, which inputs=full"),
        ({"target": "outputs"}, "give true_sequential=true"),
        ({"hessian": "gradients", "inputs": "full"}, "use inputs=quantized"),
        ({"hessian": "gradients", "act_order": True}, "drop one of them"),
        ({"output_groups": 0}, "output_groups=0"),
        ({"damp": -0.1}, "damp=-0.1"),
        ({"block_size": 0}, "block_size=0"),
    ],
)
def test_refuses_options_out_of_range(options, message):
    with pytest.raises(LutlabError, match=message):
        GPTQ(**options)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("scale_dtype", ["fp16", "fp32"])
def test_becomes_binary_codes_bit_for_bit(act_order, scale_dtype):
    """LUT-GEMM Eq. 5: packed, the weights are the float32 nearest to scale * (codes - zero_point)."""
    weight, hessian = random_weight(8, 70), correlated(70)
    method = GPTQ(act_order=act_order, scale_dtype=scale_dtype)
    tensor = quantize(method, weight, 3, 16, hessian)
    group = torch.arange(70) // 16
    scale, zero = tensor.scale.double()[:, group], tensor.zero_point.double()[:, group]
    exact = (scale * (tensor.codes.double() - zero)).float()
    out = formats.dequantize(tensor)
    columns = out if tensor.order is None else out[:, tensor.order.long()]
    assert torch.equal(columns, exact)
