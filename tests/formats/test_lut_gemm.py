"""LUT-GEMM's order: words and scales where the drawing says, a round trip that keeps every bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.weights import bcq_tensor

from lutlab.formats import bcq, lut_gemm


@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 200),
    q=st.integers(1, 8),
    g=st.sampled_from([-1, 8, 24, 32, 40, 128]),
    alpha=st.sampled_from(["f16", "f32"]),
    offset=st.sampled_from([None, "f16", "f32"]),
    ordered=st.booleans(),
    seed=st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=40)
def test_planes_come_back(rows, columns, q, g, alpha, offset, ordered, seed):
    plain = bcq.pack(
        bcq_tensor(rows, columns, q, g, alpha=alpha, offset=offset, ordered=ordered, seed=seed)
    )
    packed = lut_gemm.pack(plain)
    back = lut_gemm.unpack(packed)
    for name in ("planes", "alpha", "offset"):
        there, here = getattr(back, name), getattr(plain, name)
        if here is None:
            assert there is None
        else:
            assert torch.equal(there, here)
            assert there.dtype == here.dtype
    assert (back.order is plain.order, back.group_size, back.shape) == (True, g, plain.shape)
    assert torch.equal(packed.dequantize(), plain.dequantize())
    assert packed.bits_stored >= plain.bits_stored
    assert all(b is None or b.is_contiguous() for b in packed.buffers.values())


def test_a_sign_and_its_alpha_are_where_the_drawing_says():
    tensor = bcq_tensor(33, 70, 2, 32, offset="f16")
    tensor.codes.zero_()
    tensor.codes[32, 37] = 2  # word 1, plane 1, row 32, bit 5
    packed = lut_gemm.pack(bcq.pack(tensor))
    assert packed.planes.shape == (3, 2, 64)
    assert packed.planes.nonzero().tolist() == [[1, 1, 32]]
    assert packed.planes[1, 1, 32] == 1 << 5
    assert packed.alpha[2, 1, 32] == tensor.alpha[1, 32, 2]
    assert packed.offset[2, 32] == tensor.offset[32, 2]
    assert not packed.alpha[..., 33:].any()


def test_an_offset_in_float64_becomes_float32():
    plain = bcq.pack(bcq_tensor(3, 40, 2, -1, offset="f32"))
    wide = bcq.PackedBCQ(plain.planes, plain.alpha, plain.offset.double(), (3, 40), -1)
    assert torch.equal(lut_gemm.pack(wide).offset, lut_gemm.pack(plain).offset)


@pytest.mark.parametrize("rows", [1, 32, 33])
def test_rows_of_words_are_aligned(rows):
    packed = lut_gemm.pack(bcq.pack(bcq_tensor(rows, 33, 1, -1)))
    assert packed.planes.stride(1) * 4 % 128 == 0
    assert lut_gemm.stride(rows) == packed.planes.shape[2]
