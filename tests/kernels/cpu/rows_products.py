"""Kinds of weights in blocks of rows, the kernels of this CPU for them, and the product that they have to give.

A library is built for each (instruction set, planes, groups in a word, dtypes), so that tests share few of these.
"""

from __future__ import annotations

from tests.kernels.checks import inputs, relative_error
from tests.kernels.weights import packed
from tests.mixed_weights import mixed_tensor

from lutlab.formats.mixed import PackedMixed
from lutlab.kernels.codegen import isa
from lutlab.kernels.cpu import mixed_gemv
from lutlab.kernels.cpu.rows import rows_gemv
from lutlab.kernels.cpu.rows.rows_gemv import Kernel

ISAS = {each.name: each for each in isa.runnable()}
BEST = next(iter(ISAS.values()))
# fp32 sums of Gaussian inputs; the hard limit is 1e-5.
EXACT = 1e-6
# Of planes that are not in bytes, for a sample of the tests.
SHIFTED = {"kind": "uniform planes", "q": 3, "shift": "f32", "scale": "f32"}
KINDS = {
    "planes, offset": {"kind": "planes", "q": 3, "offset": "f32"},
    "uniform planes": {"kind": "uniform planes", "q": 3},
    "second order": {"kind": "second order", "q": 2},
    "codes": {"kind": "codes", "q": 4},
    "codes, float offset": {"kind": "codes", "q": 4, "shift": "f16"},
    "uniform planes, second order": {
        "kind": "uniform planes",
        "q": 2,
        "few": True,
        "zeros": (0, 4),
    },
    "codes, second order": {"kind": "codes", "q": 4, "few": True, "zeros": (0, 16)},
    "codes, second order, wide zeros": {"kind": "codes", "q": 6, "few": True, "zeros": (-3, 9)},
    "planes in bytes": {"kind": "planes", "q": 3, "offset": "f32", "lane_bytes": 1},
    "second order in bytes": {"kind": "second order", "q": 3, "lane_bytes": 1},
    "uniform planes in bytes": {"kind": "uniform planes", "q": 3, "lane_bytes": 1},
    "uniform planes in bytes, second order": {
        "kind": "uniform planes",
        "q": 3,
        "few": True,
        "lane_bytes": 1,
    },
    "uniform planes in bytes, float offset": SHIFTED | {"lane_bytes": 1},
}
KINDS = {kind: how for kind, how in KINDS.items() if "avx2" in ISAS or "in bytes" not in kind}
# Mixed groups, whose kernel is one of those over blocks of rows; plain C's is compiled for one of them.
MIXED = {
    "mixed, paper": {"widths": (2, 2, 2, 4)},
    "mixed, ladder": {"widths": (2, 3, 4), "g": 8, "by_row": False},
    "mixed, long": {"widths": (4, 3, 2), "g": 128},
}
# Kinds and the instruction sets that run them.
RUN = [(kind, name) for kind in KINDS for name in ISAS if "in bytes" not in kind or name == "avx2"]
RUN += [*((kind, BEST.name) for kind in MIXED), ("mixed, ladder", "portable")]
RUN = list(dict.fromkeys(RUN))


def mixed_rows(tensor, on=BEST):
    stored = PackedMixed.pack(tensor)
    return mixed_gemv.empty(stored, on).filled(stored)


def drawn(kind, rows, columns, g, on=BEST, **options):
    """A weight; one of mixed groups is for an instruction set, and has groups of its own size, and outliers."""
    if kind in MIXED:
        return mixed_rows(mixed_tensor(rows, columns, **MIXED[kind], outliers=200), on)
    return packed(rows, columns, **KINDS[kind] | options, g=g)


def kernel(weight, on=None) -> Kernel:
    best = ISAS["avx2"] if getattr(weight, "lane_bytes", 4) == 1 else BEST
    return rows_gemv.kernel(weight, on or best)


def assert_near(weight, m, on=None):
    """The product of m rows of x is the one in float64."""
    x = inputs(m, weight.shape[1])
    assert relative_error(kernel(weight, on).gemv(x, weight), x, weight.dequantize()) <= EXACT
