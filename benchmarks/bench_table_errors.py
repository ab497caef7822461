"""Errors of the CPU kernels over planes: |y - x W^T| / |x W^T| against float64, by the numbers their tables hold.

W: 256 x 4096, Gaussian, method bcq, q = 4, g = 128 and one scale a row. x: one row of 4096 activations, Gaussian; with
16 of them times 30; with one of them times 1e4. Writes JSON with --out.

    python benchmarks/bench_table_errors.py --out errors.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

import origin
import torch

import lutlab
from lutlab.formats.bcq import PackedBCQ
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.cpu import bcq_gemv
from lutlab.kernels.cpu.rows import rows_gemv

ROWS, COLUMNS, BITS = 256, 4096, 4


def activations(seed: int) -> dict[str, torch.Tensor]:
    x = torch.randn(1, COLUMNS, generator=torch.Generator().manual_seed(seed))
    several, one = x.clone(), x.clone()
    several[:, :: COLUMNS // 16] *= 30
    one[:, COLUMNS // 2] *= 1e4
    return {"Gaussian": x, "16 times 30": several, "one times 1e4": one}


def errors(packed: PackedBCQ, tables: str, lanes: int) -> dict[str, object]:
    rows = bcq_gemv.empty(packed, lanes).filled(packed)
    kernel = rows_gemv.kernel(rows, tables=tables)
    found = {}
    for name, x in activations(seed=1).items():
        exact = x.double() @ packed.dequantize().double().t()
        found[name] = ((kernel.gemv(x, rows) - exact).norm() / exact.norm()).item()
    return {"variant": kernel.variant, "isa": kernel.isa, "relative_errors": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = parser.parse_args()
    weight = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
    isa, results = detect(), []
    kinds = [(rows_gemv.EXACT, bcq_gemv.FLOATS[0])]
    kinds += [(name, kind[0]) for (on, name), kind in bcq_gemv.INTEGERS.items() if on == isa.name]
    for g in (128, -1):
        packed = lutlab.quantize_tensor(weight, method="bcq", q=BITS, g=g)
        for tables, lanes in kinds:
            results.append({"g": g, **errors(packed, tables, lanes)})
            found = ", ".join(f"{k} {v:.1e}" for k, v in results[-1]["relative_errors"].items())
            print(f"g={g} {results[-1]['variant']} ({isa.name}): {found}")
    if args.out:
        origin.write(args.out, {"bits": BITS, "results": results})


if __name__ == "__main__":
    main()
