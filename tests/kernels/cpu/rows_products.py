"""Kinds of weights in blocks of rows, the kernels of this CPU for them, and the product that they have to give.

A library is built for each (instruction set, planes, groups in a word, dtypes), so that tests share few of these.
"""

from __future__ import annotations

import torch
from tests.kernels.weights import relative_error

from lutlab.kernels.codegen import isa
from lutlab.kernels.cpu.rows import rows_gemv
from lutlab.kernels.cpu.rows.rows_gemv import Kernel

ISAS = {one.name: one for one in isa.runnable()}
BEST = next(iter(ISAS.values()))
# fp32 sums of Gaussian inputs; the hard limit is 1e-5.
EXACT = 1e-6

KINDS = {
    "planes, offset": {"kind": "planes", "q": 3, "offset": "f32"},
    "uniform planes": {"kind": "uniform planes", "q": 3},
    "codes": {"kind": "codes", "q": 4},
    "codes, float offset": {"kind": "codes", "q": 4, "shift": "f16"},
}
if "avx2" in ISAS:
    KINDS |= {
        "planes in bytes": {"kind": "planes", "q": 3, "offset": "f32", "lane_bytes": 1},
        "uniform planes in bytes": {"kind": "uniform planes", "q": 3, "lane_bytes": 1},
        "uniform planes in bytes, float offset": {
            "kind": "uniform planes",
            "q": 3,
            "lane_bytes": 1,
            "shift": "f32",
            "scale": "f32",
        },
    }
# Of planes that are not in bytes, for a sample of the tests.
SHIFTED = {"kind": "uniform planes", "q": 3, "shift": "f32", "scale": "f32"}
# Kinds and the instruction sets that run them.
ROUNDED = [kind for kind in KINDS if "uniform" not in kind]
RUN = [(kind, name) for kind in KINDS for name in ISAS if "in bytes" not in kind or name == "avx2"]


def best(weight) -> isa.Isa:
    return ISAS["avx2"] if getattr(weight, "lane_bytes", 4) == 1 else BEST


def kernel(weight, on=None) -> Kernel:
    return rows_gemv.kernel(weight, on or best(weight))


def inputs(m, k, seed=1):
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed))


def assert_near_float64(weight, m, on=None, dense=None):
    x = inputs(m, weight.shape[1])
    y = kernel(weight, on).gemv(x, weight)
    assert relative_error(y, x, weight.dequantize() if dense is None else dense) <= EXACT
