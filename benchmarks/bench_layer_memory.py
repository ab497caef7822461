"""Peak memory of quantizing one layer in the metric of its inputs, and seconds: W, H, factors, codes and temporaries.

    python benchmarks/bench_layer_memory.py [--rows 4096 --inputs 11008 --q 2 --g 128 -1 --out bench.json]

The goal: down_proj of LLaMA-7B (4096 x 11008) in 2 GB, one group a row or many. Each g is a process of its own; the
interpreter and its libraries, some 0.3 GB, are given beside it. H is of as many drawn inputs as are asked for.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import origin
import torch
from bench_synthetic_memory import resident

from lutlab.base.tensors import CalibStats
from lutlab.quantizers.contract import make_method

BATCH = 512  # inputs drawn at a time


def measure(args: argparse.Namespace, g: int) -> dict[str, Any]:
    """One layer in this process; sizes in 10^9 bytes."""
    torch.set_num_threads(args.threads)
    draw = torch.Generator().manual_seed(args.seed)
    method = make_method(args.method)
    method.quantize(
        torch.ones(8, 8), args.q, 8, method.prepare(CalibStats(torch.eye(8), torch.ones(8), 8))
    )
    before = resident("VmRSS")  # every library is there
    weight = 0.02 * torch.randn(args.rows, args.inputs, generator=draw)
    hessian = torch.zeros(args.inputs, args.inputs)
    for _ in range(-(-args.tokens // BATCH)):
        x = torch.randn(BATCH, args.inputs, generator=draw)
        x += 2 * torch.randn(BATCH, 1, generator=draw)  # what all inputs have in common
        hessian.addmm_(x.t(), x)
    hessian /= args.tokens
    given, began = resident("VmRSS"), time.perf_counter()
    prepared = method.prepare(CalibStats(hessian, hessian.diagonal().sqrt(), args.tokens))
    tensor = method.quantize(weight, args.q, g, prepared)
    seconds = time.perf_counter() - began
    assert tensor.codes.shape == weight.shape
    return {
        "g": g,
        "seconds": seconds,
        "libraries_gb": before / 1e9,
        "weight_and_hessian_gb": (given - before) / 1e9,
        "peak_gb": (resident("VmHWM") - before) / 1e9,
    }


def main() -> None:
    """Measure every g and print; --out also writes a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--inputs", type=int, default=11008)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--method", default="hessian_bcq")
    parser.add_argument("--q", type=int, default=2)
    parser.add_argument("--g", type=int, nargs="+", default=[128, -1])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="a JSON file")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(measure(args, *args.g)))
        return
    rows = []
    for g in args.g:
        given = {k: v for k, v in vars(args).items() if k not in ("g", "out", "alone")}
        command = [sys.executable, __file__, "--alone", "--g", str(g)]
        command += [part for key, value in given.items() for part in (f"--{key}", str(value))]
        rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        print("  ".join(f"{name} {value:.3f}" for name, value in rows[-1].items()), flush=True)
    if args.out:
        origin.write(args.out, given | {"rows": rows})


if __name__ == "__main__":
    main()
