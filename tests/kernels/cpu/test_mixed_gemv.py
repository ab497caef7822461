"""The kernel over mixed groups against float64 products of the definition: widths, shapes, outliers, inputs, CPUs.

A library is built for each (instruction set, widths, group size, scales of rows), so that tests share a few of these.
"""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.codegen import sanitized
from tests.kernels.cpu.rows_products import EXACT, ISAS, inputs
from tests.kernels.weights import relative_error
from tests.mixed_weights import mixed_tensor

from lutlab.base.errors import LutlabError
from lutlab.base.tensors import DenseTensor
from lutlab.formats import pack
from lutlab.formats.mixed import PackedMixed
from lutlab.kernels.codegen import isa
from lutlab.kernels.cpu import mixed_gemv
from lutlab.kernels.cpu.mixed_gemv import TILE_FROM, PackedMixedRows
from lutlab.kernels.cpu.rows import rows_gemv
from lutlab.kernels.dispatch import Dequantized, prepare

BEST = PackedMixedRows.instructions()
KINDS = {
    "paper": {"widths": (2, 2, 2, 4)},
    "ladder": {"widths": (2, 3, 4), "g": 8, "by_row": False},
    "long": {"widths": (4, 3, 2), "g": 128},
}


def naive(tensor):
    """W [N, K] float64 by the definition of MixedTensor, column by column."""
    rows, columns = tensor.codes.shape
    band = torch.arange(rows) // tensor.scale_group
    out = torch.empty(rows, columns, dtype=torch.float64)
    for k in range(columns):
        i = k // tensor.group_size
        zero = tensor.zero_point[:, i].double()
        scale = tensor.scale_step[band, i].double() * (
            tensor.scale_code[:, i].double() + tensor.scale_zero[band, i].double()
        )
        if tensor.widths[i] == 4 and tensor.row_scale is not None:
            scale, zero = tensor.row_scale.double(), tensor.row_zero.double()
        out[:, k] = scale * (tensor.codes[:, k].double() - zero)
    if tensor.outlier_count is not None:
        row = torch.repeat_interleave(torch.arange(rows), tensor.outlier_count.long())
        out[row, tensor.outlier_column.long()] += tensor.outlier_value.double()
    return out


def packed(tensor, on=BEST):
    stored = PackedMixed.pack(tensor)
    return mixed_gemv.empty(stored, on).filled(stored)


def assert_near_float64(tensor, m, on=BEST):
    weight, x, dense = packed(tensor, on), inputs(m, tensor.codes.shape[1]), naive(tensor)
    y = rows_gemv.kernel(weight, on).gemv(x, weight)
    error = (y.double() - x.double() @ dense.t()).norm()
    assert (
        error <= EXACT * m**0.5 * dense.norm()
    )  # the size of y on average: a y of few numbers may be near zero


@given(
    kind=st.sampled_from(list(KINDS)),
    rows=st.integers(8, 80),
    columns=st.integers(16, 400),
    outliers=st.sampled_from([0, 1, 40, 400]),
    m=st.sampled_from([1, 2, 21]),
    seed=st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=30)
def test_any_shape(kind, rows, columns, outliers, m, seed):
    assert_near_float64(mixed_tensor(rows, columns, **KINDS[kind], outliers=outliers, seed=seed), m)


def test_aligned_and_several_panels():
    assert_near_float64(mixed_tensor(70, 2600, aligned=True, outliers=900), 1)
    assert_near_float64(mixed_tensor(70, 2600, aligned=True), 3)


def test_plain_c():
    for m in (1, 5):
        assert_near_float64(
            mixed_tensor(33, 300, **KINDS["ladder"], outliers=50), m, ISAS["portable"]
        )


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, BEST.name) for kind in KINDS] + [("ladder", "portable")]
)
def test_dense_is_the_weight_to_the_last_bit(kind, name):
    tensor = mixed_tensor(70, 300, **KINDS[kind], outliers=30)
    weight = packed(tensor, ISAS[name])
    room = torch.full((70, 300), torch.nan)
    dense = rows_gemv.kernel(weight, ISAS[name]).dense(weight, out=room, threads=2)
    assert torch.equal(dense, PackedMixed.pack(tensor).dequantize())


def test_outliers_all_in_one_row_and_none_in_others():
    tensor = mixed_tensor(40, 200, outliers=3)
    narrow = (tensor.widths == 2).repeat_interleave(16)[:200].nonzero().flatten()
    codes, count = tensor.codes.clone(), torch.zeros(40, dtype=torch.int32)
    codes[33, narrow], count[33] = tensor.zero_point[33, narrow // 16], len(narrow)
    value = torch.randn(len(narrow), generator=torch.Generator().manual_seed(3)).half()
    moved = {"outlier_count": count, "outlier_column": narrow.int(), "outlier_value": value}
    assert_near_float64(dataclasses.replace(tensor, codes=codes, **moved), 2)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_x_do_not_see_each_other_and_threads_change_nothing(kind):
    tensor = mixed_tensor(97, 700, **KINDS[kind], outliers=200)
    weight, x = packed(tensor), inputs(70, 700)
    kernel, dense = rows_gemv.kernel(weight), naive(tensor)
    alone = torch.stack([kernel.gemv(row, weight, threads=1) for row in x[:19]])
    for m in (1, 2, 19, 20, 70):
        y = kernel.gemv(x[:m], weight, threads=1)
        assert relative_error(y, x[:m], dense) <= EXACT
        # Plain C makes floats of the weights from the second row of x on.
        assert m >= TILE_FROM.get(BEST.name, 2) or torch.equal(y, alone[:m])
        for threads in (2, 5):
            assert torch.equal(kernel.gemv(x[:m], weight, threads=threads), y)


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_activations(kind):
    tensor = mixed_tensor(40, 512, **KINDS[kind])
    weight, dense = packed(tensor), naive(tensor)
    kernel, x = rows_gemv.kernel(weight), inputs(2, 512)
    x[:, ::50] *= 1e4
    assert relative_error(kernel.gemv(x, weight), x, dense) <= EXACT
    assert relative_error(kernel.gemv(x.abs(), weight), x.abs(), dense) <= 2 * EXACT
    assert torch.equal(kernel.gemv(x * 0, weight), torch.zeros(2, 40))
    for size in (1e-44, 1e-40, 1e-35, 1e-30, 1e30):
        tiny = inputs(1, 512) * size
        expected = tiny.double() @ dense.t()
        error = kernel.gemv(tiny, weight).double() - expected
        # Half of the last bit of a subnormal float is the best that y can hold.
        assert error.norm() <= EXACT * expected.norm() + 40**0.5 * 2.0**-150


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_inf_reach_their_row_and_no_other(kind, bad):
    tensor = mixed_tensor(40, 300, **KINDS[kind])
    weight, x = packed(tensor), inputs(3, 300)
    x[1, 299] = bad
    y = rows_gemv.kernel(weight).gemv(x, weight)
    assert not torch.isfinite(y[1]).any()
    assert relative_error(y[::2], x[::2], naive(tensor)) <= EXACT


def test_the_operation_takes_the_format_and_gives_it_back():
    stored = PackedMixed.pack(mixed_tensor(40, 200, aligned=True, outliers=20))
    chosen = prepare(stored, "cpu")
    assert chosen.describe(1, torch.float32).startswith("mixed")
    assert chosen.packed.layout() == stored.layout()
    for name, buffer in stored.buffers.items():
        other = chosen.packed.buffers[name]
        assert other is None if buffer is None else torch.equal(other, buffer), name
    with pytest.raises(LutlabError, match="mixed_gemv has no option 'tables'"):
        prepare(stored, "cpu", op="mixed_gemv", tables="int16")
    with pytest.raises(LutlabError, match="mixed_gemv: it multiplies format mixed"):
        prepare(pack(DenseTensor(torch.ones(4, 8))), "cpu", op="mixed_gemv")


def test_groups_without_a_kernel_are_dequantized_and_the_name_says_why():
    stored = PackedMixed.pack(mixed_tensor(40, 96, 12))
    chosen, x = prepare(stored, "cpu"), inputs(2, 96)
    assert isinstance(chosen, Dequantized)
    assert "g=12: the CPU kernel takes multiples of 8" in chosen.describe(1, torch.float32)
    assert relative_error(chosen(x), x, stored.dequantize()) < EXACT


def test_a_cpu_with_avx512_runs_avx2s(monkeypatch):
    both = (isa.Isa("avx512", ("-mavx512f",)), isa.Isa("avx2", ()), isa.Isa("portable", ()))
    monkeypatch.setattr(isa, "runnable", lambda: both)
    for wanted, found in (("", "avx2"), ("avx512", "avx2"), ("portable", "portable")):
        monkeypatch.setenv("LUTLAB_ISA", wanted)
        assert PackedMixedRows.instructions().name == found


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
    tensor = mixed_tensor(37, 333, **KINDS["ladder"], outliers=50)
    weight, x = packed(tensor, ISAS[name]), inputs(23, 333)
    sections = torch.tensor(list(rows_gemv.longs(weight.places)), dtype=torch.int64)
    room = torch.full((23, 128), torch.nan), torch.empty(21, weight.columns)
    source = weight.source(ISAS[name])[0] + ALL
    arguments = (x, weight.stream, sections, weight.channels, *room, torch.empty(37, 333))
    *_, y, _, dense = sanitized.call(source, "all", *arguments, isa=ISAS[name], folder=tmp_path)
    assert relative_error(y[:, :37], x, naive(tensor)) <= EXACT
    assert torch.equal(y[:, :64], y[:, 64:])
    assert torch.equal(dense.double(), naive(tensor))
