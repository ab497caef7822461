"""Layouts of planes for a GPU: words and scales where the drawings say, a round trip that keeps every bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.checks import assert_same, refused
from tests.kernels.gpu.lut_gemv_matrix import weight
from tests.kernels.weights import bcq_tensor

from lutlab.formats import bcq
from lutlab.kernels.gpu.lut_gemv import binary_tiles, lane_tables, paper

LAYOUTS = {"paper": paper, "lane_tables": lane_tables, "binary_tiles": binary_tiles}
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def bits_of(weight):
    held = (*weight.buffers.values(), weight.order)
    return 8 * sum(buffer.nbytes for buffer in held if buffer is not None)


def blank(rows, columns, g):
    """Two planes without a sign."""
    tensor = bcq_tensor(rows, columns, 2, g, offset="f16")
    tensor.codes.zero_()
    return tensor


@layouts
@given(
    rows=st.integers(1, 70), columns=st.one_of(st.integers(1, 400), st.integers(1000, 3200)), q=st.integers(1, 8),
    g=st.sampled_from([-1, 8, 24, 32, 40, 64, 96, 128, 160, 256, 1024, 1500]), alpha=st.sampled_from(["f16", "f32"]),
    offset=st.sampled_from([None, "f16", "f32"]), ordered=st.booleans(), seed=st.integers(0, 2**31),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_planes_come_back(layout, rows, columns, q, g, **options):
    if layout is binary_tiles and g % 32 and g > 0:
        g = -1
    plain = weight(rows, columns, q, g, **options)
    packed = layout.pack(plain)
    back = layout.unpack(packed)
    assert_same(back, plain)
    assert back.order is plain.order
    assert packed.bits == q
    assert bits_of(packed) >= plain.bits_stored
    assert all(b is None or b.is_contiguous() for b in packed.buffers.values())


@layouts
def test_an_offset_in_float64_becomes_float32(layout):
    plain = weight(3, 40, 2, -1, offset="f32")
    wide = bcq.PackedBCQ(plain.planes, plain.alpha, plain.offset.double(), (3, 40), -1)
    assert torch.equal(layout.pack(wide).offset, layout.pack(plain).offset)


def test_paper_of_a_sign_and_its_alpha():
    tensor = blank(33, 70, 32)
    tensor.codes[32, 37] = 2  # word 1, plane 1, row 32, bit 5
    packed = paper.pack(bcq.pack(tensor))
    planes = packed.buffers["planes"]
    assert planes.shape == (3, 2, 64)
    assert planes.nonzero().tolist() == [[1, 1, 32]]
    assert planes[1, 1, 32] == 1 << 5
    assert packed.alpha[2, 1, 32] == tensor.alpha[1, 32, 2]
    assert packed.offset[2, 32] == tensor.offset[32, 2]
    assert not packed.alpha[..., 33:].any()


def test_lane_tables_of_a_sign_and_its_scales():
    tensor = blank(33, 2048 + 70, 96)
    column = 23 * 32 + 5  # 67 words are three slices of 23, so this is word 0 of slice 1
    tensor.codes[30, column] = 2
    packed = lane_tables.pack(bcq.pack(tensor))
    planes = packed.buffers["planes"]
    assert planes.shape == (3, 16, 2, 23, 4)
    assert planes.nonzero().tolist() == [[1, 7, 1, 0, 2]]
    assert planes[1, 7, 1, 0, 2] == 1 << 5
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
    tensor = blank(40, 300, 128)
    tensor.codes[32 + 5, 128 + 2 * 32 + 7] = 2  # tile 1, row 5; block 1, word 2, bit 7; plane 1
    tensor.codes[17, 3] = 1  # tile 0, row 17 = 1 + 16; block 0, word 0, bit 3; plane 0
    packed = binary_tiles.pack(bcq.pack(tensor))
    planes = packed.buffers["planes"]
    assert planes.shape == (2, 3, 2, 32, 4)
    assert planes.nonzero().tolist() == [[0, 0, 0, 4 * 1 + 0, 2], [1, 1, 1, 4 * 5 + 2, 0]]
    assert planes[0, 0, 0, 4, 2] == 1 << 3
    assert planes[1, 1, 1, 22, 0] == 1 << 7
    assert packed.alpha[0, 2, 1, 4 * 1 + 2] == tensor.alpha[1, 17, 2]
    assert packed.offset[0, 2, 4 * 1 + 2] == tensor.offset[17, 2]
    assert torch.count_nonzero(packed.alpha[1]) == 2 * 3 * 8  # rows 32 .. 39


@pytest.mark.parametrize(("g", "columns", "expected"), [
    (32, 33, (4, 1, 1, 4)),
    (64, 300, (2, 1, 3, 6)),
    (96, 200, (1, 1, 3, 3)),
    (128, 12288, (1, 1, 96, 96)),
    (256, 300, (1, 2, 3, 2)),  # the last group has 44 columns: one block
    (-1, 12288, (1, 96, 96, 1)),
    (128, 40, (1, 1, 1, 1)),  # a group no longer than K
])  # fmt: skip
def test_groups_share_blocks_or_begin_them(g, columns, expected):
    layout = binary_tiles.cut(g, columns)
    assert (layout.parts, layout.run, layout.blocks, layout.groups) == expected


def test_nothing_is_padded_at_real_shapes():
    plain = weight(64, 512, 3, 128, offset="f16")
    assert bits_of(binary_tiles.pack(plain)) == plain.bits_stored


def test_groups_that_end_inside_a_word_are_refused():
    message = "g=40: .*multiples of 32, or one group"
    refused(message, binary_tiles.pack, weight(3, 100, 2, 40))
    binary_tiles.pack(weight(3, 40, 2, 40))  # one group
