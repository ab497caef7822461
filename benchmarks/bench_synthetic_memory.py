"""Peak memory and seconds of making a model of packed layers on a CPU, against the bytes that it then holds.

    python benchmarks/bench_synthetic_memory.py [--model llama-7b --method bcq --q 3 --g 128 --out bench.json]

The goal: the resident set grows by at most 1.1 times what the model holds when it is made: packed weights in their
kernels' layout, embeddings, head and norms (and the key-value cache that --cache tokens take, which is filled). Growth
is counted from the imports on; the whole process, interpreter and libraries included (some 0.4 GB), is given beside it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import origin
import torch
import transformers.models.llama.modeling_llama  # imported before memory is looked at
import transformers.models.opt.modeling_opt  # noqa: F401

from lutlab.base.groups import whole
from lutlab.compress.synthetic import synthetic
from lutlab.models import fits
from lutlab.modules import QuantLinear


def resident(field: str) -> int:
    """Bytes that Linux has under VmRSS (now) or VmHWM (the most so far)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return 1024 * int(fields[field].split()[0])


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Make the model and a cache; sizes in 10^9 bytes."""
    before, began = resident("VmRSS"), time.perf_counter()
    model = synthetic(
        arguments.model, arguments.method, whole(arguments.q), arguments.g, layers=arguments.layers
    )
    seconds = time.perf_counter() - began
    cache = torch.ones(fits.cache_bytes(model.config, 1, arguments.cache, 4), dtype=torch.uint8)
    peak, packed = resident("VmHWM"), [m for m in model.modules() if isinstance(m, QuantLinear)]
    weights = sum(one.nbytes for layer in packed for one in layer.prepare().buffers)
    others = sum(parameter.nbytes for parameter in model.parameters())
    held = weights + others + cache.nbytes
    return {
        "seconds": seconds,
        "weights_gb": weights / 1e9,
        "others_gb": others / 1e9,
        "cache_gb": cache.nbytes / 1e9,
        "before_gb": before / 1e9,
        "peak_gb": peak / 1e9,
        "growth_over_held": (peak - before) / held,
        "process_over_held": peak / held,
    }


def main() -> None:
    """Measure once and print; --out also writes a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="llama-7b", help="a name of conf/shapes, or a folder")
    parser.add_argument("--method", default="bcq")
    parser.add_argument("--q", type=float, default=3)
    parser.add_argument("--g", type=int, default=128)
    parser.add_argument("--layers", type=int, help="only the first so many")
    parser.add_argument("--cache", type=int, default=0, help="tokens, in float32")
    parser.add_argument("--out", type=Path, help="a JSON file")
    arguments = parser.parse_args()
    found = measure(arguments)
    print("  ".join(f"{name} {value:.3f}" for name, value in found.items()))
    if arguments.out:
        asked = {key: value for key, value in vars(arguments).items() if key != "out"}
        origin.write(arguments.out, asked | found)


if __name__ == "__main__":
    main()
