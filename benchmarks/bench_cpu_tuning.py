"""Tuning against trying everything: rows_tuning.tune beside all pairs of many panels and distances.

    python benchmarks/bench_cpu_tuning.py [--shapes 4096x4096 --threads 1 2 --seconds 40 --out tuning.json]

Goal: the tuned pair within 3 % of the best of all, found in under 30 s a shape. The defaults are told beside, since
they are what runs when nobody asks for tuning. Tunings are kept in a folder of this run, not in the user's cache.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import origin

PANELS = (256, 512, 1024, 2048)
DISTANCES = (0, 1024, 2048, 4096, 8192, 16384, 32768)
GROUP = 128


def weights(shape: tuple[int, int]) -> dict:
    """Name -> a function that packs random weights for a panel width."""
    from dataclasses import replace

    import torch

    from lutlab.base.tensors import UniformTensor
    from lutlab.formats import bcq
    from lutlab.formats.uniform import PackedUniform
    from lutlab.kernels.codegen.isa import detect
    from lutlab.kernels.cpu import bcq_gemv, uniform_gemv

    generator = torch.Generator().manual_seed(0)
    groups = shape[1] // GROUP
    codes = torch.randint(0, 16, shape, generator=generator, dtype=torch.uint8)
    scale = (torch.rand(shape[0], groups, generator=generator) + 0.5).half()
    zero = torch.randint(0, 16, (shape[0], groups), generator=generator).short()
    uniform = UniformTensor(codes, scale, zero, 4, GROUP)
    planes = bcq.pack(bcq.from_uniform(uniform)).planes
    lanes = bcq_gemv.lane_bytes(detect(), GROUP, shape[1])

    def packer(stored, empty):
        def pack(panel=empty.panel_columns):
            return replace(empty, panel_columns=panel).filled(stored)

        return pack

    stored = PackedUniform.pack(uniform)
    found = {"uniform q4": packer(stored, uniform_gemv.empty(stored))}
    for q in (4, 2):
        alpha = torch.rand(q, shape[0], groups, generator=generator).half()
        plain = bcq.PackedBCQ(planes[:q].contiguous(), alpha, None, shape, GROUP)
        found[f"bcq q{q}"] = packer(plain, bcq_gemv.empty(plain, lanes))
    return found


def compare(name: str, pack, threads: int, seconds: float) -> dict:
    """Tune, try everything, and look the tuned pair and the default one up in what was found."""
    from lutlab.kernels.cpu.rows import rows_gemv, rows_tuning
    from lutlab.kernels.cpu.rows.rows_tuning import Tuning

    default = pack()
    kernel = rows_gemv.kernel(default)
    default = Tuning(default.panel_columns, kernel.prefetch_bytes)
    began = time.perf_counter()
    tuned = rows_tuning.tune(kernel, pack, default, threads=threads)
    spent = time.perf_counter() - began
    every = rows_tuning.times(kernel, pack, PANELS, DISTANCES, threads=threads, seconds=seconds)
    best = min(every, key=every.__getitem__)
    return {
        "kernel": f"{name}, {kernel.describe(threads)}",
        "tuning_seconds": spent,
        **{
            kind: {
                "panel_columns": pair.panel_columns,
                "prefetch_bytes": pair.prefetch_bytes,
                "us": every[pair] * 1e6,
                "over_best": every[pair] / every[best],
            }
            for kind, pair in (("best", best), ("tuned", tuned), ("default", default))
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["4096x4096"], help="NxK")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=40.0, help="to try everything, a kernel")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LUTLAB_CACHE"] = folder
        for text in args.shapes:
            shape = tuple(map(int, text.split("x")))
            for name, pack in weights(shape).items():
                for threads in args.threads:
                    rows.append({"shape": list(shape), "threads": threads})
                    rows[-1] |= compare(name, pack, threads, args.seconds)
                    print(line(rows[-1]), flush=True)
    if args.out:
        origin.write(args.out, {"results": rows})


def line(row: dict) -> str:
    told = (
        f"{kind} {row[kind]['panel_columns']}/{row[kind]['prefetch_bytes']}: {row[kind]['us']:.0f} us "
        f"({row[kind]['over_best']:.3f})"
        for kind in ("best", "tuned", "default")
    )
    size = "x".join(map(str, row["shape"]))
    return f"{size} {row['kernel']}: {', '.join(told)}; tuned in {row['tuning_seconds']:.1f} s"


if __name__ == "__main__":
    main()
