"""Groups: which columns of K share a scale, ragged last groups included."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.base.refusals import refused

from lutlab.base import groups
from lutlab.base.groups import expand, group_count, group_length


@pytest.mark.parametrize(("check", "value", "limits"), [
    *((groups.check_bits, q, "1 to 8") for q in (0, 9, -1, 2.0, True, "4", None)),
    *((groups.check_group_size, g, "at least 8") for g in (0, 7, -2, 128.0, True, "row")),
])  # fmt: skip
def test_what_is_no_number_of_bits_or_size_of_a_group_is_refused(check, value, limits):
    refused(limits, check, value)


def test_row_wise_is_one_group_of_all_columns():
    assert (group_length(-1, 100), group_count(-1, 100)) == (100, 1)
    assert group_length(128, 100) == 100


@given(st.integers(8, 40), st.integers(1, 130))
def test_group_of_a_column_is_its_number_divided_by_the_group_size(g, in_features):
    numbers = torch.arange(group_count(g, in_features)).unsqueeze(0)
    expected = [k // g for k in range(in_features)]
    assert expand(numbers, g, in_features)[0].tolist() == expected


@given(st.integers(8, 40), st.integers(1, 130), st.integers(1, 3))
def test_blocks_cover_every_weight_once_and_never_mix_groups(g, in_features, rows):
    values = torch.arange(rows * in_features).view(rows, in_features)
    seen_columns, seen_groups = [], []
    for columns, group_columns, block in groups.blocks(values, g):
        assert torch.equal(block.flatten(1), values[:, columns])
        assert block.shape[1] == group_columns.stop - group_columns.start
        seen_columns += range(columns.start, columns.stop)
        seen_groups += range(group_columns.start, group_columns.stop)
        for offset, number in enumerate(range(group_columns.start, group_columns.stop)):
            members = values[:, number * g : (number + 1) * g]
            assert torch.equal(block[:, offset], members)
    assert seen_columns == list(range(in_features))
    assert seen_groups == list(range(group_count(g, in_features)))
