"""The order of lane_tables: words and scales where the drawing says, a round trip that keeps every bit."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.weights import bcq_tensor

from lutlab.formats import bcq, bcq_lanes


@given(
    rows=st.integers(1, 20),
    columns=st.one_of(st.integers(1, 200), st.integers(1000, 3200)),
    q=st.integers(1, 8),
    g=st.sampled_from([-1, 8, 24, 32, 40, 128, 1024, 1500]),
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
    packed = bcq_lanes.pack(plain)
    back = bcq_lanes.unpack(packed)
    for name in ("planes", "alpha", "offset"):
        there, here = getattr(back, name), getattr(plain, name)
        if here is None:
            assert there is None
        else:
            assert torch.equal(there, here)
            assert there.dtype == here.dtype
    assert (back.order is plain.order, back.group_size, back.shape) == (True, g, plain.shape)
    assert packed.bits == q
    assert packed.bits_stored >= plain.bits_stored
    assert all(b is None or b.is_contiguous() for b in packed.buffers.values())


def test_a_sign_and_its_scales_are_where_the_drawing_says():
    tensor = bcq_tensor(33, 2048 + 70, 2, 96, offset="f16")
    tensor.codes.zero_()
    column = 23 * 32 + 5  # 67 words are three slices of 23, so this is word 0 of slice 1
    tensor.codes[30, column] = 2
    packed = bcq_lanes.pack(bcq.pack(tensor))
    assert packed.planes.shape == (3, 16, 2, 23, 4)
    assert packed.planes.nonzero().tolist() == [[1, 7, 1, 0, 2]]
    assert packed.planes[1, 7, 1, 0, 2] == 1 << 5
    group = column // 96
    assert bcq_lanes.first_groups(2048 + 70, 96)[0][1] == group
    assert packed.alpha[1, 7, 1, 0, 2] == tensor.alpha[1, 30, group]
    assert packed.offset[1, 7, 0, 2] == tensor.offset[30, group]
    assert not packed.alpha[:, 8, :, :, 1:].any()
    assert not packed.alpha[:, 9:].any()


def test_an_offset_in_float64_becomes_float32():
    plain = bcq.pack(bcq_tensor(3, 40, 2, -1, offset="f32"))
    wide = bcq.PackedBCQ(plain.planes, plain.alpha, plain.offset.double(), (3, 40), -1)
    assert torch.equal(bcq_lanes.pack(wide).offset, bcq_lanes.pack(plain).offset)
    assert torch.equal(bcq_lanes.pack(plain).dequantize(), plain.dequantize())


def test_cuts_waste_less_than_a_word_a_slice():
    for columns in range(1, 40000, 7):
        slices, words = bcq_lanes.cut(columns)
        have = -(-columns // 32)
        assert (slices - 1) * words < have <= slices * words < have + slices
        assert words <= 32
