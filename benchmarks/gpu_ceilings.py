"""Ceilings of the GPU at hand: one number for each term of the speed model in kernels/README.md.

python benchmarks/gpu_ceilings.py [--out ceilings.json]

read, copy      bytes a second by size, cold                  expected on an H200: 4.3 TB/s of a copy
look_up         wavefronts of a warp's lookup                 random 256 halves 2.78, 128 halves 2.00, 64 halves and
                                                              one table a bank 1.00
bmma, imma, hmma   products of tensor cores a clock and SM    bit_planes needs 0.25 of bmma_k128
add             atomic additions a second
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import origin
import torch
from gpu_contestants import cold_copies

from lutlab.base.errors import LutlabError
from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.measure.timing import Contestant, GpuTimer, race

THREADS, REPEATS, ROUNDS = 256, 1024, 50
BLOCKS = 3  # of an SM, in what counts clocks: 96 lookups or products under way hide their latency
MEGABYTES = (24, 64, 180, 264, 350, 700, 1200)
LOOKUPS = {
    "256 halves": {"STRIDE": 2, "ENTRY": 2, "ENTRIES": 256},
    "128 halves": {"STRIDE": 2, "ENTRY": 2, "ENTRIES": 128},
    "64 halves": {"STRIDE": 2, "ENTRY": 2, "ENTRIES": 64},
    "256 floats, a table a bank": {"STRIDE": 128, "ENTRY": 4, "ENTRIES": 256, "PRIVATE": 1},
}
PER_SM = 4 * REPEATS * BLOCKS * THREADS // 32  # lookups or products of a warp
PLAIN = {"THREADS": THREADS, "REPEATS": REPEATS, **LOOKUPS["256 halves"], "PRIVATE": 0}


@functools.cache
def kernel(name: str, parameters: tuple[tuple[str, int], ...]) -> Any:
    device = launcher.device_of("cuda")
    gpu = launcher.gpu(device)
    text = cuda.source("probe/ceilings.cu", dict(parameters))
    built = cuda.build(text, "probe", gpu.arch)
    return launcher.load_kernel(str(built.path), name, device, gpu)


def launch(name: str, blocks: int, arguments: tuple, **parameters: int) -> None:
    function = kernel(name, tuple((PLAIN | parameters).items()))
    with launcher.on_torch_stream(launcher.device_of("cuda")):
        function((blocks, 1, 1), (THREADS, 1, 1), arguments, shared_mem=0)


def reader(size: int, copies: int) -> Contestant:
    """Reading so many bytes, of so many buffers in turn."""
    sms = launcher.gpu(launcher.device_of("cuda")).sms
    buffers = [torch.ones(size, dtype=torch.uint8, device="cuda") for _ in range(copies)]
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")

    def read(i: int) -> None:
        arguments = (launcher.pointer(buffers[i]), launcher.pointer(sink), np.int64(size // 16))
        launch("read_all", 8 * sms, arguments)

    return Contestant("read", size // 16 * 16, copies, read)


def bandwidth(megabytes: int) -> dict[str, float]:
    """GB/s of reading, and of copying, bytes read and written counted; cold, as the products are."""
    size = megabytes * 10**6 // 64 * 64
    copies = cold_copies(size)
    halves = [torch.ones(2, size // 2, dtype=torch.uint8, device="cuda") for _ in range(copies)]

    def copy(i: int) -> None:
        halves[i][1].copy_(halves[i][0])

    both = [reader(size, copies), Contestant("copy", size, copies, copy)]
    race(both, GpuTimer(), ROUNDS)
    return {one.name: one.bandwidth() * 1e-9 for one in both}


def cycles(name: str, sms: int, *first: torch.Tensor, **parameters: int) -> float:
    """Clocks of a block: the median over blocks, of the second launch."""
    blocks = BLOCKS * sms
    sink = torch.zeros(blocks * THREADS, dtype=torch.int32, device="cuda")
    clocks = torch.zeros(blocks, dtype=torch.int64, device="cuda")
    arguments = tuple(launcher.pointer(t) for t in (*first, sink, clocks))
    for _ in range(2):
        launch(name, blocks, arguments, **parameters)
    return float(clocks.double().median())


def wavefronts(sms: int, **parameters: int) -> float:
    """Of a warp's lookup: the clocks that an SM needs for it."""
    entries = parameters["ENTRIES"]
    following = torch.randperm(entries, device="cuda").int()
    first = torch.randint(0, entries, (4 * BLOCKS * sms * THREADS,), device="cuda").int()
    return cycles("look_up", sms, following, first, **parameters) / PER_SM


def additions(name: str, sms: int) -> float:
    """10^9 atomic additions a second, over 2.4 MB of cells."""
    cells = torch.zeros(600_000, dtype=torch.float32, device="cuda")
    arguments = (launcher.pointer(cells), np.int32(len(cells)))
    one = Contestant(name, 1, 1, lambda i: launch(name, 4 * sms, arguments, REPEATS=64))
    race([one], GpuTimer(4), 20)
    return 4 * sms * THREADS * 64 / one.seconds() * 1e-9


def measure() -> dict[str, Any]:
    gpu = launcher.gpu(launcher.device_of("cuda"))
    found: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "bandwidth_gb_s": {size: bandwidth(size) for size in MEGABYTES},
        "wavefronts": {
            name: wavefronts(gpu.sms, **parameters) for name, parameters in LOOKUPS.items()
        },
        "products_a_clock_and_sm": {
            name: PER_SM / cycles(name, gpu.sms)
            for name in ("bmma_k128", "bmma_k256", "imma_k32", "hmma_k16")
        },
    }
    found["additions_g_s"] = {
        "float": additions("add_floats", gpu.sms),
        "pair of halves": additions("add_half_pairs", gpu.sms),
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = parser.parse_args()
    try:
        launcher.device_of("cuda")
    except LutlabError as error:
        parser.exit(0, f"not run: {error}\n")
    found = measure()
    print(json.dumps(found, indent=1))
    if args.out:
        origin.write(args.out, found)


if __name__ == "__main__":
    main()
