"""Decoding, products and quantizing beside processes that keep every core busy, over the same alone.

    python benchmarks/bench_busy.py [--threads 2 --seconds 2 --rounds 3] [--out busy.json]

A thread that waits for another one, which has lost its core, can spin or sleep. Each workload runs with the waiting
that lutlab asks OpenMP for (src/lutlab/__init__.py), with OpenMP's own, which a process has that imports torch before
lutlab, and on one thread: alone, then beside as many Python loops as there are cores. They take turns, each in a
process of its own; a number is the median of the rounds. Its goal: at least a third of the speed alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import lutlab

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BUSY = [sys.executable, "-c", "while True: pass"]
OWN = "300000"  # what GNU's OpenMP takes where nobody says anything
# Name -> the unit of its rate.
WORKLOADS = {
    "decode opt-embedded-s, rtn q=4 g=64": "tokens/s",
    "decode 30 layers of 576 (SmolLM2-135M's shapes, drawn weights), rtn q=4 g=64": "tokens/s",
    "product 4096x4096, rtn q=4 g=128": "products/s",
    "gptq q=3 g=128 of opt-embedded-s, 2048 tokens": "models/s",
}


SMALL, DEEP, PRODUCT, GPTQ = WORKLOADS


def ready(name: str) -> Callable[[], int]:
    """A workload's function: it does some of the work, and returns how much."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from lutlab.kernels.dispatch import prepare
    from lutlab.models.load import EMBEDDED

    def embedded() -> PreTrainedModel:
        folder = EMBEDDED / "opt-embedded-s"
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def decoding(model: PreTrainedModel, tokens: int) -> Callable[[], int]:
        own = lutlab.engine(model, 1, tokens + 8)

        def run() -> int:
            own.prefill([torch.arange(5, 9)])
            return own.greedy(torch.tensor([7]), tokens).numel()

        return run

    if name == SMALL:
        return decoding(lutlab.quantize(embedded(), "rtn", q=4, g=64), 64)
    if name == DEEP:
        config = LlamaConfig(
            hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True,
        )  # fmt: skip
        return decoding(lutlab.synthetic(config, "rtn", q=4, g=64), 8)
    if name == PRODUCT:
        multiply = prepare(
            lutlab.quantize_tensor(torch.randn(4096, 4096), "rtn", q=4, g=128), "cpu"
        )
        x = torch.randn(1, 4096)
        return lambda: sum(len(multiply(x)) for _ in range(20))
    windows = torch.randint(0, 500, (16, 128), generator=torch.Generator().manual_seed(0))

    def quantizing() -> int:
        lutlab.quantize(embedded(), "gptq", q=3, g=128, calibration=windows)
        return 1

    return quantizing


def child(name: str, threads: int, seconds: float) -> None:
    """Print the rate of one workload of this process."""
    import torch

    torch.set_num_threads(threads)
    run = ready(name)
    run()
    done, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        done += run()
    print(json.dumps(done / spent))


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute without end."""
    running = [subprocess.Popen(BUSY) for _ in range(processes)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def rate(name: str, threads: int, seconds: float, variables: dict[str, str]) -> float:
    """What a child measures, with variables of the environment."""
    command = [
        sys.executable,
        __file__,
        "--child",
        name,
        "--threads",
        str(threads),
        "--seconds",
        str(seconds),
    ]
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=2.0, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    if args.child:
        child(args.child, args.threads, args.seconds)
        return
    ways = {
        "lutlab": (args.threads, {}),
        "OpenMP's own": (args.threads, {"GOMP_SPINCOUNT": OWN}),
        "one thread": (1, {}),
    }
    cores, found = os.cpu_count(), {}
    for name in WORKLOADS:
        rates = {way: {"quiet": [], "busy": []} for way in ways}
        for _ in range(args.rounds):
            for way, (threads, variables) in ways.items():
                for when, processes in (("quiet", 0), ("busy", cores)):
                    with busy(processes):
                        rates[way][when].append(rate(name, threads, args.seconds, variables))
        print(f"{name}, {WORKLOADS[name]}")
        for way, of in rates.items():
            quiet, beside = (statistics.median(of[when]) for when in ("quiet", "busy"))
            print(
                f"    {way:12} alone {quiet:8.2f}, beside {cores} busy processes {beside:8.2f}: {beside / quiet:.2f}",
                flush=True,
            )
        found[name] = rates
    if args.out:
        import origin

        origin.write(args.out, {"threads": args.threads, "busy_processes": cores, "rates": found})


if __name__ == "__main__":
    main()
