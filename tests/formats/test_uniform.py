"""The stored form of uniform codes, its size, and Eq. 5 read in both directions to the last bit."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gguf
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import CalibStats, UniformTensor
from lutlab.formats import bcq, code_words, uniform
from lutlab.formats.uniform import PackedUniform, to_uniform
from lutlab.quantizers.awq import AWQ
from lutlab.quantizers.bcq import BCQ
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.rtn import RTN


@st.composite
def uniform_tensors(draw, offsets=True):
    q, rows, columns = draw(st.integers(1, 8)), draw(st.integers(1, 4)), draw(st.integers(1, 50))
    g = draw(st.sampled_from([-1, 8, 11, 32]))
    groups = 1 if g == -1 else -(-columns // g)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    codes = torch.randint(2**q, (rows, columns), generator=generator, dtype=torch.uint8)
    scale = torch.randn(rows, groups, generator=generator) * 10.0 ** draw(st.integers(-6, 3))
    scale[torch.rand(rows, groups, generator=generator) < 0.1] = 0
    low, high = draw(st.sampled_from([(0, 2**q), (-(2**q), 2**q), (-300, 300), (-32000, 32000)]))
    zero_point = torch.randint(low, high, (rows, groups), generator=generator)
    dtype = draw(st.sampled_from([torch.float16, torch.float32]))
    order = torch.randperm(columns, generator=generator).int() if draw(st.booleans()) else None
    if offsets and draw(st.booleans()):
        offset = torch.randn(rows, groups, generator=generator) * 10.0 ** draw(st.integers(-6, 3))
        own = draw(st.sampled_from([torch.float16, torch.float32]))
        return UniformTensor(codes, scale.to(dtype), None, q, g, order, offset.to(own))
    return UniformTensor(codes, scale.to(dtype), zero_point.to(torch.int16), q, g, order)


@settings(deadline=None, max_examples=40)
@given(uniform_tensors())
def test_packed_and_unpacked_is_the_same_to_the_last_bit(tensor):
    packed = PackedUniform.pack(tensor)
    again = packed.unpack()
    for field in ("codes", "scale", "zero_point", "order", "offset"):
        before, after = getattr(tensor, field), getattr(again, field)
        assert before is after is None or (
            torch.equal(before, after) and before.dtype == after.dtype
        )
    assert (again.bits, again.group_size) == (tensor.bits, tensor.group_size)
    assert packed.shape == tensor.codes.shape
    rows, columns = packed.shape
    if tensor.offset is None:
        zeros, top = tensor.zero_point.numel(), 2**tensor.bits
        inside = bool(((tensor.zero_point >= 0) & (tensor.zero_point < top)).all())
        shift = 32 * -(-zeros * tensor.bits // 32) if inside else 16 * zeros
    else:
        shift = tensor.offset.numel() * tensor.offset.itemsize * 8
    assert packed.bits_stored == (
        rows * 32 * -(-columns * tensor.bits // 32)
        + tensor.scale.numel() * tensor.scale.itemsize * 8
        + shift
        + (0 if tensor.order is None else 32 * columns)
    )


@settings(deadline=None, max_examples=40)
@given(uniform_tensors())
def test_dequantized_is_the_nearest_float32_and_that_of_the_binary_form(tensor):
    packed = PackedUniform.pack(tensor)
    found = packed.dequantize()
    groups = tensor.scale.shape[1]
    length = packed.shape[1] if groups == 1 else tensor.group_size
    group = torch.arange(packed.shape[1]) // length
    codes, scale = tensor.codes.double(), tensor.scale.double()[:, group]
    if tensor.offset is None:
        exact = (codes - tensor.zero_point.double()[:, group]) * scale
    else:
        exact = codes * scale + tensor.offset.double()[:, group]
    channels = slice(None) if tensor.order is None else tensor.order.long()
    assert torch.equal(found[:, channels], exact.float())
    if packed.bcq_bits is None:
        assert tensor.offset is not None
        return
    binary = packed.to_bcq().dequantize()
    assert torch.equal(found.view(torch.int32), binary.view(torch.int32)), "zeros have signs too"


def statistics():
    x = torch.randn(96, 64, generator=torch.Generator().manual_seed(2))
    return CalibStats(x.T @ x / len(x), x.abs().mean(0), len(x))


@pytest.mark.parametrize("method", [RTN(), GPTQ(), AWQ()])
def test_four_bits_in_groups_of_32_are_4_625_bits(method):
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    prepared = () if isinstance(method, RTN) else (method.prepare(statistics()),)
    packed = PackedUniform.pack(method.quantize(weight, 4, 32, *prepared))
    assert packed.bits_per_weight == 4 + (16 + 4) / 32


def test_a_zero_point_outside_of_the_codes_takes_16_bits():
    tensor = UniformTensor(
        torch.zeros(4, 64, dtype=torch.uint8),
        torch.ones(4, 2).half(),
        torch.full((4, 2), 16, dtype=torch.int16),
        4,
        32,
    )
    assert PackedUniform.pack(tensor).bits_per_weight == 4 + (16 + 16) / 32


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_scales_that_are_no_numbers_are_refused(value):
    tensor = UniformTensor(
        torch.zeros(1, 8, dtype=torch.uint8),
        torch.full((1, 1), value),
        torch.zeros(1, 1, dtype=torch.int16),
        4,
        -1,
    )
    with pytest.raises(LutlabError, match="1 of 1 scales are inf or nan"):
        PackedUniform.pack(tensor)
    shifted = dataclasses.replace(
        tensor, scale=torch.ones(1, 1), zero_point=None, offset=tensor.scale
    )
    with pytest.raises(LutlabError, match="1 of 1 offsets are inf or nan"):
        PackedUniform.pack(shifted)


def test_a_block_of_q4_1_is_five_bits_a_weight_and_what_gguf_decodes():
    kind = gguf.GGMLQuantizationType.Q4_1
    weight = torch.randn(
        16, 96, generator=torch.Generator().manual_seed(4)
    ) * 10.0 ** -torch.arange(16).view(-1, 1)
    weight[3, 32:64] = 0.25  # d = 0
    data = gguf.quants.quantize(weight.numpy(), kind)
    blocks = torch.from_numpy(data).view(16, 3, 20)
    low, high = blocks[..., 4:] & 15, blocks[..., 4:] >> 4
    codes = torch.cat((low, high), 2).flatten(1)
    scale, offset = blocks[..., :4].contiguous().view(torch.float16).unbind(2)
    packed = PackedUniform.pack(UniformTensor(codes, scale, None, 4, 32, offset=offset))
    assert packed.bits_per_weight == 5
    expected = torch.from_numpy(gguf.quants.dequantize(data, kind))
    assert torch.equal(packed.dequantize(), expected)
    assert torch.equal(packed.to_bcq().dequantize(), expected)
    assert packed.to_bcq().offset.dtype == torch.float32


def test_an_offset_too_far_from_its_scale_has_no_binary_form():
    ones = torch.ones(1, 8, dtype=torch.uint8)
    for offset, exact in ((2.0**24, True), (2.0**51, True), (2.0**52, False)):
        packed = PackedUniform.pack(
            UniformTensor(ones, torch.ones(1, 1), None, 1, -1, offset=torch.full((1, 1), offset))
        )
        assert (packed.bcq_bits is not None) == exact
        if not exact:
            with pytest.raises(LutlabError, match="1 of 1 offsets are so much larger"):
                packed.to_bcq()
    with pytest.raises(LutlabError, match="both a zero_point and an offset, or neither"):
        PackedUniform.pack(UniformTensor(ones, torch.ones(1, 1), None, 1, -1))


def test_in_row_chunks_it_is_the_same(monkeypatch):
    tensor = RTN().quantize(torch.randn(9, 70, generator=torch.Generator().manual_seed(3)), 3, 8)
    whole = PackedUniform.pack(tensor)
    expected = whole.dequantize()
    monkeypatch.setattr(uniform, "CHUNK_WEIGHTS", 150)
    monkeypatch.setattr(code_words, "CHUNK_VALUES", 150)
    again = PackedUniform.pack(tensor)
    assert torch.equal(again.qweight, whole.qweight)
    assert torch.equal(again.qzero, whole.qzero)
    assert torch.equal(again.dequantize(), expected)
    assert torch.equal(again.unpack().codes, tensor.codes)


@settings(deadline=None, max_examples=40)
@given(uniform_tensors(offsets=False))
def test_from_uniform_and_back_by_zero_points(tensor):
    again = to_uniform(bcq.from_uniform(tensor))
    assert torch.equal(again.codes, tensor.codes)
    assert torch.equal(again.scale.double(), tensor.scale.double())
    used = tensor.scale != 0
    assert torch.equal(again.zero_point[used], tensor.zero_point[used])
    assert not again.zero_point[~used].any()
    assert (again.bits, again.group_size) == (tensor.bits, tensor.group_size)


def weight():
    return torch.randn(6, 48, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("q", [2, 3, 4])
@pytest.mark.parametrize("offset", [False, True])
def test_binary_codes_that_are_not_uniform(q, offset):
    assert to_uniform(BCQ(offset=offset).quantize(weight(), q, 16)) is None


def test_one_last_bit_makes_the_difference():
    tensor = bcq.from_uniform(RTN().quantize(weight(), 3, 16))
    assert to_uniform(tensor) is not None
    for field in ("alpha", "offset"):
        values = getattr(tensor, field).clone()
        at = (2, 3, 1) if field == "alpha" else (3, 1)
        values[at] = torch.nextafter(values[at], values[at] + 1)
        assert to_uniform(dataclasses.replace(tensor, **{field: values})) is None
    assert to_uniform(dataclasses.replace(tensor, offset=None)) is None
