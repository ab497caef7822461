"""Calls of the kernels over blocks of rows against float64: batches, threads, dtypes, strides, inputs of any value."""

import pytest
import torch
from tests.kernels.checks import inputs, refused, relative_error
from tests.kernels.cpu.rows_products import BEST, EXACT, ISAS, KINDS, MIXED, RUN, drawn, kernel
from tests.kernels.weights import packed

from lutlab.kernels.cpu.mixed_gemv import TILE_FROM
from lutlab.kernels.cpu.rows import rows_gemv


@pytest.mark.parametrize("kind", [*KINDS, *MIXED])
def test_rows_of_x_do_not_see_each_other_and_threads_change_nothing(kind):
    weight = drawn(kind, 97, 700, g=128)
    k, x = kernel(weight), inputs(70, 700)
    alone = torch.stack([k.gemv(row, weight, threads=1) for row in x])
    dense = weight.dequantize()
    for m in (*range(1, 15), 19, 20, 35, 70):
        y = k.gemv(x[:m], weight, threads=1)
        # From so many rows on it makes floats of the weights.
        assert kind not in MIXED or m >= TILE_FROM[BEST.name] or torch.equal(y, alone[:m])
        assert relative_error(y, x[:m], dense) <= EXACT
        assert relative_error(alone[:m], x[:m], dense) <= EXACT
        for threads in (2, 5):
            assert torch.equal(k.gemv(x[:m], weight, threads=threads), y)


def together(weights, x, threads):
    """One call of all weights, which have one geometry: y of each."""
    k, first = kernel(weights[0]), weights[0]
    blocks = [-(-weight.shape[0] // 32) for weight in weights]
    pairs = [(w.stream.data_ptr(), n) for w, n in zip(weights, blocks, strict=True)]
    parts = (rows_gemv.Part * len(weights))(*pairs)
    y, scratch = torch.empty(len(x), 32 * sum(blocks)), torch.empty(64, first.columns)
    geometry, ahead = rows_gemv.longs(first.places), k.prefetch_bytes
    where = y.data_ptr(), y.shape[1], scratch.data_ptr()
    given = x.data_ptr(), x.shape[1], len(x), parts, len(weights), geometry, None
    assert k.library.gemv(*given, *where, ahead, threads)
    own = zip(y.split([32 * n for n in blocks], dim=1), weights, strict=True)
    return [part[:, : weight.shape[0]] for part, weight in own]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_in_one_call_are_their_own_products_to_the_last_bit(kind):
    weights = [packed(n, 1100, **KINDS[kind], g=64, seed=n) for n in (97, 20, 64)]
    x = inputs(13, 1100)
    for m, threads in ((1, 1), (1, 4), (13, 2)):
        for y, weight in zip(together(weights, x[:m], threads), weights, strict=True):
            assert torch.equal(y, kernel(weight).gemv(x[:m], weight, threads=1))


@pytest.mark.parametrize(("kind", "name"), RUN)
def test_dense_is_the_weight_to_the_last_bit(kind, name):
    for rows, columns, g in ((70, 300, 64), (1, 33, -1), (256, 512, 32), (40, 90, 40)):
        weight = drawn(kind, rows, columns, g, ISAS[name], ordered=True)
        room = torch.full((rows, columns), torch.nan)
        assert kernel(weight, ISAS[name]).dense(weight, out=room, threads=2) is room
        assert torch.equal(room, weight.dequantize())
    message = r"expected a contiguous float32 \(40, 90\)"
    refused(message, kernel(weight, ISAS[name]).dense, weight, out=torch.empty(90, 40))


@pytest.mark.parametrize(("kind", "name"), RUN)
def test_extreme_activations(kind, name):
    weight = drawn(kind, 40, 512, 64, ISAS[name])
    k, dense = kernel(weight, ISAS[name]), weight.dequantize()
    x = inputs(3, 512)  # so few that integers are multiplied
    x[:, ::50] *= 1e4
    for rows in (x, x.repeat(5, 1)):
        assert relative_error(k.gemv(rows, weight), rows, dense) <= EXACT
        assert relative_error(k.gemv(rows.abs(), weight), rows.abs(), dense) <= 2 * EXACT
        assert torch.equal(k.gemv(rows * 0, weight), torch.zeros(len(rows), 40))
    for size in (1e-44, 1e-40, 1e-35, 1e-30, 1e30):
        tiny = inputs(1, 512) * size
        expected = tiny.double() @ dense.double().t()
        error = k.gemv(tiny, weight).double() - expected
        # Half of the last bit of a subnormal float is the best that y can hold.
        assert error.norm() <= EXACT * expected.norm() + 40**0.5 * 2.0**-150


@pytest.mark.parametrize(("kind", "name"), RUN)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_inf_reach_their_row_and_no_other(kind, name, bad):
    # Without an offset, whose sum of activations would be nan by itself.
    options = {"offset": None} if "offset" in KINDS.get(kind, ()) else {}
    weight = drawn(kind, 70, 300, 32, ISAS[name], **options)
    for rows, m, column in ((2, 0, 0), (4, 3, 299), (14, 6, 31)):
        x = inputs(rows, 300)
        x[m, column] = bad
        y = kernel(weight, ISAS[name]).gemv(x, weight)
        assert not torch.isfinite(y[m]).any()
        others = [i for i in range(rows) if i != m]
        assert relative_error(y[others], x[others], weight.dequantize()) <= EXACT


@pytest.mark.parametrize("kind", [*KINDS, *MIXED])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_activations_are_computed_on_in_float32(kind, dtype):
    weight, x = drawn(kind, 33, 128, g=64), inputs(3, 128, dtype)
    y = kernel(weight).gemv(x, weight)
    assert y.dtype == dtype
    assert torch.equal(y, kernel(weight).gemv(x.float(), weight).to(dtype))


def test_strided_unaligned_and_empty_inputs():
    weight = packed(64, 96, "codes", 4, 32)
    k, wide = kernel(weight), inputs(6, 200)
    for x in (wide[:, 1:97], wide[::2, 3:195:2], wide[:, :96].t().contiguous().t()):
        assert torch.equal(k.gemv(x, weight), k.gemv(x.clone(), weight))
    x = wide[:, :96].contiguous()
    assert k.gemv(x.view(2, 3, 96), weight).shape == (2, 3, 64)
    assert torch.equal(k.gemv(x[0], weight), k.gemv(x[:1], weight)[0])
    assert k.gemv(x[:0], weight).shape == (0, 64)


def test_weights_at_any_address():
    weight = packed(40, 96, **KINDS["planes, offset"], g=32)
    x = inputs(1, 96)
    expected = kernel(weight).gemv(x, weight)
    moved = torch.empty(len(weight.stream) + 1, dtype=torch.uint8)[1:].copy_(weight.stream)
    object.__setattr__(weight, "stream", moved)
    assert torch.equal(kernel(weight).gemv(x, weight), expected)


def test_wrong_inputs_are_refused_and_the_record_names_what_ran():
    weight = packed(40, 96, "codes", 4, 32)
    gemv, x = kernel(weight).gemv, inputs(2, 96)
    refused(r"x has shape \(2, 95\).*K = 96", gemv, x[:, 1:], weight)
    refused("x is torch.float64: expected float16", gemv, x.double(), weight)
    refused("x is on meta", gemv, x.to("meta"), weight)
    refused("3 threads", gemv, x, weight, threads=-3)
    refused("g=12 is not a group size", packed, 4, 96, "codes", 4, 12)
    halves = packed(40, 96, "planes", 3, 32, lane_bytes=2)
    refused("lane_bytes=2 have no kernel for portable", kernel, halves, ISAS["portable"])
    assert kernel(weight, ISAS["portable"]).describe(2) == "uniform convert, portable, 2 threads"
