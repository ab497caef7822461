r"""Milliseconds of the first product of a process by a kernel that was built before, and of what it consists.

    python benchmarks/bench_first_call.py [--processes 9 --shape 256x256 --out first.json]

Every process imports lutlab and torch, which are not counted, then takes the parts in order; what is left of the whole
is packing the weight, and torch's own first operations. Clock and processor time; on a busy machine look at the second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import origin

METHODS = {"bcq q3": 3, "uniform q3": 3, "uniform q4": 4}


def first_call(name: str, shape: tuple[int, int]) -> dict[str, tuple[float, float]]:
    """Parts of a process's first product -> ms by the clock, ms of the processor."""
    import torch

    from lutlab.base.tensors import UniformTensor
    from lutlab.formats import bcq, pack
    from lutlab.kernels.codegen import compiler, isa
    from lutlab.kernels.dispatch import prepare

    rows, columns = shape
    q, groups = METHODS[name], columns // 128
    draw = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 2**q, shape, generator=draw, dtype=torch.uint8)
    scale = (torch.rand(rows, groups, generator=draw) + 0.5).half()
    zero = torch.randint(0, 2**q, (rows, groups), generator=draw).short()
    uniform = UniformTensor(codes, scale, zero, q, 128)
    packed = pack(uniform) if name.startswith("uniform") else bcq.pack(bcq.from_uniform(uniform))
    x = torch.randn(1, columns, generator=draw)
    found = {}

    def timed(part: str, run: Callable[[], Any]) -> Any:
        clock, processor = time.perf_counter(), time.process_time()
        result = run()
        spent = time.perf_counter() - clock, time.process_time() - processor
        found[part] = tuple(1e3 * seconds for seconds in spent)
        return result

    timed("features of the CPU", isa.features)
    timed("compiler", compiler.find)
    execution = timed("source, library, packing", lambda: prepare(packed, "cpu"))
    timed("first product", lambda: execution(x))
    found["all"] = tuple(map(sum, zip(*found.values(), strict=True)))
    timed("second product", lambda: execution(x))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--processes", type=int, default=9, help="of each kernel; a first one builds"
    )
    parser.add_argument("--shape", default="256x256", help="NxK")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    parser.add_argument("--child", choices=METHODS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        rows, columns = map(int, args.shape.split("x"))
        print(json.dumps(first_call(args.child, (rows, columns))))
        return
    results = {}
    # As a user's: where bytecode may not be kept, every process would compile the modules that it imports.
    own = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    for name in METHODS:
        command = [sys.executable, __file__, "--child", name, "--shape", args.shape]
        runs = [
            json.loads(
                subprocess.run(command, env=own, check=True, capture_output=True, text=True).stdout
            )
            for _ in range(args.processes + 1)
        ][1:]
        results[name] = {part: [run[part] for run in runs] for part in runs[0]}
        print(
            f"{name}, {args.shape}: ms by the clock, median and least; ms of the processor, median"
        )
        for part, spent in results[name].items():
            clock, processor = zip(*spent, strict=True)
            medians = statistics.median(clock), min(clock), statistics.median(processor)
            print("  {:26} {:8.2f} {:8.2f} {:8.2f}".format(part, *medians), flush=True)
    if args.out:
        origin.write(args.out, {"shape": args.shape, "results": results})


if __name__ == "__main__":
    main()
