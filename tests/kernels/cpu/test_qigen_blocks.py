"""QIGen's layout: the drawn words and blocks, exact round trips, sizes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.checks import assert_same, refused
from tests.kernels.weights import uniform_tensor

from lutlab.base.tensors import UniformTensor
from lutlab.formats import pack
from lutlab.formats.code_words import pack_words
from lutlab.kernels.cpu.qigen import qigen_blocks as qigen
from lutlab.kernels.cpu.qigen.qigen_blocks import UNIT, Blocks

SMALL = Blocks(64, 32, 2, 2)


def drawn(q, rows, columns, g, **options):
    """Scales of both signs, zero points far beyond codes."""
    tensor = uniform_tensor(rows, columns, q, g, scale="f32", zeros=(-300, 300), **options)
    tensor.scale[::2] *= -1
    return tensor


@st.composite
def layers(draw):
    q, rows, columns = draw(st.integers(2, 4)), draw(st.integers(1, 70)), draw(st.integers(1, 150))
    g, t_u = draw(st.sampled_from([-1, 8, 16, 32, 64, 128])), draw(st.integers(1, 3))
    m_b = draw(st.integers(1, 3)) * qigen.step(q, g, columns)
    blocks = Blocks(m_b, 8 * t_u * draw(st.integers(1, 3)), 2, t_u, draw(st.integers(1, 4)))
    return drawn(q, rows, columns, g, seed=draw(st.integers(0, 999))), blocks


@settings(deadline=None, max_examples=40)
@given(layers())
def test_round_trip_is_exact_and_blocks_are_where_the_schedule_says(layer):
    """Each block, cut out of plain GPTQ words, lies strip by strip at its first word."""
    tensor, blocks = layer
    packed = qigen.pack(tensor, blocks)
    assert_same(qigen.unpack(packed), tensor)
    q = tensor.bits
    n_size, k_size = size = qigen.padded(packed.shape, q, blocks.t_u)
    codes = torch.zeros(n_size, k_size, dtype=torch.uint8)
    codes[: packed.shape[0], : packed.shape[1]] = tensor.codes
    plain = pack_words(codes, q).t()  # [K' q / 32, N'], the GPTQ layout
    places, panels = qigen.schedule(size, q, blocks)
    assert panels[-1] == len(places)
    covered = 0
    for k, n, word in places:
        end = min(k + blocks.m_b, k_size)
        for first in range(n, min(n + blocks.t_b, n_size), 8 * blocks.t_u):
            strip = plain[k * q // 32 : end * q // 32, first : first + 8 * blocks.t_u]
            assert torch.equal(packed.words[word : word + strip.numel()], strip.reshape(-1))
            word, covered = word + strip.numel(), covered + strip.numel()
    assert covered == packed.words.numel() == n_size * k_size * q // 32


def test_three_bits_lie_across_words():
    """Values 10 and 21 of a unit, as drawn."""
    codes = torch.zeros(8, 32, dtype=torch.uint8)
    codes[0, 10], codes[1, 21], codes[2, 0] = 5, 6, 7
    tensor = UniformTensor(codes, torch.ones(8, 1), torch.zeros(8, 1).short(), 3, -1)
    words = qigen.pack(tensor, Blocks(32, 8, 1, 1)).words.view(3, 8).long() & 0xFFFFFFFF
    assert words[:, 0].tolist() == [(5 & 3) << 30, 5 >> 2, 0]
    assert words[:, 1].tolist() == [0, (6 & 1) << 31, 6 >> 1]
    assert words[:, 2].tolist() == [7, 0, 0]


def test_blocks_follow_the_drawn_curve_which_is_recursive():
    places, panels = qigen.schedule((32, 32), 4, Blocks(m_b=8, t_b=8, m_u=2, t_u=1, panel=2))
    numbers = [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]
    curve = {(k // 8, n // 8): word // 8 for k, n, word in places}
    assert curve == {(k, n): numbers[k][n] for k in range(4) for n in range(4)}
    assert panels == (0, 8, 16)
    # Each quarter of a panel of four by four is one stretch.
    places, _ = qigen.schedule((32, 32), 4, Blocks(8, 8, 2, 1, panel=4))
    quarters = [(k // 16, n // 16) for k, n, _ in places]
    assert quarters == [q for q in [(0, 0), (0, 1), (1, 0), (1, 1)] for _ in range(4)]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("q", [2, 3, 4])
def test_dequantize_is_that_of_the_plain_layout(q, ordered):
    tensor = drawn(q, 33, 70, 32, ordered=ordered)
    assert torch.equal(qigen.pack(tensor, SMALL).dequantize(), pack(tensor).dequantize())


def test_every_buffer_is_counted():
    packed = qigen.pack(drawn(3, 33, 70, 32), SMALL)
    # N' = 48, K' = 96, G = 3
    assert packed.bits_stored == 48 * 96 * 3 + 48 * 3 * (32 + 16)
    whole = qigen.pack(drawn(4, 64, 256, 128), Blocks(128, 32, 2, 4))
    assert whole.bits_stored == (4 + 48 / 128) * whole.shape[0] * whole.shape[1]


def test_what_the_layout_lacks_is_refused():
    for q, g in ((5, 32), (1, -1), (3, 24), (2, 24), (4, 12)):
        refused(f"q={q}", qigen.check_groups, q, g, 96)
    plain = drawn(3, 33, 70, 32)
    shifted = replace(plain, zero_point=None, offset=-plain.scale * 2.5)
    refused("integer zero points, and these codes have a float", qigen.pack, shifted, SMALL)
    qigen.check_groups(3, 200, 96)  # a group longer than K is a scale a column
    assert qigen.step(3, 200, 96) == UNIT[3]


@pytest.mark.parametrize(
    "blocks", [(32, 32, 2, 2), (64, 24, 2, 2), (64, 32, 3, 2), (0, 32, 2, 2), (64, 32, 2, 2, 0)]
)
def test_blocks_that_cut_units_or_groups_are_refused(blocks):
    refused("do not fit q=4 g=64", qigen.pack, drawn(4, 16, 128, 64), Blocks(*blocks))
