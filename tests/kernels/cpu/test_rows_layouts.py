"""The kernels' layouts: words and scales where the drawing says, and round trips that keep every bit."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.checks import assert_same, refused
from tests.kernels.weights import bcq_tensor, uniform_tensor

from lutlab.formats import bcq
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.cpu import bcq_gemv, uniform_gemv
from lutlab.kernels.cpu.rows import row_blocks


def rows_of(stored, panel=512, lanes=4, codes=False):
    empty = uniform_gemv.empty(stored) if codes else bcq_gemv.empty(stored, lanes)
    return replace(empty, panel_columns=panel).filled(stored)


def bits_of(rows):
    return 8 * (rows.stream.nbytes + (0 if rows.order is None else rows.order.nbytes))


SHAPES = {
    "rows": st.integers(1, 70),
    "columns": st.integers(1, 300),
    "q": st.integers(1, 8),
    "g": st.sampled_from([-1, 8, 16, 24, 32, 40, 64, 104, 128]),
    "scale": st.sampled_from(["f16", "f32"]),
    "ordered": st.booleans(),
    "panel": st.sampled_from([32, 64, 96, 512]),
    "seed": st.integers(0, 2**31),
    "shift": st.sampled_from([None, "f16", "f32"]),
    "lanes": st.sampled_from([4, 2, 1]),
}


@given(**SHAPES)
@settings(deadline=None, max_examples=40)
def test_planes_come_back(rows, columns, q, g, scale, ordered, panel, seed, shift, lanes):
    options = {"alpha": scale, "offset": shift, "ordered": ordered, "seed": seed}
    plain = bcq.pack(bcq_tensor(rows, columns, q, g, **options))
    packed = rows_of(plain, panel, lanes)
    back = packed.stored()
    assert_same(back, plain, "planes", "alpha", "offset")
    assert (back.order is plain.order, back.group_size, back.shape) == (True, g, plain.shape)
    assert torch.equal(packed.dequantize(), plain.dequantize())
    assert bits_of(packed) >= rows * columns * q


@given(**SHAPES, planes=st.booleans())
@settings(deadline=None, max_examples=40)
def test_uniform_codes_come_back(rows, columns, q, g, panel, planes, lanes, **options):
    tensor = uniform_tensor(rows, columns, q, g, **options)
    packed = rows_of(PackedUniform.pack(tensor), panel, lanes, codes=not planes)
    back = packed.stored().unpack()
    assert_same(back, tensor, "codes", "scale", "zero_point", "offset")
    assert (back.bits, back.group_size, back.order is tensor.order) == (q, g, True)
    assert torch.equal(packed.dequantize(), bcq.pack(bcq.from_uniform(tensor)).dequantize())


def test_a_sign_and_its_alpha_are_where_the_drawing_says():
    rows, columns, q, g, panel = 40, 192, 2, 32, 64
    codes = torch.zeros(rows, columns, dtype=torch.uint8)
    n, k, b = 35, 165, 1  # block 1, lane 3; word 5 = unit 5, in panel 2; bit 5
    codes[n, k] = 1 << b
    alpha = torch.zeros(q, rows, columns // g, dtype=torch.float16)
    alpha[b, n, 5] = 1.5
    plain = bcq.pack(bcq_gemv.BCQTensor(codes, alpha, None, q, g))
    stream = rows_of(plain, panel).stream
    scale_bytes, word_bytes = q * 32 * 2, q * 32 * 4
    unit = scale_bytes + word_bytes
    at = 2 * (2 * 2 * unit) + 1 * (2 * unit) + 1 * unit  # panel 2, block 1, second unit
    expected = torch.zeros_like(stream)
    expected[at + scale_bytes + (b * 32 + 3) * 4] = 1 << 5
    half = torch.tensor([1.5], dtype=torch.float16).view(torch.uint8)
    expected[at + (b * 32 + 3) * 2 : at + (b * 32 + 3) * 2 + 2] = half
    assert torch.equal(stream, expected)


# Row 27 = 16 + 8 + 0 + 3, column 21: bit 21 of the word is bit 5 of half 1 or of byte 2.
@pytest.mark.parametrize(
    ("lane_bytes", "at"), [(4, 27 * 4 + 2), (2, 64 + (2 * 11 + 1) * 2), (1, 64 + 8 + 2 * 3 + 1)]
)
def test_pieces_of_a_word_are_where_the_drawing_says(lane_bytes, at):
    codes = torch.zeros(32, 32, dtype=torch.uint8)
    codes[27, 21] = 1
    alpha = torch.zeros(1, 32, 1, dtype=torch.float16)
    plain = bcq.pack(bcq_gemv.BCQTensor(codes, alpha, None, 1, 32))
    words = rows_of(plain, lanes=lane_bytes).stream[64:]
    assert words.nonzero().tolist() == [[at]]
    assert words[at] == 1 << 5


def test_a_code_is_in_the_field_the_drawing_says():
    tensor = uniform_tensor(33, 24, 4, 8)
    tensor.codes.zero_()
    tensor.codes[32, 8 + 6] = 11  # block 1, lane 0; unit 1; column 6 of its word
    packed = rows_of(PackedUniform.pack(tensor), 32, codes=True)
    unit = 64 + 64 + 128
    at = 1 * (3 * unit) + 1 * unit + 128
    assert packed.stream.view(torch.int32)[at // 4] == 11 << 24


@pytest.mark.parametrize(("columns", "g", "word", "stored", "units"), [
    (4096, 128, 32, 4096, 32),
    (4096, 8, 32, 4096, 128),  # four groups a word
    (4096, 40, 32, 103 * 64, 103),  # groups of 40 take two words
    (4096, -1, 32, 4096, 4),  # pieces of 32 words
    (11008, -1, 32, 11 * 1024, 11),
    (100, 128, 8, 104, 1),
])  # fmt: skip
def test_columns_stored(columns, g, word, stored, units):
    geo = row_blocks.geometry(columns, g, word)
    assert (geo.columns, geo.units) == (stored, units)
    places = geo.stored_columns()
    assert torch.equal(places[places >= 0], torch.arange(columns))
    assert geo.in_order == (g != 40)


def test_what_the_kernels_cannot_take_is_refused():
    refused("g=12 is not a group size", rows_of, bcq.pack(bcq_tensor(4, 40, 2, 12)))
    tensor = bcq_tensor(4, 40, 2, 8)
    tensor.alpha[1, 2, 3] = torch.inf
    refused("1 scales are inf or nan", rows_of, bcq.pack(tensor))


def test_an_offset_in_float64_is_in_the_stream_in_float32_and_comes_back():
    tensor = bcq_tensor(4, 40, 2, 8, offset="f32")
    plain = bcq.pack(tensor)
    wide = plain.with_buffers({"offset": tensor.offset.double() + 1e-12})
    assert torch.equal(rows_of(wide).stored().offset, wide.offset)
    assert torch.equal(rows_of(wide).stream, rows_of(plain).stream)
