"""QIGen's layout: the drawn words and blocks, exact round trips, sizes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lutlab.base.errors import LutlabError
from lutlab.base.groups import group_count
from lutlab.base.tensors import UniformTensor
from lutlab.formats.code_words import pack_words
from lutlab.kernels.cpu.qigen import qigen_blocks as qigen
from lutlab.kernels.cpu.qigen.qigen_blocks import UNIT, Blocks


def random_tensor(q, rows, in_features, g, seed=0, order=False):
    generator = torch.Generator().manual_seed(seed)
    groups = group_count(g, in_features)
    codes = torch.randint(2**q, (rows, in_features), generator=generator).byte()
    scale = torch.randn(rows, groups, generator=generator)
    zero = torch.randint(-300, 300, (rows, groups), generator=generator).short()
    channels = torch.randperm(in_features, generator=generator).int() if order else None
    return UniformTensor(codes, scale, zero, q, g, channels)


@st.composite
def layers(draw):
    q, rows, in_features = (
        draw(st.integers(2, 4)),
        draw(st.integers(1, 70)),
        draw(st.integers(1, 150)),
    )
    g = draw(st.sampled_from([-1, 8, 16, 32, 64, 128]))
    t_u = draw(st.integers(1, 3))
    m_b = draw(st.integers(1, 3)) * qigen.step(q, g, in_features)
    blocks = Blocks(m_b, 8 * t_u * draw(st.integers(1, 3)), 2, t_u, draw(st.integers(1, 4)))
    return random_tensor(q, rows, in_features, g, draw(st.integers(0, 999))), blocks


@settings(deadline=None, max_examples=40)
@given(layers())
def test_round_trip_is_exact(layer):
    tensor, blocks = layer
    again = qigen.unpack(qigen.pack(tensor, blocks))
    assert torch.equal(again.codes, tensor.codes)
    assert torch.equal(again.scale, tensor.scale)
    assert torch.equal(again.zero_point, tensor.zero_point)
    assert (again.bits, again.group_size) == (tensor.bits, tensor.group_size)


@settings(deadline=None, max_examples=40)
@given(layers())
def test_blocks_are_where_the_schedule_says(layer):
    """Each block, cut out of plain GPTQ words, lies strip by strip at its first word."""
    tensor, blocks = layer
    packed = qigen.pack(tensor, blocks)
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


def test_blocks_follow_the_drawn_curve():
    blocks = Blocks(m_b=8, t_b=8, m_u=2, t_u=1, panel=2)
    places, panels = qigen.schedule((32, 32), 4, blocks)
    drawn = [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]
    found = {(k // 8, n // 8): word // 8 for k, n, word in places}
    assert found == {(k, n): drawn[k][n] for k in range(4) for n in range(4)}
    assert panels == (0, 8, 16)


def test_the_curve_is_recursive():
    """Each quarter of a panel of four by four is one stretch."""
    places, _ = qigen.schedule((32, 32), 4, Blocks(8, 8, 2, 1, panel=4))
    quarters = [(k // 16, n // 16) for k, n, _ in places]
    assert quarters == [q for q in [(0, 0), (0, 1), (1, 0), (1, 1)] for _ in range(4)]


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("q", [2, 3, 4])
def test_dequantize_is_the_definition(q, order):
    tensor = random_tensor(q, 33, 70, 32, order=order)
    packed = qigen.pack(tensor, Blocks(64, 32, 2, 2))
    group = torch.arange(70) // 32
    expected = tensor.scale[:, group] * (tensor.codes.float() - tensor.zero_point[:, group])
    if order:
        expected[:, tensor.order.long()] = expected.clone()
    assert torch.equal(packed.dequantize(), expected)


def test_every_buffer_is_counted():
    packed = qigen.pack(random_tensor(3, 33, 70, 32), Blocks(64, 32, 2, 2))
    # N' = 48, K' = 96, G = 3
    assert packed.bits_stored == 48 * 96 * 3 + 48 * 3 * (32 + 16)
    whole = qigen.pack(random_tensor(4, 64, 256, 128), Blocks(128, 32, 2, 4))
    assert whole.bits_stored == (4 + 48 / 128) * whole.shape[0] * whole.shape[1]


@pytest.mark.parametrize(("q", "g"), [(5, 32), (1, -1), (3, 24), (2, 24), (4, 12)])
def test_what_the_layout_lacks_is_refused(q, g):
    with pytest.raises(LutlabError, match=f"q={q}"):
        qigen.check_groups(q, g, 96)


def test_a_float_offset_is_refused():
    plain = random_tensor(3, 33, 70, 32)
    tensor = replace(plain, zero_point=None, offset=-plain.scale * 2.5)
    with pytest.raises(LutlabError, match="integer zero points, and these codes have a float"):
        qigen.pack(tensor, Blocks(64, 32, 2, 2))


def test_a_group_longer_than_k_is_a_scale_a_column():
    qigen.check_groups(3, 200, 96)
    assert qigen.step(3, 200, 96) == UNIT[3]


@pytest.mark.parametrize(
    "blocks",
    [
        Blocks(32, 32, 2, 2),
        Blocks(64, 24, 2, 2),
        Blocks(64, 32, 3, 2),
        Blocks(0, 32, 2, 2),
        Blocks(64, 32, 2, 2, 0),
    ],
)
def test_blocks_that_cut_units_or_groups_are_refused(blocks):
    with pytest.raises(LutlabError, match="do not fit q=4 g=64"):
        qigen.pack(random_tensor(4, 16, 128, 64), blocks)
