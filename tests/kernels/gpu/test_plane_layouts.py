"""Layouts of planes for a GPU: words and scales where the drawings say, a round trip that keeps every bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.weights import bcq_tensor

from lutlab.base.errors import LutlabError
from lutlab.formats import bcq
from lutlab.kernels.gpu.lut_gemv import binary_tiles, lane_tables, paper

LAYOUTS = {"paper": paper, "lane_tables": lane_tables, "binary_tiles": binary_tiles}
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def bytes_of(weight):
    held = (*weight.buffers.values(), weight.order)
    return sum(one.nbytes for one in held if one is not None)


@layouts
@given(
    rows=st.integers(1, 70),
    columns=st.one_of(st.integers(1, 400), st.integers(1000, 3200)),
    q=st.integers(1, 8),
    g=st.sampled_from([-1, 8, 24, 32, 40, 64, 96, 128, 160, 256, 1024, 1500]),
    alpha=st.sampled_from(["f16", "f32"]),
    offset=st.sampled_from([None, "f16", "f32"]),
    ordered=st.booleans(),
    seed=st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=60)
def test_planes_come_back(layout, rows, columns, q, g, alpha, offset, ordered, seed):
    if layout is binary_tiles and g % 32 and g > 0:
        g = -1
    plain = bcq.pack(
        bcq_tensor(rows, columns, q, g, alpha=alpha, offset=offset, ordered=ordered, seed=seed)
    )
    packed = layout.pack(plain)
    back = layout.unpack(packed)
    for name in ("planes", "alpha", "offset"):
        there, here = getattr(back, name), getattr(plain, name)
        if here is None:
            assert there is None
        else:
            assert torch.equal(there, here)
            assert there.dtype == here.dtype
    assert (back.order is plain.order, back.group_size, back.shape) == (True, g, plain.shape)
    assert packed.bits == q
    assert 8 * bytes_of(packed) >= plain.bits_stored
    assert all(b is None or b.is_contiguous() for b in packed.buffers.values())


@layouts
def test_an_offset_in_float64_becomes_float32(layout):
    plain = bcq.pack(bcq_tensor(3, 40, 2, -1, offset="f32"))
    wide = bcq.PackedBCQ(plain.planes, plain.alpha, plain.offset.double(), (3, 40), -1)
    assert torch.equal(layout.pack(wide).offset, layout.pack(plain).offset)
    assert torch.equal(layout.unpack(layout.pack(plain)).dequantize(), plain.dequantize())


def test_paper_of_a_sign_and_its_alpha():
    tensor = bcq_tensor(33, 70, 2, 32, offset="f16")
    tensor.codes.zero_()
    tensor.codes[32, 37] = 2  # word 1, plane 1, row 32, bit 5
    packed = paper.pack(bcq.pack(tensor))
    assert packed.buffers["planes"].shape == (3, 2, 64)
    assert packed.buffers["planes"].nonzero().tolist() == [[1, 1, 32]]
    assert packed.buffers["planes"][1, 1, 32] == 1 << 5
    assert packed.alpha[2, 1, 32] == tensor.alpha[1, 32, 2]
    assert packed.offset[2, 32] == tensor.offset[32, 2]
    assert not packed.alpha[..., 33:].any()


@pytest.mark.parametrize("rows", [1, 32, 33])
def test_rows_of_words_are_aligned(rows):
    packed = paper.pack(bcq.pack(bcq_tensor(rows, 33, 1, -1)))
    assert packed.buffers["planes"].stride(1) * 4 % 128 == 0
    assert paper.stride(rows) == packed.buffers["planes"].shape[2]


def test_lane_tables_of_a_sign_and_its_scales():
    tensor = bcq_tensor(33, 2048 + 70, 2, 96, offset="f16")
    tensor.codes.zero_()
    column = 23 * 32 + 5  # 67 words are three slices of 23, so this is word 0 of slice 1
    tensor.codes[30, column] = 2
    packed = lane_tables.pack(bcq.pack(tensor))
    assert packed.buffers["planes"].shape == (3, 16, 2, 23, 4)
    assert packed.buffers["planes"].nonzero().tolist() == [[1, 7, 1, 0, 2]]
    assert packed.buffers["planes"][1, 7, 1, 0, 2] == 1 << 5
    group = column // 96
    assert lane_tables.first_groups(2048 + 70, 96)[0][1] == group
    assert packed.alpha[1, 7, 1, 0, 2] == tensor.alpha[1, 30, group]
    assert packed.offset[1, 7, 0, 2] == tensor.offset[30, group]
    assert not packed.alpha[:, 8, :, :, 1:].any()
    assert not packed.alpha[:, 9:].any()


def test_cuts_waste_less_than_a_word_a_slice():
    for columns in range(1, 40000, 7):
        slices, words = lane_tables.cut(columns)
        have = -(-columns // 32)
        assert (slices - 1) * words < have <= slices * words < have + slices
        assert words <= 32


def test_binary_tiles_of_a_sign_and_its_scales():
    tensor = bcq_tensor(40, 300, 2, 128, offset="f16")
    tensor.codes.zero_()
    tensor.codes[32 + 5, 128 + 2 * 32 + 7] = 2  # tile 1, row 5; block 1, word 2, bit 7; plane 1
    tensor.codes[17, 3] = 1  # tile 0, row 17 = 1 + 16; block 0, word 0, bit 3; plane 0
    packed = binary_tiles.pack(bcq.pack(tensor))
    assert packed.buffers["planes"].shape == (2, 3, 2, 32, 4)
    assert packed.buffers["planes"].nonzero().tolist() == [
        [0, 0, 0, 4 * 1 + 0, 2],
        [1, 1, 1, 4 * 5 + 2, 0],
    ]
    assert packed.buffers["planes"][0, 0, 0, 4, 2] == 1 << 3
    assert packed.buffers["planes"][1, 1, 1, 22, 0] == 1 << 7
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
    assert 8 * bytes_of(binary_tiles.pack(plain)) == plain.bits_stored


def test_groups_that_end_inside_a_word_are_refused():
    with pytest.raises(LutlabError, match=r"g=40: .*multiples of 32, or one group"):
        binary_tiles.pack(bcq.pack(bcq_tensor(3, 100, 2, 40)))
    binary_tiles.pack(bcq.pack(bcq_tensor(3, 40, 2, 40)))  # one group
