"""Race of a product's kernels on a GPU by rows of x; lutlab/kernels/gpu/choice.py goes by the seconds it keeps.

    python benchmarks/bench_gpu_choice.py [--out folder] [--rounds 10]

Binary and uniform codes of 2, 3, 4 and 8 bits, groups of 128, two shapes, float16 x; at q = 3 and 4 also groups of 32,
and float32 and bfloat16 x. Contestants are all variants that are ever chosen, and `dense`: dequantize, then cuBLAS.
They are checked against float64, and their weights are cold, as gpu_contestants.py says. Without a GPU it says so and
ends.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import origin
import torch
from gpu_contestants import (
    DEVICE,
    LARGE,
    SMALL,
    Entrant,
    activations,
    checked,
    cold_products,
    draw,
    through_dense,
)

from lutlab.base.errors import LutlabError
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.gpu import choice, variants
from lutlab.kernels.gpu.choice import Race
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.kernels.gpu.lut_gemv.variant import case
from lutlab.measure.energy import clocks_of
from lutlab.measure.timing import GpuTimer, race

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FAR = 3  # times the winner's seconds
F16 = torch.float16


def products() -> Iterator[tuple[tuple[int, int], int, int, bool, torch.dtype]]:
    """Shape, q, g, whether codes are uniform, dtype of x."""
    for uniform in (False, True):
        for q in (2, 3, 4, 8):
            for shape in (LARGE, SMALL):
                yield shape, q, 128, uniform, F16
        for q in (3, 4):
            yield SMALL, q, 32, uniform, F16
            for dtype in (torch.float32, torch.bfloat16):
                yield SMALL, q, 128, uniform, dtype


def bound(
    packed: PackedBCQ | PackedUniform, dtype: torch.dtype
) -> dict[str, list[launcher.Product]]:
    """Every variant that takes the weight, with as many copies as make it cold."""
    here, found = launcher.gpu(launcher.device_of(DEVICE)), {}
    for variant in variants.preferred():
        name = variant.name
        if variant.why_not(case(packed, dtype), here):
            continue
        found[name], _ = cold_products(packed, dtype, name)
    return found


def run(
    shape: tuple[int, int], q: int, g: int, uniform: bool, dtype: torch.dtype, rounds: int
) -> Race:
    """One product with every number of rows; who has fallen far behind does not start again."""
    packed = draw(shape, q, g, uniform)
    products, weight, seconds = bound(packed, dtype), packed.dequantize(), {}
    for m in ROWS:
        x = activations(m, shape[1], dtype)
        entrants = {choice.DENSE: through_dense(packed, x, "")}
        for name, copies in products.items():
            for product in copies:
                product.prepare(m)
            one = Entrant(name, 1, len(copies), lambda i, of=copies, x=x: of[i](x))
            entrants[name] = one
        for one in entrants.values():
            checked(one, x, weight)
        race(list(entrants.values()), GpuTimer(), rounds)
        seconds[m] = {name: one.seconds() for name, one in entrants.items()}
        behind = FAR * min(seconds[m].values())
        products = {name: of for name, of in products.items() if seconds[m][name] <= behind}
    name = str(dtype).removeprefix("torch.")
    return Race(torch.cuda.get_device_name(), name, uniform, q, g, shape, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, help="folder for gpu_choice.json")
    args = parser.parse_args()
    try:
        launcher.device_of(DEVICE)
    except LutlabError as error:
        parser.exit(0, f"not run: {error}\n")
    races = []
    with torch.inference_mode():
        for product in products():
            races.append(run(*product, args.rounds))
            choice.keep(races[-1:])
            print(json.dumps(asdict(races[-1])), flush=True)
    if args.out:
        found = {"clocks": clocks_of(DEVICE), "races": [asdict(one) for one in races]}
        origin.write(args.out / "gpu_choice.json", found)


if __name__ == "__main__":
    main()
