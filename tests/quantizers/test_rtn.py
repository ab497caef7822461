"""RTN against both repositories' rules, written out naively here, one group at a time."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.compress.calibrate import stats_of
from lutlab.quantizers.awq import AWQ
from lutlab.quantizers.rtn import RTN


def gptq_quantizer(group: torch.Tensor, q: int, symmetric: bool) -> torch.Tensor:
    """GPTQ quant.py, perchannel, mse=False: a row's min and max always enclose zero; sym mirrors the larger one."""
    top = torch.tensor(2**q - 1)
    low, high = min(group.min().item(), 0.0), max(group.max().item(), 0.0)
    if symmetric:
        high = max(-low, high)
        low = -high
    if low == 0 and high == 0:
        low, high = -1.0, 1.0
    scale = (torch.tensor(high) - torch.tensor(low)) / top
    zero = (top + 1) / 2 if symmetric else torch.round(-torch.tensor(low) / scale)
    level = torch.clamp(torch.round(group / scale) + zero, 0, top)
    return scale * (level - zero)


def awq_quantizer(group: torch.Tensor, q: int, symmetric: bool = False) -> torch.Tensor:
    """AWQ's rule over a range that holds 0."""
    held = torch.cat([group, torch.zeros(1)])
    return autoawq_quantizer(held, q, symmetric)[:-1]


def autoawq_quantizer(group: torch.Tensor, q: int, symmetric: bool = False) -> torch.Tensor:
    """AWQ pseudo_quantize_tensor, zero_point=not symmetric; of one bit it has no symmetric form."""
    if symmetric:
        half = 2 ** (q - 1)
        scale = group.abs().max().clamp(min=1e-5) / max(0.5, half - 1)
        return torch.clamp(torch.round(group / scale), -half, half - 1) * scale
    scale = (group.max() - group.min()).clamp(min=1e-5) / (2**q - 1)
    zero = (-torch.round(group.min() / scale)).clamp(0, 2**q - 1)
    level = torch.clamp(torch.round(group / scale) + zero, 0, 2**q - 1)
    return (level - zero) * scale


NAIVE = {"gptq": gptq_quantizer, "awq": awq_quantizer, "autoawq": autoawq_quantizer}


def naive(weight: torch.Tensor, q: int, g: int, variant: str, symmetric: bool) -> torch.Tensor:
    length = weight.shape[1] if g == -1 else g
    pieces = [
        torch.cat([NAIVE[variant](piece, q, symmetric) for piece in row.split(length)])
        for row in weight
    ]
    return torch.stack(pieces)


@given(
    variant=st.sampled_from(sorted(NAIVE)),
    q=st.integers(1, 8),
    g=st.sampled_from([-1, 8, 24]),
    in_features=st.integers(1, 60),
    mean=st.sampled_from([0.0, 2.0, -5.0]),
    symmetric=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_in_float32_equal_to_the_repositories(variant, q, g, in_features, mean, symmetric, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, in_features, generator=generator) + mean
    method = RTN(variant=variant, scale_dtype="fp32", symmetric=symmetric)
    tensor = method.quantize(weight, q, g)
    assert torch.equal(formats.dequantize(tensor), naive(weight, q, g, variant, symmetric))
    assert not symmetric or bool((tensor.zero_point == 2 ** (q - 1)).all())


@pytest.mark.parametrize("method", [RTN("gptq"), RTN("awq"), AWQ(clip=False, grid=1)])
@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (1.0, 2.0), (-4.0, -3.0)])
def test_weights_on_one_side_of_zero_are_within_a_step(method, low, high):
    weight = torch.linspace(low, high, 128).unsqueeze(0)
    prepared = () if isinstance(method, RTN) else (method.prepare(stats_of(torch.eye(128))),)
    for q in (2, 4, 8):
        error = (formats.dequantize(method.quantize(weight, q, 32, *prepared)) - weight).abs().max()
        assert error <= 0.501 * max(abs(low), abs(high)) / (2**q - 1)


def test_autoawqs_own_rule_loses_them():
    weight = torch.full((1, 128), 0.5)
    assert formats.dequantize(RTN("autoawq").quantize(weight, 4, 32)).max() < 2e-5
    both = torch.linspace(-1.0, 2.0, 128).unsqueeze(0)
    first, second = (RTN(variant).quantize(both, 4, 128) for variant in ("awq", "autoawq"))
    assert torch.equal(first.codes, second.codes)
    assert torch.equal(first.scale, second.scale)


@pytest.mark.parametrize("scale_dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("variant", ["gptq", "awq"])
def test_zeros_stay_zeros(variant, scale_dtype):
    tensor = RTN(variant, scale_dtype).quantize(torch.zeros(2, 16), 3, 8)
    assert torch.equal(formats.dequantize(tensor), torch.zeros(2, 16))


def test_all_zero_group_has_gptqs_range():
    tensor = RTN("gptq", "fp32").quantize(torch.zeros(1, 8), 2, -1)
    assert tensor.scale.item() == pytest.approx(2 / 3)
    assert tensor.zero_point.item() == 2  # round(1.5), to even


@pytest.mark.parametrize("variant", ["gptq", "awq"])
@pytest.mark.parametrize("q", [2, 4, 8])
def test_codes_are_nearest_for_the_scale_as_stored(variant, q):
    generator = torch.Generator().manual_seed(q)
    weight = torch.randn(16, 64, generator=generator)
    tensor = RTN(variant, "fp16").quantize(weight, q, 32)
    assert tensor.scale.dtype == torch.float16
    scale = tensor.scale.double().repeat_interleave(32, 1)
    zero = tensor.zero_point.double().repeat_interleave(32, 1)
    inside = (tensor.codes > 0) & (tensor.codes < 2**q - 1)
    miss = (scale * (tensor.codes.double() - zero) - weight).abs() / scale
    assert miss[inside].max() <= 0.5 + 1e-4


def test_fp16_scale_rounds_before_the_codes_are_taken():
    """0.1 + 2^-14 is no float16: with codes from the unrounded scale, level 200 would be off by a step."""
    top = 255 * (0.1 + 2.0**-14)
    weight = torch.linspace(0, top, 64).unsqueeze(0)
    stored = RTN(scale_dtype="fp16").quantize(weight, 8, -1)
    exact = RTN(scale_dtype="fp32").quantize(weight, 8, -1)
    assert stored.scale.float() != exact.scale
    assert not torch.equal(stored.codes, exact.codes)
    assert (formats.dequantize(stored) - weight)[0, :-4].abs().max() <= 0.5001 * stored.scale.item()


@pytest.mark.parametrize("scale_dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e-9])
def test_tiny_weights_neither_divide_by_zero_nor_blow_up(size, scale_dtype):
    weight = size * torch.tensor([[1.0, -1.0, 0.5, 0.0] * 2])
    out = formats.dequantize(RTN("gptq", scale_dtype).quantize(weight, 4, -1))
    assert (out - weight).abs().max() <= max(size, 2.0**-24 if scale_dtype == "fp16" else 0)


@pytest.mark.parametrize(("scale_dtype", "size"), [("fp16", 1e7), ("fp32", 3e38)])
def test_scales_beyond_the_stored_type_are_refused(scale_dtype, size):
    with pytest.raises(LutlabError, match=f"beyond {scale_dtype}"):
        RTN(scale_dtype=scale_dtype).quantize(size * torch.tensor([[1.0, -1.0] * 4]), 2, -1)


def test_unknown_options_suggest():
    with pytest.raises(LutlabError, match="did you mean 'gptq'"):
        RTN(variant="gtpq")


@pytest.mark.parametrize(("q", "expected"), [(2, 0.2553), (3, 0.0466), (4, 0.0101)])
def test_gaussian_error(q, expected):
    """Relative squared error on Gaussian weights, g = 128; measured once with a program of its own."""
    weight = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0))
    out = formats.dequantize(RTN().quantize(weight, q, 128))
    error = ((out - weight).square().sum() / weight.square().sum()).item()
    assert math.isclose(error, expected, rel_tol=0.02)
