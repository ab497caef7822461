"""The kernel over mixed groups against float64: widths, shapes, outliers, CPUs. See also test_rows_gemv.py.

A library is built for each (instruction set, widths, group size, scales of rows), so that tests share a few of these.
"""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.checks import inputs, refused, relative_error
from tests.kernels.codegen import sanitized
from tests.kernels.cpu.rows_products import BEST, EXACT, ISAS, MIXED, kernel, mixed_rows
from tests.mixed_weights import mixed_tensor

from lutlab.base.tensors import DenseTensor
from lutlab.formats import pack
from lutlab.formats.mixed import PackedMixed
from lutlab.kernels.cpu.rows import rows_gemv
from lutlab.kernels.dispatch import Dequantized, prepare


def assert_near(tensor, m, on=BEST):
    weight, x = mixed_rows(tensor, on), inputs(m, tensor.codes.shape[1])
    dense = weight.dequantize().double()
    error = (kernel(weight, on).gemv(x, weight).double() - x.double() @ dense.t()).norm()
    # the size of y on average: a y of few numbers may be near zero
    assert error <= EXACT * m**0.5 * dense.norm()


@given(
    kind=st.sampled_from(list(MIXED)), rows=st.integers(8, 80), columns=st.integers(16, 400),
    outliers=st.sampled_from([0, 1, 40, 400]), m=st.sampled_from([1, 2, 21]), seed=st.integers(0, 2**31),
)  # fmt: skip
@settings(deadline=None, max_examples=30)
def test_any_shape(kind, rows, columns, outliers, m, seed):
    assert_near(mixed_tensor(rows, columns, **MIXED[kind], outliers=outliers, seed=seed), m)


def test_aligned_and_several_panels():
    assert_near(mixed_tensor(70, 2600, aligned=True, outliers=900), 1)
    assert_near(mixed_tensor(70, 2600, aligned=True), 3)


def test_plain_c():
    tensor = mixed_tensor(33, 300, **MIXED["mixed, ladder"], outliers=50)
    for m in (1, 5):
        assert_near(tensor, m, ISAS["portable"])


def test_outliers_all_in_one_row_and_none_in_others():
    tensor = mixed_tensor(40, 200, outliers=3)
    narrow = (tensor.widths == 2).repeat_interleave(16)[:200].nonzero().flatten()
    codes, count = tensor.codes.clone(), torch.zeros(40, dtype=torch.int32)
    codes[33, narrow], count[33] = tensor.zero_point[33, narrow // 16], len(narrow)
    value = torch.randn(len(narrow), generator=torch.Generator().manual_seed(3)).half()
    moved = {"outlier_count": count, "outlier_column": narrow.int(), "outlier_value": value}
    assert_near(dataclasses.replace(tensor, codes=codes, **moved), 2)


def test_the_operation_takes_the_format_and_gives_it_back():
    stored = PackedMixed.pack(mixed_tensor(40, 200, aligned=True, outliers=20))
    chosen = prepare(stored, "cpu")
    assert chosen.describe(1, torch.float32).startswith("mixed")
    assert chosen.packed.layout() == stored.layout()
    for name, buffer in stored.buffers.items():
        other = chosen.packed.buffers[name]
        assert other is None if buffer is None else torch.equal(other, buffer), name
    how = {"device": "cpu", "op": "mixed_gemv"}
    refused("mixed_gemv has no option 'tables'", prepare, stored, **how, tables="int16")
    dense = pack(DenseTensor(torch.ones(4, 8)))
    refused("mixed_gemv: it multiplies format mixed", prepare, dense, **how)


def test_groups_without_a_kernel_are_dequantized_and_the_name_says_why():
    stored = PackedMixed.pack(mixed_tensor(40, 96, 12))
    chosen, x = prepare(stored, "cpu"), inputs(2, 96)
    assert isinstance(chosen, Dequantized)
    assert "g=12: the CPU kernel takes multiples of 8" in chosen.describe(1, torch.float32)
    assert relative_error(chosen(x), x, stored.dequantize()) < EXACT


ALL = """
void all(const float *x, const uint8_t *stream, const struct sections *k, const int32_t *channels, float *y,
         float *scratch, float *dense)
{
    const struct part parts[] = {{stream, 2}, {stream, 2}};
    gemv(x, 333, 2, parts, 2, k, channels, y, 128, scratch, 4096, 3); /* two parts of two blocks among three threads */
    gemv(x + 2 * 333, 333, 21, parts, 2, k, channels, y + 2 * 128, 128, scratch, 4096, 2);
    dequantize(stream, k, channels, 37, dense, 2);
}
"""


@pytest.mark.parametrize("name", dict.fromkeys((BEST.name, "portable")))
def test_sanitizers_find_nothing(name, tmp_path):
    tensor = mixed_tensor(37, 333, **MIXED["mixed, ladder"], outliers=50)
    weight, x = mixed_rows(tensor, ISAS[name]), inputs(23, 333)
    sections = torch.tensor(list(rows_gemv.longs(weight.places)), dtype=torch.int64)
    room = torch.full((23, 128), torch.nan), torch.empty(21, weight.columns)
    source = weight.source(ISAS[name])[0] + ALL
    arguments = (x, weight.stream, sections, weight.channels, *room, torch.empty(37, 333))
    *_, y, _, dense = sanitized.call(source, "all", *arguments, isa=ISAS[name], folder=tmp_path)
    assert relative_error(y[:, :37], x, weight.dequantize()) <= EXACT
    assert torch.equal(y[:, :64], y[:, 64:])
    assert torch.equal(dense, weight.dequantize())
