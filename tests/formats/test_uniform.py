"""Eq. 5 is read backwards to the last bit, and words hold what their picture says."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lutlab.formats import bcq
from lutlab.formats.uniform import pack_words, to_uniform, unpack_words
from lutlab.quantizers.bcq import BCQ
from lutlab.quantizers.rtn import RTN
from lutlab.tensors import UniformTensor


@st.composite
def uniform_tensors(draw):
    q, rows, columns = draw(st.integers(1, 8)), draw(st.integers(1, 4)), draw(st.integers(1, 50))
    g = draw(st.sampled_from([-1, 8, 11, 32]))
    groups = 1 if g == -1 else -(-columns // g)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    codes = torch.randint(2**q, (rows, columns), generator=generator, dtype=torch.uint8)
    scale = torch.randn(rows, groups, generator=generator) * 10.0 ** draw(st.integers(-6, 3))
    scale[torch.rand(rows, groups, generator=generator) < 0.1] = 0
    edge = draw(st.sampled_from([2**q, 300, 32000]))
    zero_point = torch.randint(-edge, edge, (rows, groups), generator=generator)
    dtype = draw(st.sampled_from([torch.float16, torch.float32]))
    return UniformTensor(codes, scale.to(dtype), zero_point.to(torch.int16), q, g)


@settings(deadline=None, max_examples=100)
@given(uniform_tensors())
def test_from_uniform_and_back(tensor):
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


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 70), st.integers(0, 99))
def test_words_and_back(q, rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(2**q, (rows, columns), generator=generator, dtype=torch.uint8)
    words = pack_words(values.T.contiguous().T, q)
    assert words.dtype == torch.int32
    assert words.shape == (rows, -(-columns * q // 32))
    assert torch.equal(unpack_words(words, q, columns), values)
    for row, numbers in zip(words.tolist(), values.tolist(), strict=True):
        stream = sum(number << (i * q) for i, number in enumerate(numbers))
        assert [word % 2**32 for word in row] == [
            (stream >> 32 * i) % 2**32 for i in range(len(row))
        ]
