"""The order of the binary tensor cores: words and scales where the drawing says, a round trip that keeps every bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.weights import bcq_tensor

from lutlab.errors import LutlabError
from lutlab.formats import bcq, binary_tiles


@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 400),
    q=st.integers(1, 8),
    g=st.sampled_from([-1, 32, 64, 96, 128, 160, 256]),
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
    packed = binary_tiles.pack(plain)
    back = binary_tiles.unpack(packed)
    for name in ("planes", "alpha", "offset"):
        there, here = getattr(back, name), getattr(plain, name)
        if here is None:
            assert there is None
        else:
            assert torch.equal(there, here)
            assert there.dtype == here.dtype
    assert (back.order is plain.order, back.group_size, back.shape) == (True, g, plain.shape)
    assert torch.equal(packed.dequantize(), plain.dequantize())
    assert packed.bits == q
    assert all(b is None or b.is_contiguous() for b in packed.buffers.values())


def test_a_sign_and_its_scales_are_where_the_drawing_says():
    tensor = bcq_tensor(40, 300, 2, 128, offset="f16")
    tensor.codes.zero_()
    tensor.codes[32 + 5, 128 + 2 * 32 + 7] = 2  # tile 1, row 5; block 1, word 2, bit 7; plane 1
    tensor.codes[17, 3] = 1  # tile 0, row 17 = 1 + 16; block 0, word 0, bit 3; plane 0
    packed = binary_tiles.pack(bcq.pack(tensor))
    assert packed.planes.shape == (2, 3, 2, 32, 4)
    assert packed.planes.nonzero().tolist() == [[0, 0, 0, 4 * 1 + 0, 2], [1, 1, 1, 4 * 5 + 2, 0]]
    assert packed.planes[0, 0, 0, 4, 2] == 1 << 3
    assert packed.planes[1, 1, 1, 22, 0] == 1 << 7
    assert packed.alpha[0, 2, 1, 4 * 1 + 2] == tensor.alpha[1, 17, 2]
    assert packed.offset[0, 2, 4 * 1 + 2] == tensor.offset[17, 2]
    assert torch.count_nonzero(packed.alpha[1]) == 2 * 3 * 8  # rows 32 .. 39


def test_groups_share_blocks_or_begin_them():
    def blocks(g, columns):
        layout = binary_tiles.cut(g, columns)
        return layout.parts, layout.run, layout.blocks, layout.groups

    assert blocks(32, 33) == (4, 1, 1, 4)
    assert blocks(64, 300) == (2, 1, 3, 6)
    assert blocks(96, 200) == (1, 1, 3, 3)
    assert blocks(128, 12288) == (1, 1, 96, 96)
    assert blocks(256, 300) == (1, 2, 3, 2)  # the last group has 44 columns: one block
    assert blocks(-1, 12288) == (1, 96, 96, 1)
    assert blocks(128, 40) == (1, 1, 1, 1)  # a group no longer than K


def test_nothing_is_padded_at_real_shapes():
    plain = bcq.pack(bcq_tensor(64, 512, 3, 128, offset="f16"))
    assert binary_tiles.pack(plain).bits_stored == plain.bits_stored


def test_an_offset_in_float64_becomes_float32():
    plain = bcq.pack(bcq_tensor(3, 40, 2, -1, offset="f32"))
    wide = bcq.PackedBCQ(plain.planes, plain.alpha, plain.offset.double(), (3, 40), -1)
    assert torch.equal(binary_tiles.pack(wide).offset, binary_tiles.pack(plain).offset)


def test_groups_that_end_inside_a_word_are_refused():
    with pytest.raises(LutlabError, match=r"g=40: .*multiples of 32, or one group"):
        binary_tiles.pack(bcq.pack(bcq_tensor(3, 100, 2, 40)))
    binary_tiles.pack(bcq.pack(bcq_tensor(3, 40, 2, 40)))  # one group
