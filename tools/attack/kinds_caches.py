"""The kernel cache and the choices that tuning and races left in it."""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tests.kernels.weights import uniform_tensor

from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.codegen import library
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.cpu import uniform_gemv
from lutlab.kernels.cpu.qigen import qigen_gemv
from lutlab.kernels.cpu.rows import rows_gemv, rows_tuning
from lutlab.kernels.gpu import choice
from lutlab.kernels.gpu.choice import DENSE, Race
from tools.attack.kinds import Kind

# No two take the same arguments: one library in another's place reads memory that is not there.
KERNELS = {
    "twice": "double twice(double x) { return 2 * x; }",
    "first": "double first(const double *x) { return x[0]; }",
    "sum": "double sum(long n, const double *x) { double s = 0; while (n--) s += x[n]; return s; }",
}


def call_kernels(compiler: bool, folder: Path) -> dict[str, Any]:
    """Load each, build it where it is not there, and call it; with the names of one function in all of them."""
    os.environ["LUTLAB_CACHE"] = str(folder / "cache")
    if not compiler:
        os.environ["PATH"] = ""
    isa = detect()
    loaded = [library.load(_source(own), "product", isa) for own in KERNELS.values()]
    for one in loaded:
        one.product.restype = ctypes.c_double
    numbers = (ctypes.c_double * 3)(1.5, 2.5, 3.5)
    twice, first, total = loaded
    return {
        "numbers": [
            twice.product(ctypes.c_double(4.25)),
            first.product(numbers),
            total.product(ctypes.c_long(3), numbers),
            *(one.openmp for one in loaded),
        ]
    }


def _source(own: str) -> str:
    name = own.split("(")[0].split()[-1]
    return own.replace(f"{name}(", "product(", 1)


def make_races(folder: Path) -> None:
    os.environ["LUTLAB_CACHE"] = str(folder / "cache")
    seconds = {
        1: {"lane_tables": 1.0, "bit_planes": 2.0, DENSE: 9.0},
        8: {"bit_planes": 3.0, DENSE: 2.5},
    }
    choice.keep([Race("GPU", "float16", False, q, 128, (4096, 4096), seconds) for q in (2, 3, 4)])


def read_races(folder: Path) -> dict[str, Any]:
    os.environ["LUTLAB_CACHE"] = str(folder / "cache")
    found = choice.decisions("GPU", "float16", range(1, 9))
    return {"numbers": {f"{race['bits']} {race['shape']}": str(race) for race in found}}


def make_tuned(folder: Path) -> None:
    """Panels of rows by rows_tuning, micro kernels by QIGen's search: both as if in no time."""
    os.environ["LUTLAB_CACHE"] = str(folder / "cache")
    rows_tuning.times = lambda kernel, pack, panels, prefetches, **_: {
        rows_tuning.Tuning(panel, ahead): 2.0 - (ahead == max(prefetches))
        for panel in panels
        for ahead in prefetches
    }
    for bits in (3, 4):
        plain = PackedUniform.pack(uniform_tensor(40, 320, bits, 64))

        def pack(panel: int, plain: Any = plain) -> Any:
            return replace(uniform_gemv.empty(plain), panel_columns=panel).filled(plain)

        kernel = rows_gemv.kernel(pack(512), detect())
        rows_tuning.tune(kernel, pack, rows_tuning.Tuning(1024, 4096), threads=1)
    qigen_gemv.gemv = lambda *_: None
    for bits in (2, 4):
        qigen_gemv.search(bits)


def read_tuned(folder: Path) -> dict[str, Any]:
    os.environ["LUTLAB_CACHE"] = str(folder / "cache")
    rows = rows_tuning.decisions(range(1, 9), torch.get_num_threads())
    return {
        "numbers": rows
        | {f"qigen {q}": one for q, one in qigen_gemv.decisions(range(1, 9)).items()}
    }


KINDS = [
    *(
        Kind(name, functools.partial(call_kernels, True), functools.partial(call_kernels, compiler))
        for name, compiler in (("kernels", True), ("kernels-no-compiler", False))
    ),
    Kind("races", make_races, read_races),
    Kind("tuned", make_tuned, read_tuned, "cache/codegen/*.*"),
]
