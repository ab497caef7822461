"""RTN against both repositories' rules, written out naively, and what must hold of any rounding to nearest."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.quantizers.naive_grids import rounded
from tests.quantizers.weights import assert_same, drawn, quantize

from lutlab import formats
from lutlab.quantizers.awq import AWQ
from lutlab.quantizers.rtn import RTN


@given(
    variant=st.sampled_from(["gptq", "awq", "autoawq"]), q=st.integers(1, 8), g=st.sampled_from([-1, 8, 24]),
    in_features=st.integers(1, 60), spread=st.sampled_from([(1, 0), (1, 2), (1, -5), (0, 0)]), symmetric=st.booleans(),
    half=st.booleans(), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_equal_to_the_repositories(variant, q, g, in_features, spread, symmetric, half, seed):
    """A scale that is stored in float16 is rounded before zero points and codes are taken; zeros stay zeros."""
    size, mean = spread
    weight = size * drawn(3, in_features, seed=seed) + mean
    tensor = RTN(variant, "fp16" if half else "fp32", symmetric).quantize(weight, q, g)
    expected = rounded(weight, q, g, variant, symmetric=symmetric, half=half)
    assert_same(formats.dequantize(tensor), expected)
    assert tensor.scale.dtype == (torch.float16 if half else torch.float32)
    assert not symmetric or (tensor.zero_point == 2 ** (q - 1)).all()


@pytest.mark.parametrize("method", [RTN("gptq"), RTN("awq"), AWQ(clip=False, grid=1)])
@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (1.0, 2.0), (-4.0, -3.0)])
def test_weights_on_one_side_of_zero_are_within_a_step(method, low, high):
    weight = torch.linspace(low, high, 128).unsqueeze(0)
    for q in (2, 4, 8):
        out = formats.dequantize(quantize(method, weight, q, 32, torch.eye(128)))
        assert (out - weight).abs().max() <= 0.501 * max(abs(low), abs(high)) / (2**q - 1)


def test_autoawqs_own_rule_loses_them():
    weight = torch.full((1, 128), 0.5)
    assert formats.dequantize(RTN("autoawq").quantize(weight, 4, 32)).max() < 2e-5
    both = torch.linspace(-1.0, 2.0, 128).unsqueeze(0)
    first, second = (RTN(variant).quantize(both, 4, 128) for variant in ("awq", "autoawq"))
    assert_same((first.codes, first.scale), (second.codes, second.scale))


def test_all_zero_group_has_gptqs_range():
    tensor = RTN("gptq", "fp32").quantize(torch.zeros(1, 8), 2, -1)
    assert tensor.scale.item() == pytest.approx(2 / 3)
    assert tensor.zero_point.item() == 2  # round(1.5), to even


@pytest.mark.parametrize("scale_dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e-9])
def test_tiny_weights_neither_divide_by_zero_nor_blow_up(size, scale_dtype):
    weight = size * torch.tensor([[1.0, -1.0, 0.5, 0.0] * 2])
    out = formats.dequantize(RTN("gptq", scale_dtype).quantize(weight, 4, -1))
    assert (out - weight).abs().max() <= max(size, 2.0**-24 if scale_dtype == "fp16" else 0)
