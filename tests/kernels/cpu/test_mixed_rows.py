"""The CPU kernel's layout of mixed groups: bits where the drawing says, round trips, size, refusals."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.checks import assert_same, refused
from tests.mixed_weights import mixed_tensor

from lutlab.formats.mixed import PackedMixed
from lutlab.kernels.cpu import mixed_gemv


def packed(tensor, interleaved, panel=512):
    stored = PackedMixed.pack(tensor)
    empty = mixed_gemv.empty(stored)
    return replace(empty, interleaved=interleaved, panel_columns=panel).filled(stored)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 70), columns=st.integers(1, 300), g=st.sampled_from([8, 16, 24, 32, 64, 128]),
    widths=st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=5), by_row=st.booleans(),
    outliers=st.sampled_from([0, 1, 30]), interleaved=st.booleans(), panel=st.sampled_from([32, 64, 512]),
)  # fmt: skip
def test_every_bit_comes_back(rows, columns, g, widths, by_row, outliers, interleaved, panel):
    tensor = mixed_tensor(rows, columns, g, widths, by_row, outliers)
    assert_same(packed(tensor, interleaved, panel).stored().unpack(), tensor)


def test_aligned_codes_and_wider_bands_come_back():
    tensor = mixed_tensor(50, 200, aligned=True, outliers=9)
    assert_same(packed(tensor, True).stored().unpack(), tensor)
    plain = mixed_tensor(70, 64)
    wide = {name: getattr(plain, name)[:2] for name in ("scale_step", "scale_zero")}
    wide = replace(plain, scale_group=48, **wide)
    assert_same(packed(wide, False).stored().unpack(), wide)


def test_bits_are_where_the_drawing_says():
    """One field of row 27 (16 + 8 + 3: place 7 of its half as AVX2 widens pairs of them) is set at a time."""
    base = mixed_tensor(32, 48, widths=(2, 3, 4), by_row=False)
    zeros = {n: torch.zeros_like(v) for n, v in vars(base).items() if isinstance(v, torch.Tensor)}
    blank = replace(base, **zeros | {"widths": base.widths})

    def bytes_of(name, index, value, interleaved=False):
        changed = zeros[name].clone()
        changed[index] = value
        stream = packed(replace(blank, **{name: changed}), interleaved).stream.int()
        return {at: stream[at].item() for at in stream.nonzero().flatten().tolist()}

    four, three = 256 + 32 + 8, 192 + 32 + 8  # bytes of the groups stored first
    assert bytes_of("codes", (27, 47), 5) == {128 + 27 * 4 + 3: 5 << 4}
    half = four + (11 * 2 + 1) * 2  # rows 11 and 27 are neighbours
    assert bytes_of("codes", (27, 17), 7) == dict.fromkeys((half, half + 1, four + 64 + 23), 1 << 1)
    assert bytes_of("codes", (27, 9), 2) == {four + three + 64 + (11 * 2 + 1) * 2 + 1: 1 << 1}
    assert bytes_of("codes", (27, 9), 2, True) == {four + three + 64 + 32 + 7 * 2 + 1: 1 << 1}
    # row 27 is the highest field of word 3
    assert bytes_of("scale_code", (27, 2), 9) == {256 + 3 * 4 + 3: 9}
    assert bytes_of("zero_point", (27, 0), 3) == {four + three + 128 + 3 * 3 + 2: 3 << 6}
    _, high = torch.tensor([1.5], dtype=torch.float16).view(torch.uint8).tolist()
    assert bytes_of("scale_step", (1, 1), 1.5) == {four + 192 + 32 + 3: high}
    assert bytes_of("scale_zero", (0, 1), 1) == {four + 192 + 32 + 5: 0x3C}


@pytest.mark.parametrize(("options", "limit"), [
    ({"aligned": True}, 1.04),
    ({"aligned": True, "outliers": 5243}, 1.05),
    ({"widths": (2,), "by_row": False}, 1.03),
    ({"widths": (2, 3, 4), "by_row": False}, 1.04),
    ({"widths": (2,), "g": 8, "by_row": False}, 1.05),
])  # fmt: skip
def test_the_layout_takes_hardly_more_than_what_is_stored(options, limit):
    tensor = mixed_tensor(1024, 1024, **options)
    rows = packed(tensor, True)
    size = rows.stream.nbytes + rows.order.nbytes
    assert 0.99 < 8 * size / PackedMixed.pack(tensor).bits_stored < limit


def test_what_the_kernel_cannot_take_is_refused():
    refused("g=12: the CPU kernel takes", packed, mixed_tensor(4, 300, 12), True)
    refused("up to 128", packed, mixed_tensor(4, 300, 136), True)
    odd = replace(mixed_tensor(16, 32), scale_group=8)
    refused("scale_group=8: the CPU kernel takes multiples of 16", packed, odd, True)
    stored = PackedMixed.pack(mixed_tensor(4, 64))
    stored.scale_step[0, 0] = torch.inf
    refused("1 scales are inf or nan", mixed_gemv.empty(stored).filled, stored)
