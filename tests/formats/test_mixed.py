"""Weights of mixed groups: layouts bit for bit, sizes to the digit, damaged layouts."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.layouts import made_again
from tests.mixed_weights import mixed_tensor
from tests.quantizers.weights import assert_same

from lutlab.base.errors import LutlabError
from lutlab.formats import mixed_blocks
from lutlab.formats.mixed import PackedMixed

EQ_10 = 0.75 * (2 + (2 + 4) / 16 + (4 + 16) / 256) + 0.25 * 4


def naive(tensor):
    """W in float64, weight by weight of the definition."""
    rows, columns = tensor.codes.shape
    out = torch.zeros(rows, columns, dtype=torch.float64)
    for n in range(rows):
        for k in range(columns):
            i, b = k // tensor.group_size, n // tensor.scale_group
            code = int(tensor.scale_code[n, i]) + int(tensor.scale_zero[b, i])
            scale, zero = float(tensor.scale_step[b, i]) * code, int(tensor.zero_point[n, i])
            if tensor.row_scale is not None and tensor.widths[i] == 4:
                scale, zero = float(tensor.row_scale[n]), int(tensor.row_zero[n])
            out[n, k] = scale * (int(tensor.codes[n, k]) - zero)
    if tensor.outlier_count is not None:
        row = torch.arange(rows).repeat_interleave(tensor.outlier_count)
        place = row, tensor.outlier_column.long()
        assert not out[place].any()
        out[place] = tensor.outlier_value.double()
    return out


ROWS, OUTLIERS = st.integers(1, 40), st.sampled_from([0, 1, 30])
STREAMS = st.builds(
    mixed_tensor, ROWS, st.integers(1, 150), st.sampled_from([8, 16, 32]),
    st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=5), st.booleans(), OUTLIERS,
)  # fmt: skip
BLOCKS = st.builds(
    mixed_tensor, ROWS, st.integers(1, 300), outliers=OUTLIERS, aligned=st.just(True)
)


@settings(max_examples=70)
@given(STREAMS | BLOCKS)
def test_streams_and_blocks_hold_every_bit(tensor):
    packed = PackedMixed.pack(tensor)
    assert_same(vars(packed.unpack()), vars(tensor))
    made_again(packed)
    assert torch.equal(packed.dequantize().double(), naive(tensor))


def test_a_block_is_drawn_as_in_the_docstring():
    """Every field of one block is set alone, and moves its own bits and no others."""
    base = mixed_tensor(1, 64, aligned=True)
    zeros = {n: torch.zeros_like(v) for n, v in vars(base).items() if isinstance(v, torch.Tensor)}
    blank = dataclasses.replace(base, **zeros | {"widths": base.widths})

    def words(name, index, value):
        changed = zeros[name].clone()
        changed[index] = value
        packed = PackedMixed.pack(dataclasses.replace(blank, **{name: changed}))
        words = {n: b.flatten().tolist() for n, b in packed.buffers.items() if b is not None}
        return {n: w for n, w in words.items() if any(w) and n != "widths"}

    # the group of 4 bits has channels 0..15, a, b, c the next three
    assert words("codes", (0, 16 + 5), 3) == {"blocks": [3 << 10, 0, 0, 0]}
    assert words("codes", (0, 48), 1) == {"blocks": [0, 0, 1, 0]}
    assert words("codes", (0, 7), 5) == {"blocks": [0, 0, 0, 5 << 28]}
    assert words("codes", (0, 8), 9) == {"apart": [9]}
    assert words("zero_point", (0, 2), 2) == {"meta": [2 << 2]}
    assert words("scale_code", (0, 1), 15) == {"meta": [15 << 6]}
    assert words("scale_code", (0, 2), 7) == {"meta": [7 << 10]}
    assert words("scale_code", (0, 3), 3) == {"meta": [3 << 13]}
    assert words("scale_zero", (0, 3), 15) == {"scale_zero": [15 << 8]}
    assert words("row_zero", (0,), 15) == {"row_zero": [15]}


def test_blocks_store_less_than_the_papers_average():
    """Section 3.3 states an overhead below 0.02 bits a weight; clipped scales make it a saving."""
    packed = PackedMixed.pack(mixed_tensor(256, 4096, aligned=True))
    metadata = 8 * (packed.row_scale.nbytes + packed.row_zero.nbytes + packed.widths.nbytes)
    weights = 256 * 4096
    assert (packed.bits_stored - metadata) / weights == 2.8125 < EQ_10 + 0.02
    assert metadata / weights == pytest.approx(20 / 4096 + 8 / (16 * 256))
    streams = PackedMixed.pack(mixed_tensor(256, 4096))
    assert streams.bits_stored - metadata == EQ_10 * weights


def test_outliers_take_32_bits_and_their_share_of_row_counts():
    plain, sparse = (PackedMixed.pack(mixed_tensor(64, 1024, outliers=n)) for n in (0, 131))
    assert sparse.bits_stored - plain.bits_stored == 131 * 32 + 64 * 8


def test_a_group_beyond_the_columns_decodes_to_nothing():
    # 11 groups; blocks hold 12, the last of 16 columns has 12.
    packed = PackedMixed.pack(mixed_tensor(5, 172, aligned=True))
    codes, zero, scale_code, _ = mixed_blocks.unpack(packed.buffers)
    narrow, wide = codes[2], codes[4]
    assert (narrow.shape[1], wide.shape[1]) == (9 * 16, 3 * 16)
    assert not any(padding.any() for padding in (narrow[:, -16:], zero[:, -1], scale_code[:, -1]))
    assert torch.equal(narrow[:, 7 * 16 + 12 : 8 * 16], zero[:, 7:8].expand(-1, 4))


@pytest.mark.parametrize(("field", "at", "value", "message"), [
    ("scale_code", (0, 2), 8, "scale codes of 4, 3, 3 bits"),
    ("scale_step", (0, 1), torch.nan, "scale_step are inf or nan"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(field, at, value, message):
    tensor = mixed_tensor(4, 64, aligned=True)
    getattr(tensor, field)[at] = value
    with pytest.raises(LutlabError, match=message):
        PackedMixed.pack(tensor)


@pytest.mark.parametrize(
    ("field", "value"),
    [("groups_4", 3), ("groups_3", -1), ("g", 0), ("outliers", "1"), ("aligned", 1)],
)
def test_a_damaged_layout_is_refused(field, value):
    layout = PackedMixed.pack(mixed_tensor(4, 64, aligned=True)).layout()
    with pytest.raises(LutlabError, match="layout of a quantized layer"):
        PackedMixed.from_layout(layout | {field: value})
