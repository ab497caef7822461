"""The kernels over blocks of rows against float64: every width, grouping and shape."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.cpu.rows_products import ISAS, KINDS, SHIFTED, assert_near, kernel
from tests.kernels.weights import packed


@pytest.mark.parametrize("q", range(1, 9))
def test_every_number_of_planes(q):
    scales = {"offset": (None, "f16", "f32")[q % 3], "alpha": ("f16", "f32")[q // 4 % 2]}
    for g in (32, 64, 128, -1):
        for lane_bytes in (4, 1) if "avx2" in ISAS else (4,):
            for m in (2, 13):
                assert_near(packed(70, 300, "planes", q, g, lane_bytes=lane_bytes, **scales), m)
            if q < 3:  # of uniform codes two planes are looked up at once
                assert_near(packed(70, 300, "uniform planes", q, g, lane_bytes=lane_bytes), 2)


@pytest.mark.parametrize("bits", [1, 4, 5, 8])
def test_every_number_of_code_bits(bits):
    for g in (8, 16, 32, 64, 128, -1):
        assert_near(packed(70, 300, "codes", bits, g), 1)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize(("kind", "g"), [
    *(("planes, offset", g) for g in (8, 16, 32)), ("uniform planes", 32), ("codes", 32), ("float offset", 32),
])  # fmt: skip
def test_every_instruction_set_and_grouping_of_a_word(kind, g, name):
    weight = packed(33, 200, **KINDS.get(kind, SHIFTED), g=g, ordered=True)
    for m in (1, 14):
        assert_near(weight, m, ISAS[name])
    assert torch.equal(kernel(weight, ISAS[name]).dense(weight), weight.dequantize())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "columns", "g"), [
    *((70, 2100, g) for g in (24, 40, 64, 1000, 1056, 2000)),
    *((rows, 131, 32) for rows in (1, 31, 32, 33, 63, 65, 129)),
    *((70, columns, g) for columns in (1, 2, 3, 5, 31, 33, 500, 511, 513, 1025, 1537) for g in (32, -1)),
])  # fmt: skip
def test_shapes_around_a_block_a_word_a_group_and_a_panel(kind, rows, columns, g):
    assert_near(packed(rows, columns, **KINDS[kind], g=g), 2 if columns == 2100 else 1)


@given(
    kind=st.sampled_from(list(KINDS)),
    rows=st.integers(8, 80),  # so many that their sums do not all cancel
    columns=st.integers(16, 400), g=st.sampled_from([-1, 32, 40, 64, 96]), m=st.integers(1, 18),
    ordered=st.booleans(), seed=st.integers(0, 2**31),
)  # fmt: skip
@settings(deadline=None, max_examples=30)
def test_any_shape(kind, rows, columns, g, m, ordered, seed):
    assert_near(packed(rows, columns, **KINDS[kind], g=g, ordered=ordered, seed=seed), m)
