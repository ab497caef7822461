"""Seconds to quantize the seven linear layers of a LLaMA block with GPTQ, beside public implementations.

    python benchmarks/bench_gptq.py [--hidden 2048 --intermediate 5632 --tokens 16384 --q 3 --g 128 --out bench.json]
        --peer-python <python of an environment that has llmcompressor and/or gptqmodel>

Every implementation gets the same random weights and inputs (256 Gaussian factors of deviation 1/sqrt(i), and noise),
and is timed on two things: `accumulate`, X^T X of the four inputs of a block from 512 tokens at a time, and the way
from there to codes. A peer runs in a process of its own, of the same number of threads, after ours; the output error
of what it returns is computed here. On a shared machine read the processor time: other programs count less.

Predicted for the sizes above: one Cholesky factor of each of four inputs is 68 GFLOP and errors passed on are
N K^2 = 146 GFLOP, both near the speed of a matrix product; the GPTQ repository's three factorisations of each layer
are 300 GFLOP. The solver inside gptq_bcq should add no more than all of that. A sweep of hessian_bcq is 2 N K^2 = 292
GFLOP; with two of them it should take at most 4 times GPTQ's time (last column).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers import able

from lutlab.peers.contract import Block, RunsGPTQ, surroundings

PEERS = able(RunsGPTQ)
INPUTS = {"qkv": ("q", "k", "v"), "o": ("o",), "mlp": ("gate", "up"), "down": ("down",)}
BATCH = 512
FACTORS = 256


def shapes(args: argparse.Namespace) -> dict[str, tuple[int, int]]:
    """Layer -> (N, K)."""
    h, i = args.hidden, args.intermediate
    attention = dict.fromkeys(("q", "k", "v", "o"), (h, h))
    return attention | {"gate": (i, h), "up": (i, h), "down": (h, i)}


def material(args: argparse.Namespace) -> tuple[dict, dict]:
    """Weights by layer [N, K] and inputs by name [tokens, K], the same in every process."""
    generator = torch.Generator().manual_seed(args.seed)
    sizes = shapes(args)
    weights = {name: 0.02 * torch.randn(*size, generator=generator) for name, size in sizes.items()}
    inputs = {}
    for name, layers in INPUTS.items():
        k = sizes[layers[0]][1]
        size = torch.arange(1, FACTORS + 1).float().rsqrt()
        mix = size.unsqueeze(1) * torch.randn(FACTORS, k, generator=generator)
        inputs[name] = torch.randn(args.tokens, FACTORS, generator=generator) @ mix
        inputs[name] += 0.5 * torch.randn(args.tokens, k, generator=generator)
    return weights, inputs


class Clock:
    """Best wall and processor seconds of each thing timed."""

    def __init__(self) -> None:
        self.best: dict[str, dict[str, float]] = {}

    def time(self, name: str, work: Callable[[], Any]) -> Any:
        """Run `work` once and return what it returns."""
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        spent = {
            "wall_s": time.perf_counter() - wall,
            "processor_s": time.process_time() - cpu,
        }
        best = self.best.setdefault(name, spent)
        self.best[name] = {key: min(best[key], spent[key]) for key in spent}
        return result


def ours(args: argparse.Namespace, weights: dict, inputs: dict) -> tuple[dict, dict]:
    """Times, and dequantized weights by method and layer."""
    from lutlab import formats
    from lutlab.base.tensors import CalibStats
    from lutlab.quantizers.gptq import GPTQ
    from lutlab.quantizers.gptq_bcq import GPTQBCQ
    from lutlab.quantizers.hessian_bcq import HessianBCQ

    clock, out = Clock(), {}

    def accumulate() -> dict[str, CalibStats]:
        found = {}
        for name, x in inputs.items():
            hessian = torch.zeros(x.shape[1], x.shape[1])
            for batch in x.split(BATCH):
                hessian.addmm_(batch.t(), batch)
            found[name] = CalibStats(hessian.div_(len(x)), x.abs().mean(dim=0), len(x))
        return found

    def block(method) -> dict:
        tensors = {}
        for name, layers in INPUTS.items():
            prepared = method.prepare(stats[name])
            for layer in layers:
                tensors[layer] = method.quantize(weights[layer], args.q, args.g, prepared)
        return tensors

    methods = {
        "gptq": GPTQ(),
        "gptq static_groups": GPTQ(static_groups=True),
        "gptq_bcq": GPTQBCQ(),
        "gptq_bcq offset=false": GPTQBCQ(offset=False),
        "gptq sweeps=2": GPTQ(sweeps=2),
        "hessian_bcq": HessianBCQ(),
    }
    for _ in range(args.repeats):
        stats = clock.time("accumulate", accumulate)
        for name, method in methods.items():
            tensors = clock.time(name, lambda method=method: block(method))
            out[name] = {layer: formats.dequantize(tensor) for layer, tensor in tensors.items()}
    return clock.best, out


def as_peer(name: str, args: argparse.Namespace) -> tuple[dict, dict]:
    """Times, and dequantized weights by layer: in the environment that has it."""
    weights, inputs = material(args)
    block, clock, out = Block(weights, inputs, INPUTS, args.q, args.g, BATCH), Clock(), {}
    for _ in range(args.repeats):
        out[name] = PEERS[name].gptq(block, clock.time)
    return clock.best, out


def ask_peer(name: str, args: argparse.Namespace) -> tuple[dict, dict]:
    """Run a peer in its own environment, which need not have lutlab."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.pt"
        command = [args.peer_python, __file__, "--as-peer", name, "--answer", str(answer)]
        for option in ("hidden", "intermediate", "tokens", "q", "g", "repeats", "seed", "threads"):
            command += [f"--{option}", str(getattr(args, option))]
        environment = surroundings(args.threads)
        subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
        return tuple(torch.load(answer))


def weighted_errors(weights: dict, inputs: dict, dense: dict) -> float:
    """tr(D H D^T) over all layers, relative to tr(W H W^T)."""
    error = norm = 0.0
    for name, layers in INPUTS.items():
        for layer in layers:
            difference = dense[layer] - weights[layer]
            error += (inputs[name] @ difference.t()).square().sum(dtype=torch.float64).item()
            norm += (inputs[name] @ weights[layer].t()).square().sum(dtype=torch.float64).item()
    return error / norm


def measure(args: argparse.Namespace) -> dict:
    weights, inputs = material(args)
    found = {"lutlab": ours(args, weights, inputs)}
    if args.peer_python:
        found |= {name: ask_peer(name, args) for name in args.peers}
    rows = []
    for who, (times, dense) in found.items():
        for name, spent in times.items():
            row = {"implementation": who, "what": name, **spent}
            if name in dense:
                row["relative_output_error"] = weighted_errors(weights, inputs, dense[name])
            rows.append(row)
    settings = {key: getattr(args, key) for key in ("hidden", "intermediate", "tokens", "q", "g")}
    return settings | {
        "threads": args.threads,
        "load_average": os.getloadavg()[0],
        "torch": torch.__version__,
        "rows": rows,
    }


def table(result: dict) -> str:
    base = next(r for r in result["rows"] if r["what"] == "gptq")
    lines = [
        f"LLaMA block, hidden {result['hidden']}, intermediate {result['intermediate']}, {result['tokens']} tokens, "
        f"q={result['q']} g={result['g']}, {result['threads']} threads, load average {result['load_average']:.1f}",
        f"  {'':15} {'':24} {'wall s':>8} {'processor s':>12} {'ours / it':>10} {'output error':>13} "
        f"{'x gptq, wall':>13}",
    ]
    for row in result["rows"]:
        ratio = error = slower = ""
        if "relative_output_error" in row:
            ratio = f"{base['processor_s'] / row['processor_s']:.2f}"
            error = f"{row['relative_output_error']:.5f}"
            slower = f"{row['wall_s'] / base['wall_s']:.2f}"
        lines.append(
            f"  {row['implementation']:15} {row['what']:24} {row['wall_s']:8.2f} {row['processor_s']:12.2f} "
            f"{ratio:>10} {error:>13} {slower:>13}"
        )
    return "\n".join([*lines, "  ours / it: processor seconds of our gptq over those of the row"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--intermediate", type=int, default=5632)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--q", type=int, default=3)
    parser.add_argument("--g", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--peer-python", help="python of the environment that has the peers")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    parser.add_argument("--as-peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with torch.no_grad():
        if args.as_peer:
            torch.save(as_peer(args.as_peer, args), args.answer)
            return
        result = measure(args)
    print(table(result))
    if args.out:
        import origin  # imports lutlab, which the peers' environment need not have

        origin.write(args.out, result)


if __name__ == "__main__":
    main()
