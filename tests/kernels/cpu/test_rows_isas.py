"""The kernels over blocks of rows that this CPU does not run, those of less exact tables, and sanitizers' findings."""

import ctypes
import dataclasses

import pytest
import torch
from tests.kernels.codegen import sanitized
from tests.kernels.cpu.rows_products import (
    BEST,
    EXACT,
    ISAS,
    KINDS,
    inputs,
)
from tests.kernels.weights import packed, relative_error

from lutlab.base.errors import LutlabError
from lutlab.kernels.codegen import isa, library
from lutlab.kernels.cpu.bcq_gemv import INT16
from lutlab.kernels.cpu.rows import rows_gemv

# What tables of 16 bits may be off.
INEXACT = 1e-4


def without_vnni(weight):
    """A kernel of tables of 16 bits for the AVX-512 CPUs that have no VNNI."""
    flags = (flag for flag in ISAS["avx512"].flags if "vnni" not in flag)
    plain = isa.Isa("avx512", (*flags, "-DWITHOUT_VNNI"))  # which tests/kernels/simde.py reads
    text = weight.source(plain, INT16)[0]
    built = ctypes.CDLL(str(library.build(text, "without-vnni", plain) / "kernel.so"))
    with_vnni = rows_gemv.kernel(weight, ISAS["avx512"], INT16)
    return dataclasses.replace(with_vnni, library=built)


@pytest.mark.skipif(
    "avx512" not in ISAS, reason="these tables are AVX-512's (tests/kernels/simde.py)"
)
@pytest.mark.parametrize("vnni", [True, False])
def test_tables_of_16_bits(vnni):
    weight = packed(40, 400, "planes", 4, 64, offset="f32", ordered=True, lane_bytes=2)
    quick = rows_gemv.kernel(weight, ISAS["avx512"], INT16) if vnni else without_vnni(weight)
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
    alone = rows_gemv.kernel(plain, ISAS["avx512"], INT16)
    for bad in (torch.nan, torch.inf):
        x[0, 399] = bad
        assert not torch.isfinite(alone.gemv(x[:1], plain)).any()


@pytest.mark.skipif("avx2" not in ISAS, reason="these tables are AVX2's")
@pytest.mark.parametrize("q", [1, 2, 4, 7])
@pytest.mark.parametrize("g", [32, 40, 128, -1])
def test_tables_of_18_bits(q, g):
    weight = packed(70, 1500, "planes", q, g, offset="f16", lane_bytes=1)
    quick = rows_gemv.kernel(weight, ISAS["avx2"], INT16)
    x, dense = inputs(3, 1500), weight.dequantize()
    assert quick.variant == "bcq lut int18"
    assert EXACT < relative_error(quick.gemv(x, weight), x, dense) < INEXACT
    x[:, ::250] *= 30
    assert relative_error(quick.gemv(x, weight), x, dense) < INEXACT


def test_a_layout_of_other_tables_is_refused():
    weight = packed(40, 96, "planes", 3, 32, lane_bytes=2)
    with pytest.raises(LutlabError, match="lane_bytes=2 have no kernel for portable"):
        rows_gemv.kernel(weight, ISAS["portable"])


@pytest.mark.parametrize("kind", ["planes, offset", "codes"])
@pytest.mark.parametrize("name", [one.name for one in isa.buildable() if one.name not in ISAS])
def test_other_instruction_sets_compile(kind, name):
    weight = packed(1, 64, **KINDS[kind], g=32)
    one = next(i for i in isa.ISAS if i.name == name)
    built = library.build(weight.source(one)[0], "compiled", one)
    assert (built / "kernel.so").exists()


@pytest.mark.skipif(isa.ISAS[0] not in isa.buildable(), reason="the compiler is for another CPU")
def test_tables_of_16_bits_compile():
    weight = packed(1, 64, "planes", 3, 32, lane_bytes=2)
    text = weight.source(isa.ISAS[0], INT16)[0]
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
    x = inputs(m, columns)
    blocks = -(-rows // 32)
    after = sanitized.call(
        weight.source(ISAS[name])[0] + TWICE,
        "twice",
        x,
        m,
        weight.stream,
        torch.tensor(list(rows_gemv.longs(weight.places)), dtype=torch.int64),
        weight.channels,
        blocks,
        torch.full((m, 2 * blocks * 32), torch.nan),
        torch.empty(m, weight.columns),
        isa=ISAS[name],
        folder=tmp_path,
    )
    y, again = after[4].split(blocks * 32, dim=1)
    assert relative_error(y[:, :rows], x, weight.dequantize()) <= EXACT
    assert torch.equal(y, again)
