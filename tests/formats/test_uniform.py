"""The stored form of uniform codes, its size, and Eq. 5 read in both directions to the last bit."""

import dataclasses

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.quantizers.weights import assert_same, correlated, drawn, exact, quantize

import gguf
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import UniformTensor
from lutlab.formats import bcq, code_words, uniform
from lutlab.formats.uniform import PackedUniform, to_uniform
from lutlab.quantizers.awq import AWQ
from lutlab.quantizers.bcq import BCQ
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.rtn import RTN


@st.composite
def uniform_tensors(draw, offsets=True):
    """Scales from float16's subnormals to beyond what 2^(q-2) s leaves in float16, and zeros; zero points anywhere."""
    q, rows, columns = draw(st.integers(1, 8)), draw(st.integers(1, 4)), draw(st.integers(1, 100))
    g = draw(st.sampled_from([-1, 8, 11, 32, 128]))
    groups = 1 if g == -1 else -(-columns // g)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    size = st.integers(-30, 12).map(lambda exponent: 2.0**exponent)
    dtype = st.sampled_from([torch.float16, torch.float32])
    codes = torch.randint(2**q, (rows, columns), generator=generator, dtype=torch.uint8)
    scale = torch.randn(rows, groups, generator=generator) * draw(size)
    scale[torch.rand(rows, groups, generator=generator) < 0.1] = 0
    scale = scale.to(draw(dtype))
    low, high = draw(st.sampled_from([(0, 2**q), (-(2**q), 2**q), (-300, 300), (1 - 2**15, 2**15)]))
    zero_point = torch.randint(low, high, (rows, groups), generator=generator).short()
    order = torch.randperm(columns, generator=generator).int() if draw(st.booleans()) else None
    if offsets and draw(st.booleans()):
        offset = torch.randn(rows, groups, generator=generator) * draw(size)
        return UniformTensor(codes, scale, None, q, g, order, offset.to(draw(dtype)))
    return UniformTensor(codes, scale, zero_point, q, g, order)


def coded(scale=1.0, zero=None, offset=None, q=4):
    """One row of ones in one group, with a scale and a zero point or an offset."""
    zero = None if zero is None else torch.full((1, 1), zero, dtype=torch.int16)
    offset = None if offset is None else torch.full((1, 1), offset)
    codes = torch.ones(1, 8, dtype=torch.uint8)
    return UniformTensor(codes, torch.full((1, 1), scale), zero, q, -1, offset=offset)


@settings(max_examples=40)
@given(uniform_tensors())
@example(coded(zero=16))  # just above codes of 4 bits
def test_packed_and_unpacked_is_the_same_to_the_last_bit(tensor):
    packed = PackedUniform.pack(tensor)
    assert_same(vars(packed.unpack()), vars(tensor))
    rows, columns = packed.shape
    assert packed.shape == tensor.codes.shape
    if tensor.offset is None:
        zeros, top = tensor.zero_point.numel(), 2**tensor.bits
        inside = bool(((tensor.zero_point >= 0) & (tensor.zero_point < top)).all())
        shift = 32 * -(-zeros * tensor.bits // 32) if inside else 16 * zeros
    else:
        shift = 8 * tensor.offset.nbytes
    order = 0 if tensor.order is None else 32 * columns
    codes = rows * 32 * -(-columns * tensor.bits // 32)
    assert packed.bits_stored == codes + 8 * tensor.scale.nbytes + shift + order


@settings(max_examples=40)
@given(uniform_tensors())
def test_dequantized_is_the_nearest_float32_and_that_of_the_binary_form(tensor):
    packed = PackedUniform.pack(tensor)
    weight = packed.dequantize()
    assert torch.equal(weight, exact(tensor).float())
    if packed.bcq_bits is None:
        assert tensor.offset is not None
        return
    binary = packed.to_bcq().dequantize()
    assert torch.equal(weight.view(torch.int32), binary.view(torch.int32)), "zeros have signs too"


@pytest.mark.parametrize("method", [RTN(), GPTQ(), AWQ()])
def test_four_bits_in_groups_of_32_are_4_625_bits(method):
    packed = PackedUniform.pack(quantize(method, drawn(8, 64), 4, 32, correlated(64)))
    assert packed.bits_per_weight == 4 + (16 + 4) / 32


@pytest.mark.parametrize(("wrong", "message"), [
    *(({"scale": value, "zero": 0}, "1 of 1 scales are inf or nan") for value in (torch.inf, torch.nan)),
    *(({"offset": value}, "1 of 1 offsets are inf or nan") for value in (torch.inf, torch.nan)),
    ({}, "both a zero_point and an offset, or neither"),
])  # fmt: skip
def test_what_is_no_weight_is_refused(wrong, message):
    with pytest.raises(LutlabError, match=message):
        PackedUniform.pack(coded(**wrong))


def test_a_block_of_q4_1_is_five_bits_a_weight_and_what_gguf_decodes():
    kind = gguf.GGMLQuantizationType.Q4_1
    weight = drawn(16, 96, seed=4) * 10.0 ** -torch.arange(16).view(-1, 1)
    weight[3, 32:64] = 0.25  # d = 0
    data = gguf.quants.quantize(weight.numpy(), kind)
    blocks = torch.from_numpy(data).view(16, 3, 20)
    codes = torch.cat((blocks[..., 4:] & 15, blocks[..., 4:] >> 4), 2).flatten(1)
    scale, offset = blocks[..., :4].contiguous().view(torch.float16).unbind(2)
    packed = PackedUniform.pack(UniformTensor(codes, scale, None, 4, 32, offset=offset))
    assert packed.bits_per_weight == 5
    expected = torch.from_numpy(gguf.quants.dequantize(data, kind))
    assert_same((packed.dequantize(), packed.to_bcq().dequantize()), (expected, expected))
    assert packed.to_bcq().offset.dtype == torch.float32


def test_an_offset_too_far_from_its_scale_has_no_binary_form():
    for offset, is_exact in ((2.0**24, True), (2.0**51, True), (2.0**52, False)):
        packed = PackedUniform.pack(coded(offset=offset, q=1))
        assert (packed.bcq_bits is not None) == is_exact
    with pytest.raises(LutlabError, match="1 of 1 offsets are so much larger"):
        packed.to_bcq()


def test_in_row_chunks_it_is_the_same(monkeypatch):
    def made():
        packed = PackedUniform.pack(RTN().quantize(drawn(9, 70), 3, 8))
        return packed.buffers, packed.dequantize(), packed.unpack().codes

    whole = made()
    monkeypatch.setattr(uniform, "CHUNK_WEIGHTS", 150)
    monkeypatch.setattr(code_words, "CHUNK_VALUES", 150)
    assert_same(made(), whole)


@settings(max_examples=40)
@given(uniform_tensors(offsets=False))
def test_from_uniform_and_back_by_zero_points(tensor):
    again = to_uniform(bcq.from_uniform(tensor))
    assert torch.equal(again.codes, tensor.codes)
    assert torch.equal(again.scale.double(), tensor.scale.double())
    assert_same(again.zero_point, tensor.zero_point.masked_fill(tensor.scale == 0, 0))
    assert (again.bits, again.group_size) == (tensor.bits, tensor.group_size)


@pytest.mark.parametrize("q", [2, 3, 4])
@pytest.mark.parametrize("offset", [False, True])
def test_binary_codes_that_are_not_uniform(q, offset):
    assert to_uniform(BCQ(offset=offset).quantize(drawn(6, 48), q, 16)) is None


def test_one_last_bit_makes_the_difference():
    tensor = bcq.from_uniform(RTN().quantize(drawn(6, 48), 3, 16))
    assert to_uniform(tensor) is not None
    for field, at in (("alpha", (2, 3, 1)), ("offset", (3, 1))):
        values = getattr(tensor, field).clone()
        values[at] = torch.nextafter(values[at], values[at] + 1)
        assert to_uniform(dataclasses.replace(tensor, **{field: values})) is None
    assert to_uniform(dataclasses.replace(tensor, offset=None)) is None
