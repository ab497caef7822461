"""Milliseconds of y = x W^T for many rows of x, W packed, by kernel, panels of floats, dense float32; of whole prompts.

    python benchmarks/bench_prefill.py [--shapes 11008x4096 --threads 1 2 --rows 1 4 16 64 256 512 --rounds 5]
        [--formats uniform4 bcq3] [--panels 256] [--out bench.json --figure crossover.svg]
        [--model llama-7b --layers 2]  prompts of --rows tokens instead, of a model with drawn weights

    kernel           packed weights, one reading for up to 64 rows of x
    panels           W dequantized by --panels rows into one buffer that stays in the cache, and torch.mm of each
    panels, free     the same without dequantizing: no faster dequantizer can make panels cheaper than this
    whole            W dequantized in one piece, and torch.mm: from DENSE_ROWS rows of x on, a layer does this
    dense            torch.mm of W in float32

A prompt is read by the engine's kernels, by dequantized panels (generate/panels.py), and by transformers with the
model in float32, to the logits of its last token.

Contestants take turns, and a time is the least of --rounds, as a busy machine only adds. A crossover is the first of
--rows from which on the other way is faster than the kernel. DENSE_ROWS of rows_gemv.py is to be no less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import origin
import torch

import lutlab
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.uniform import PackedUniform
from lutlab.generate.panels import PANEL_ROWS, by_panels
from lutlab.generate.prefill import prefill
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.contract import Execution
from lutlab.kernels.dispatch import prepare
from lutlab.measure.products import relative_error

GROUP = 128
WAYS = ("kernel", "panels", "panels, free", "whole", "dense")


def drawn(name: str, shape: tuple[int, int]) -> Execution:
    """`uniform4` or `bcq3`: drawn codes of 4 or 3 bits, a scale for 128 weights, ready for this CPU."""
    kind, q = name.rstrip("0123456789"), int(name[-1])
    draw = torch.Generator().manual_seed(0)
    groups = (shape[0], shape[1] // GROUP)
    codes = torch.randint(0, 2**q, shape, generator=draw, dtype=torch.uint8)
    scale = (torch.rand(groups, generator=draw) + 0.5).half()
    if kind == "uniform":
        zero = torch.randint(0, 2**q, groups, generator=draw).short()
        return prepare(PackedUniform.pack(UniformTensor(codes, scale, zero, q, GROUP)), "cpu")
    alpha = torch.rand(q, *groups, generator=draw).half()
    return prepare(PackedBCQ.pack(BCQTensor(codes, alpha, None, q, GROUP)), "cpu")


def contestants(linear: Execution, x: torch.Tensor, panel_rows: int) -> dict[str, Callable]:
    """The ways to multiply, each checked against float64."""
    n, k = linear.rows.shape
    weight, panel, out = linear.dense(), torch.empty(panel_rows, k), torch.empty(len(x), n)
    found = {
        "kernel": lambda: linear.kernel.gemv(x, linear.rows),
        "panels": lambda: by_panels(x, linear, panel),
        "whole": lambda: torch.mm(x, linear.dense().t()),
        "dense": lambda: torch.mm(x, weight.t(), out=out),
    }
    for name, run in found.items():
        error = relative_error(run(), x, weight)
        assert error < 2e-6, (name, error)
    transposed = torch.empty(n, len(x))

    def free() -> None:
        for first in range(0, n, panel_rows):
            rows = min(panel_rows, n - first)
            torch.mm(panel[:rows], x.t(), out=transposed[first : first + rows])

    return found | {"panels, free": free}


def readers(name: str, form: str, longest: int, layers: int | None) -> Callable[[int], dict]:
    """Tokens -> the ways to read a prompt of so many, their logits compared."""
    kind, q = form.rstrip("0123456789"), int(form[-1])
    method = {"uniform": "rtn", "bcq": "bcq"}[kind]
    model = lutlab.synthetic(name, method=method, q=q, g=GROUP, layers=layers)
    dense = lutlab.synthetic(name, method="none", layers=layers)
    engine = lutlab.engine(model, length=longest)
    plain = lutlab.engine(dense, length=longest, name="transformers")

    def ways(tokens: int) -> dict[str, Callable]:
        prompt = [torch.arange(tokens) % engine.vocabulary]
        found = {
            "kernel": lambda: prefill(engine, model, prompt, "kernel"),
            "panels": lambda: prefill(engine, model, prompt, "dequantize"),
        }
        one, other = (run() for run in found.values())
        assert (one - other).norm() < 1e-3 * one.norm()
        return found | {"dense": lambda: plain.prefill(prompt)}

    return ways


def least_ms(runs: dict[str, Callable], rounds: int) -> dict[str, float]:
    """The least time of each; they take turns."""
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            least[name] = min(least[name], 1e3 * (time.perf_counter() - began))
    return least


def crossover(rows: list[dict], way: str) -> int | None:
    """The first number of rows of x from which on a way is faster than the kernel; None: it never is."""
    first = None
    for row in reversed(rows):
        if row["ms"][way] >= row["ms"]["kernel"]:
            break
        first = row["rows"]
    return first


def measure(name: str, shape: tuple[int, int], threads: int, args: argparse.Namespace) -> dict:
    """A product by all ways."""
    torch.set_num_threads(threads)
    linear = drawn(name, shape)

    def ways(m: int) -> dict[str, Callable]:
        x = torch.randn(m, shape[1], generator=torch.Generator().manual_seed(m))
        return contestants(linear, x, args.panels)

    print(f"{name} {shape[0]}x{shape[1]}, {linear.describe(1, torch.float32)}")
    return compared(ways, WAYS, args) | about(name, f"{shape[0]}x{shape[1]}", threads)


def measure_prompts(form: str, threads: int, args: argparse.Namespace) -> dict:
    """Prompts by all ways."""
    torch.set_num_threads(threads)
    ways = readers(args.model, form, max(args.rows), args.layers)
    title = f"{args.model}, {args.layers or 'all'} layers"
    print(f"{form} {title}, {threads} thread(s)")
    return compared(ways, ("kernel", "panels", "dense"), args) | about(form, title, threads)


def about(form: str, title: str, threads: int) -> dict:
    return {"format": form, "of": title, "threads": threads, "isa": detect().name}


def compared(ways: Callable[[int], dict], names: tuple[str, ...], args: argparse.Namespace) -> dict:
    """The least times by rows, printed, and where another way overtakes the kernel."""
    print(f"{'rows':>6} " + " ".join(f"{way:>14}" for way in names) + "   kernel / dense")
    rows = []
    for m in args.rows:
        ms = least_ms(ways(m), args.rounds)
        rows.append({"rows": m, "ms": ms})
        ratio = ms["kernel"] / ms["dense"]
        print(
            f"{m:6} " + " ".join(f"{ms[way]:14.1f}" for way in names) + f"   {ratio:.2f}",
            flush=True,
        )
    crossed = {way: crossover(rows, way) for way in names[1:-1]}
    for way, first in crossed.items():
        print(f"  {way}: faster than the kernel " + (f"from {first} rows on" if first else "never"))
    return {"rows": rows, "crossover": crossed}


def draw(results: list[dict], path: Path) -> None:
    """Milliseconds a row against rows of x, a panel for each result."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(results), 4), layout="constrained")
    every = figure.subplots(1, len(results), squeeze=False)[0]
    for axes, result in zip(every, results, strict=True):
        rows, threads = result["rows"], result["threads"]
        for way in rows[0]["ms"]:
            counts, each = zip(
                *((row["rows"], row["ms"][way] / row["rows"]) for row in rows), strict=True
            )
            axes.plot(counts, each, "o-", label=way)
        axes.set(xscale="log", yscale="log", xlabel="rows of x", ylabel="ms a row")
        axes.set_title(f"{result['format']} {result['of']}, {result['isa']}, {threads} thread(s)")
        axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["11008x4096"], help="NxK")
    parser.add_argument("--model", help="prompts of a model instead of products, as llama-7b")
    parser.add_argument("--layers", type=int, help="of the model; all, where memory allows")
    parser.add_argument("--formats", nargs="+", default=["uniform4", "bcq3", "bcq2"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    rows = [1, 4, 16, 64, 256, 512, 1024, 2048]
    parser.add_argument("--rows", nargs="+", type=int, default=rows, help="of x")
    parser.add_argument("--panels", type=int, default=PANEL_ROWS, help="rows of W at a time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    parser.add_argument("--figure", type=Path, help="draw them, as .svg or .png")
    args = parser.parse_args()
    results = []
    for threads in args.threads:
        for form in args.formats:
            if args.model:
                results.append(measure_prompts(form, threads, args))
                continue
            for shape in args.shapes:
                results.append(measure(form, tuple(map(int, shape.split("x"))), threads, args))
    if args.figure:
        draw(results, args.figure)
    if args.out:
        origin.write(args.out, {"panel_rows": args.panels, "results": results})


if __name__ == "__main__":
    main()
