"""The kernels over blocks of rows against float64: every width, grouping, shape, batch, input and instruction set.

A library is built for each (instruction set, planes, groups in a word, dtypes), so that tests share few of these.
"""

import ctypes
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.codegen import sanitized
from tests.kernels.weights import packed, relative_error

from lutlab.errors import LutlabError
from lutlab.formats.bcq_rows import PackedBCQRows
from lutlab.kernels.codegen import isa, library
from lutlab.kernels.cpu import bcq_gemv, rows_gemv, uniform_gemv
from lutlab.kernels.cpu.rows_gemv import Kernel

ISAS = {one.name: one for one in isa.runnable()}
BEST = next(iter(ISAS.values()))
EMULATED = Path(__file__).with_name("avx512_emulated.h")
# fp32 sums of Gaussian inputs; the hard limit is 1e-5.
EXACT = 1e-6
# What tables of 16 bits may be off.
INEXACT = 1e-4

KINDS = {
    "planes, offset": {"kind": "planes", "q": 3, "offset": "f32"},
    "uniform planes": {"kind": "uniform planes", "q": 3},
    "codes": {"kind": "codes", "q": 4},
}
if "avx2" in ISAS:
    KINDS |= {
        "planes in bytes": {"kind": "planes", "q": 3, "offset": "f32", "lane_bytes": 1},
        "uniform planes in bytes": {"kind": "uniform planes", "q": 3, "lane_bytes": 1},
    }
# Kinds and the instruction sets that run them.
ROUNDED = [kind for kind in KINDS if "uniform" not in kind]
RUN = [(kind, name) for kind in KINDS for name in ISAS if "in bytes" not in kind or name == "avx2"]


def module(weight):
    return bcq_gemv if isinstance(weight, PackedBCQRows) else uniform_gemv


def best(weight) -> isa.Isa:
    return ISAS["avx2"] if getattr(weight, "lane_bytes", 4) == 1 else BEST


def kernel(weight, on=None) -> Kernel:
    return module(weight).kernel(weight, on or best(weight))


def inputs(m, k, seed=1):
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed))


def check(weight, m, on=None, dense=None):
    x = inputs(m, weight.shape[1])
    y = torch.full((m, weight.shape[0]), torch.nan)
    kernel(weight, on).gemv(x, weight, out=y)
    assert relative_error(y, x, weight.dequantize() if dense is None else dense) <= EXACT


@pytest.mark.parametrize("q", range(1, 9))
def test_every_number_of_planes(q):
    offset, alpha = (None, "f16", "f32")[q % 3], ("f16", "f32")[q // 4 % 2]
    for g in (32, 64, 128, -1):
        for lane_bytes in (4, 1) if "avx2" in ISAS else (4,):
            options = {"offset": offset, "alpha": alpha, "lane_bytes": lane_bytes}
            check(packed(70, 300, "planes", q, g, **options), 2)
            check(packed(70, 300, "planes", q, g, **options), 13)
            if q < 3:  # of uniform codes two planes are looked up at once
                check(packed(70, 300, "uniform planes", q, g, lane_bytes=lane_bytes), 2)


@pytest.mark.parametrize("bits", [1, 4, 5, 8])
def test_every_number_of_code_bits(bits):
    for g in (8, 16, 32, 64, 128, -1):
        check(packed(70, 300, "codes", bits, g), 1)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize(
    ("kind", "g"),
    [
        ("planes, offset", 8),
        ("planes, offset", 16),
        ("planes, offset", 32),
        ("uniform planes", 32),
        ("codes", 32),
    ],
)
def test_every_instruction_set_and_grouping_of_a_word(kind, g, name):
    weight = packed(33, 200, **KINDS[kind], g=g, ordered=True)
    for m in (1, 14):
        check(weight, m, ISAS[name])


@pytest.mark.parametrize("g", [24, 40, 64, 1000, 1056, 2000])
@pytest.mark.parametrize("kind", KINDS)
def test_groups_that_are_no_whole_words_and_long_ones(kind, g):
    check(packed(70, 2100, **KINDS[kind], g=g), 2)


@pytest.mark.parametrize("kind", ROUNDED)
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 63, 65, 129])
def test_rows_around_a_block(kind, rows):
    check(packed(rows, 131, **KINDS[kind], g=32), 1)


@pytest.mark.parametrize("kind", ROUNDED)
@pytest.mark.parametrize("columns", [1, 2, 3, 5, 31, 33, 500, 511, 513, 1025, 1537])
def test_columns_around_a_word_and_a_panel(kind, columns):
    for g in (32, -1):
        check(packed(70, columns, **KINDS[kind], g=g), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_x_do_not_see_each_other_and_threads_change_nothing(kind):
    weight = packed(97, 700, **KINDS[kind], g=128)
    k, x = kernel(weight), inputs(35, 700)
    alone = torch.stack([k.gemv(row, weight, threads=1) for row in x])
    dense = weight.dequantize()
    for m in (*range(1, 15), 35):
        y = k.gemv(x[:m], weight, threads=1)
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
    y, scratch = torch.empty(len(x), 32 * sum(blocks)), torch.empty(64, first.geometry.columns)
    geometry, ahead = rows_gemv.columns_of(first.geometry), k.prefetch_bytes
    where = y.data_ptr(), y.shape[1], scratch.data_ptr()
    given = x.data_ptr(), x.shape[1], len(x), parts, len(weights), geometry, None
    assert k.library.gemv(*given, *where, ahead, threads)
    found = y.split([32 * n for n in blocks], dim=1)
    return [part[:, : weight.shape[0]] for part, weight in zip(found, weights, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_in_one_call_are_their_own_products_to_the_last_bit(kind):
    weights = [packed(n, 1100, **KINDS[kind], g=64, seed=n) for n in (97, 20, 64)]
    x = inputs(13, 1100)
    for m, threads in ((1, 1), (1, 4), (13, 2)):
        found = together(weights, x[:m], threads)
        for y, weight in zip(found, weights, strict=True):
            assert torch.equal(y, kernel(weight).gemv(x[:m], weight, threads=1))


@given(
    kind=st.sampled_from(list(KINDS)),
    rows=st.integers(8, 80),  # so many that their sums do not all cancel
    columns=st.integers(16, 400),
    g=st.sampled_from([-1, 32, 40, 64, 96]),
    m=st.integers(1, 18),
    ordered=st.booleans(),
    seed=st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=30)
def test_any_shape(kind, rows, columns, g, m, ordered, seed):
    check(packed(rows, columns, **KINDS[kind], g=g, ordered=ordered, seed=seed), m)


@pytest.mark.parametrize(("kind", "name"), RUN)
def test_dense_is_the_weight_to_the_last_bit(kind, name):
    for rows, columns, g in ((70, 300, 64), (1, 33, -1), (256, 512, 32), (40, 90, 40)):
        weight = packed(rows, columns, **KINDS[kind], g=g, ordered=True)
        room = torch.full((rows, columns), torch.nan)
        dense = kernel(weight, ISAS[name]).dense(weight, out=room, threads=2)
        assert dense is room
        assert torch.equal(dense, weight.dequantize())
    with pytest.raises(LutlabError, match=r"expected a contiguous float32 \(40, 90\)"):
        kernel(weight).dense(weight, out=torch.empty(90, 40))


@pytest.mark.parametrize(("kind", "name"), RUN)
def test_extreme_activations(kind, name):
    weight = packed(40, 256, **KINDS[kind], g=64)
    k, dense = kernel(weight, ISAS[name]), weight.dequantize()
    x = inputs(3, 256)  # so few that integers are multiplied
    x[:, ::50] *= 1e4
    for rows in (x, x.repeat(5, 1)):
        assert relative_error(k.gemv(rows, weight), rows, dense) <= EXACT
        assert torch.equal(k.gemv(rows * 0, weight), torch.zeros(len(rows), 40))
    for size in (1e-44, 1e-40, 1e-35, 1e-30, 1e30):
        tiny = inputs(1, 256) * size
        error = k.gemv(tiny, weight).double() - tiny.double() @ dense.double().t()
        norm = (tiny.double() @ dense.double().t()).norm()
        # Half of the last bit of a subnormal float is the best that y can hold.
        assert error.norm() <= EXACT * norm + 40**0.5 * 2.0**-150


@pytest.mark.parametrize(("kind", "name"), RUN)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_inf_reach_their_row_and_no_other(kind, name, bad):
    # Without an offset, whose sum of activations would be nan by itself.
    options = KINDS[kind] | ({"offset": None} if "offset" in KINDS[kind] else {})
    weight = packed(70, 96, **options, g=32)
    for rows, m, column in ((2, 0, 0), (4, 3, 95), (14, 6, 31)):
        x = inputs(rows, 96)
        x[m, column] = bad
        y = kernel(weight, ISAS[name]).gemv(x, weight)
        assert not torch.isfinite(y[m]).any()
        others = [i for i in range(rows) if i != m]
        assert relative_error(y[others], x[others], weight.dequantize()) <= EXACT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_activations_are_computed_on_in_float32(kind, dtype):
    weight = packed(33, 128, **KINDS[kind], g=64)
    x = inputs(3, 128).to(dtype)
    y = kernel(weight).gemv(x, weight)
    assert y.dtype == dtype
    assert torch.equal(y, kernel(weight).gemv(x.float(), weight).to(dtype))


def test_strided_unaligned_and_empty_inputs_and_a_given_output():
    weight = packed(64, 96, "codes", 4, 32)
    k, wide = kernel(weight), inputs(6, 200)
    for x in (wide[:, 1:97], wide[::2, 3:195:2], wide[:, :96].t().contiguous().t()):
        assert torch.equal(k.gemv(x, weight), k.gemv(x.clone(), weight))
    x = wide[:, :96].contiguous()
    expected = k.gemv(x, weight)
    strided = torch.full((6, 128), torch.nan)
    assert k.gemv(x, weight, out=strided[:, ::2]).data_ptr() == strided.data_ptr()
    assert torch.equal(strided[:, ::2], expected)
    assert strided[:, 1::2].isnan().all()
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


def test_wrong_inputs_are_refused_in_words():
    weight = packed(40, 96, "codes", 4, 32)
    k, x = kernel(weight), inputs(2, 96)
    with pytest.raises(LutlabError, match=r"x has shape \(2, 95\).*K = 96"):
        k.gemv(x[:, 1:], weight)
    with pytest.raises(LutlabError, match=r"x is torch.float64: expected float16"):
        k.gemv(x.double(), weight)
    with pytest.raises(LutlabError, match=r"x is on meta"):
        k.gemv(x.to("meta"), weight)
    with pytest.raises(LutlabError, match=r"out is torch.float32 \(40,\).*expected .*\(2, 40\)"):
        k.gemv(x, weight, out=torch.empty(40))
    with pytest.raises(LutlabError, match="g=12 is not a group size"):
        packed(4, 96, "codes", 4, 12)
    with pytest.raises(LutlabError, match="3 threads"):
        k.gemv(x, weight, threads=-3)


def test_the_record_names_what_ran():
    weight = packed(40, 96, **KINDS["codes"], g=32)
    assert kernel(weight, ISAS["portable"]).describe(2) == "uniform convert, portable, 2 threads"


# ---- what this CPU does not run, and what a sanitizer sees ----


def emulated(text: str) -> Kernel:
    """avx512.h itself, its intrinsics replaced by loops: the algorithm, the cuts and the constants of AVX-512 run."""
    assert '__asm__ volatile("" : "+v"(value))' in text
    text = text.replace("#include <immintrin.h>", "#include <stdlib.h>\n" + EMULATED.read_text())
    text = text.replace('__asm__ volatile("" : "+v"(value))', "((void)0)")
    slow = isa.Isa("portable", ("-O1",))  # built in a third of the time
    built = ctypes.CDLL(str(library.build(text, "emulated", slow) / "kernel.so"))
    return Kernel(built, "emulated", "avx512", 768, 8192)


@pytest.mark.parametrize(
    ("kind", "g"), [("planes, offset", 16), ("uniform planes", 32), ("codes", 32)]
)
def test_avx512_emulated_gives_the_same(kind, g):
    weight = packed(40, 200, **KINDS[kind], g=g, ordered=True)
    same, x = emulated(module(weight).source(weight, isa.ISAS[0])), inputs(27, 200)
    for m in (1, 7, 27):
        assert relative_error(same.gemv(x[:m], weight), x[:m], weight.dequantize()) <= EXACT
    torch.testing.assert_close(same.dense(weight), weight.dequantize(), rtol=0, atol=0)


# ---- tables of fewer bits, by name only ----


@pytest.mark.parametrize("vnni", [True, False])
def test_tables_of_16_bits_with_avx512_emulated(vnni):
    weight = packed(40, 400, "planes", 4, 64, offset="f32", ordered=True, lane_bytes=2)
    text = bcq_gemv.source(weight, isa.ISAS[0], bcq_gemv.INT16)
    quick = emulated(("#define __AVX512VNNI__ 1\n" if vnni else "") + text)
    dense, x = weight.dequantize(), inputs(27, 400)
    for m in (1, 5):
        assert EXACT < relative_error(quick.gemv(x[:m], weight), x[:m], dense) < INEXACT
    assert relative_error(quick.gemv(x, weight), x, dense) <= EXACT, "many rows meet floats"
    torch.testing.assert_close(quick.dense(weight), dense, rtol=0, atol=0)
    same_sign = torch.full((1, 400), 3.0)  # the largest sums there are
    same_sign[0, 7] = 1e4
    assert relative_error(quick.gemv(same_sign, weight), same_sign, dense) < INEXACT
    assert torch.equal(quick.gemv(x[:1] * 0, weight), torch.zeros(1, 40))
    plain = packed(40, 400, "planes", 4, 64, lane_bytes=2)
    alone = emulated(bcq_gemv.source(plain, isa.ISAS[0], bcq_gemv.INT16))
    for bad in (torch.nan, torch.inf):
        x[0, 399] = bad
        assert not torch.isfinite(alone.gemv(x[:1], plain)).any()


@pytest.mark.skipif("avx2" not in ISAS, reason="these tables are AVX2's")
@pytest.mark.parametrize("q", [1, 2, 4, 7])
@pytest.mark.parametrize("g", [32, 40, 128, -1])
def test_tables_of_18_bits(q, g):
    weight = packed(70, 1500, "planes", q, g, offset="f16", lane_bytes=1)
    quick = bcq_gemv.kernel(weight, ISAS["avx2"], bcq_gemv.INT16)
    x, dense = inputs(3, 1500), weight.dequantize()
    assert quick.variant == "bcq lut int18"
    assert EXACT < relative_error(quick.gemv(x, weight), x, dense) < INEXACT
    x[:, ::250] *= 30
    assert relative_error(quick.gemv(x, weight), x, dense) < INEXACT


def test_a_layout_of_other_tables_is_refused():
    weight = packed(40, 96, "planes", 3, 32, lane_bytes=2)
    with pytest.raises(LutlabError, match="lane_bytes=2 have no kernel for portable"):
        bcq_gemv.kernel(weight, ISAS["portable"])


@pytest.mark.parametrize("kind", ["planes, offset", "codes"])
@pytest.mark.parametrize("name", [one.name for one in isa.buildable() if one.name not in ISAS])
def test_other_instruction_sets_compile(kind, name):
    weight = packed(1, 64, **KINDS[kind], g=32)
    one = next(i for i in isa.ISAS if i.name == name)
    built = library.build(module(weight).source(weight, one), "compiled", one)
    assert (built / "kernel.so").exists()


@pytest.mark.skipif(isa.ISAS[0] not in isa.buildable(), reason="the compiler is for another CPU")
def test_tables_of_16_bits_compile():
    weight = packed(1, 64, "planes", 3, 32, lane_bytes=2)
    text = bcq_gemv.source(weight, isa.ISAS[0], bcq_gemv.INT16)
    assert (library.build(text, "compiled", isa.ISAS[0]) / "kernel.so").exists()


TWICE = """
void twice(const float *x, long m, const uint8_t *stream, const struct columns *k, const int32_t *channels, long blocks,
           float *y, float *scratch)
{
    const struct part parts[] = {{stream, blocks}, {stream, blocks}};
    gemv(x, k->channels, m, parts, 2, k, channels, y, 2 * blocks * ROWS, scratch, 8192, 3);
}
"""


@pytest.mark.parametrize(
    ("name", "kind", "rows", "columns", "g", "m"),
    [
        (BEST.name, "planes, offset", 33, 70, 16, 3),
        (BEST.name, "codes", 65, 610, 40, 5),
        ("portable", "uniform planes", 1, 1, -1, 1),
        *(
            ("avx2", "planes in bytes", 33, 170, g, m)
            for g, m in ((40, 3), (-1, 9))
            if "avx2" in ISAS
        ),
    ],
)
def test_sanitizers_find_nothing(name, kind, rows, columns, g, m, tmp_path):
    weight = packed(rows, columns, **KINDS[kind], g=g, ordered=True)
    x, geo = inputs(m, columns), weight.geometry
    blocks = -(-rows // 32)
    after = sanitized.call(
        module(weight).source(weight, ISAS[name]) + TWICE,
        "twice",
        x,
        m,
        weight.stream,
        torch.tensor(list(rows_gemv.columns_of(geo)), dtype=torch.int64),
        weight.channels,
        blocks,
        torch.full((m, 2 * blocks * 32), torch.nan),
        torch.empty(m, geo.columns),
        isa=ISAS[name],
        folder=tmp_path,
    )
    y, again = after[4].split(blocks * 32, dim=1)
    assert relative_error(y[:, :rows], x, weight.dequantize()) <= EXACT
    assert torch.equal(y, again)
