"""A step of the CPU engine beside what it is made of: its own kernels, transformers' eager model, reading the cache.

    python benchmarks/bench_step.py [--threads 1 --rounds 40 --layers 2 --q 3 --out step.json]

    embedded    microseconds a token of the models that ship, dense, rtn q=4, bcq q=3, over transformers' eager float32
    layers      LLaMA-7B's, random codes, g=128, without embeddings and head: a step at context 50 over the same
                launches alone, one after the other in the same buffers; and, head included, over what its launches
                take by the clock inside of C
    attention   its seconds in a step at context 2000, by the clock inside of C, over reading keys and values

Contestants take turns, and the least time of all rounds counts: what else the machine does only adds.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import origin
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import lutlab
from lutlab.base.tensors import BCQTensor
from lutlab.formats import bcq
from lutlab.generate.cpu import CpuStep
from lutlab.generate.eager import Eager
from lutlab.measure.timing import cpu_reader
from lutlab.models.families import linear_layers
from lutlab.models.load import EMBEDDED
from lutlab.modules import QuantLinear

SHAPES = Path(__file__).parents[1] / "conf" / "shapes" / "llama-7b"
EMBEDDED_MODELS = ("llama-embedded-m", "opt-embedded-m")
METHODS = {"dense": None, "rtn q=4": ("rtn", 4), "bcq q=3": ("bcq", 3)}
SHORT, LONG, GROUP = 50, 2000, 128
READ = 320 * 2**20  # bytes, ten times the largest cache seen


def least(rounds: int, **contestants: Callable[[], object]) -> dict[str, float]:
    """Seconds of each: the least of all rounds, in which they take turns."""
    found = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            found[name] = min(found[name], time.perf_counter() - start)
    return found


def embedded(name: str, rounds: int) -> dict[str, float]:
    """Seconds a token behind a prompt of 32: transformers' own loop, and the engine by method."""
    engines: dict[str, Eager | CpuStep] = {}
    for label, method in METHODS.items():
        model = AutoModelForCausalLM.from_pretrained(EMBEDDED / name, dtype=torch.float32).eval()
        if method is None:
            engines["eager"] = Eager(model, 1, 128, "")
        else:
            lutlab.quantize(model, method[0], q=method[1], g=GROUP)
        engines[label] = CpuStep(model, 1, 128)
    one, prompt = torch.tensor([7]), torch.arange(5, 37)

    def token(engine: Eager | CpuStep) -> Callable[[], None]:
        engine.prefill([prompt])

        def run() -> None:
            engine.step(one)
            engine.rewind(len(prompt))

        return run

    return least(5 * rounds, **{label: token(engine) for label, engine in engines.items()})


def layers_of_7b(layers: int, q: int) -> LlamaForCausalLM:
    """LLaMA-7B's layers with random codes; a vocabulary of few tokens, since they are not timed."""
    config = LlamaConfig.from_pretrained(SHAPES, num_hidden_layers=layers, vocab_size=64)
    model = LlamaForCausalLM(config).eval()
    for path, layer in list(linear_layers(model)):
        n, k = layer.weight.shape
        groups = k // GROUP
        codes = torch.randint(0, 2**q, (n, k), dtype=torch.uint8)
        alpha = (torch.rand(q, n, groups) * 0.01).half()
        packed = bcq.pack(BCQTensor(codes, alpha, torch.zeros(n, groups).half(), q, GROUP))
        model.set_submodule(path, QuantLinear(packed, None))
    return model


def shapes(model: LlamaForCausalLM, rounds: int, threads: int) -> dict[str, float]:
    """Seconds of a step without its head, of its launches alone, of attention, and of reading keys and values."""
    own = CpuStep(model, 1, LONG + 8, "float16")
    own._held.keys.normal_()
    own._held.values.normal_()
    token, row, position = (torch.tensor([number]) for number in (7, 0, SHORT))

    def step() -> None:  # without logits
        given = (one.data_ptr() for one in (token, row, position))
        own._forward(1, *given, None, 0, None)

    found = least(
        rounds,
        step=step,
        alone=lambda: own._library.products(ctypes.byref(own._c), 1),
    )
    reader = cpu_reader(READ, threads)
    pieces = -(-own.bytes_read(LONG)["cache"] // reader.bytes)
    parts = min((own.breakdown(SHORT) for _ in range(rounds)), key=lambda one: sum(one.values()))
    found["clock"], found["clock_matmul"] = sum(parts.values()), parts["matmul"]
    attention = []
    read = least(rounds, long=lambda: attention.append(own.breakdown(LONG)["attention"]),
                 read=lambda: [reader.run(i % reader.copies) for i in range(pieces)])  # fmt: skip
    found["attention"] = min(attention)
    found["read"] = read["read"] * own.bytes_read(LONG)["cache"] / (pieces * reader.bytes)
    return found


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--layers", type=int, default=2, help="of LLaMA-7B")
    parser.add_argument("--q", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    found: dict[str, Any] = {"threads": args.threads}
    for name in EMBEDDED_MODELS:
        seconds = found[name] = embedded(name, args.rounds)
        for label in METHODS:
            times = seconds["eager"] / seconds[label]
            print(
                f"{name} {label}: {seconds[label] * 1e6:.0f} us a token, {times:.1f} x eager float32"
            )
    seconds = found["llama-7b"] = shapes(
        layers_of_7b(args.layers, args.q), args.rounds, args.threads
    )
    print(
        f"{args.layers} layers of llama-7b, bcq q={args.q} g={GROUP}, context {SHORT}: {seconds['step'] * 1e3:.2f} ms, "
        f"{seconds['step'] / seconds['alone']:.3f} x its own kernels alone, "
        f"{seconds['clock'] / seconds['clock_matmul']:.3f} x its own kernels by the clock inside of C"
    )
    print(
        f"attention at context {LONG}, float16 cache: {seconds['attention'] * 1e3:.2f} ms, "
        f"{seconds['attention'] / seconds['read']:.2f} x reading the cache"
    )
    if args.out:
        origin.write(args.out, found)


if __name__ == "__main__":
    main()
