"""Microseconds of y = x W^T with low-bit W on the CPU, cold and resident in cache, beside public kernels.

    python benchmarks/bench_cpu_gemv.py [--shapes 4096x4096 11008x4096 --threads 1 2 --rounds 5 --out bench.json]
        --peer-python <python of an environment that has onnx and onnxruntime, llama-cpp-python and gguf>
        [--peers onnxruntime]  only those
        [--search]             find QIGen's micro kernel on this machine first, if nobody has
        [--batch 2 4 8 16]     also these numbers of rows of x, and dequantize + torch.mm
        [--own planes mixed]   of ours only those; torch always runs; coefficients: of 16 and of 4 bits, three groups
        [--isa avx2]           instead of the best this CPU runs

Every contestant's output is checked before it is timed: against float64 for ours and torch's, against a product of the
dequantized weights for a peer. Cold: as many copies of the weights are passed through as make --cold-mb (10 times the
L3 cache), each other contestant in between; resident: one copy again and again. Every contestant is timed once a
round; a time is the lower quartile inside a round, and what is printed are medians over rounds, ratios and fractions
being taken round by round. Bytes are those stored, scales included; the bandwidth beside is that of reading 8 MB pieces
of --cold-mb in the same round by the same number of threads. Who races: cpu_contestants.py, cpu_peers.py.

In the end: who reaches the goal of the read bandwidth, and what 2, 4, 8 rows of x cost over one. Only that, in minutes:

    python benchmarks/bench_cpu_gemv.py --own planes --threads 2
    python benchmarks/bench_cpu_gemv.py --own planes --threads 1 --batch 1 2 4 8 --shapes 4096x4096

Predicted and seen: kernels/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from pathlib import Path

import origin
from cpu_contestants import GROUP, coefficients, copies, mixed, ours, qigens
from cpu_peers import KINDS, Peer
from peers import able
from peers.torch import Torch

from lutlab.measure.timing import COLD, RESIDENT, Contestant, CpuTimer, cpu_reader, race
from lutlab.peers.contract import MultipliesOnCPU, Product

GOAL = 0.8  # of the read bandwidth, AVX2, two threads, q = 2, 3, 4
OWN = {"planes": ours, "mixed": mixed, "qigen": qigens, "coefficients": coefficients}
USUAL = ["planes", "mixed", "qigen"]
PEERS = [name for name, peer in able(MultipliesOnCPU).items() if peer is not Torch]


def measure(shape: tuple[int, int], m: int, threads: int, args: argparse.Namespace) -> dict:
    import torch

    torch.set_num_threads(threads)
    here = [c for name in args.own for c in OWN[name](shape, m, args)]
    cold = functools.partial(copies, args=args)
    here += Torch.cpu_products(shape, m, GROUP, threads, cold)
    names = args.peers if args.peer_python else []
    read = cpu_reader(args.cold_mb * 2**20, threads)
    with contextlib.ExitStack() as stack:
        peers = [
            stack.enter_context(contextlib.closing(Peer(name, shape, m, threads, args)))
            for name in names
        ]
        for _ in range(args.rounds):
            race([read, *here], CpuTimer(args.calls), 1, KINDS)
            for peer in peers:
                peer.round()
    contestants = here + [c for peer in peers for c in peer.contestants]
    return report(shape, m, threads, read, contestants)


def report(shape, m: int, threads: int, read: Contestant, contestants: list[Product]) -> dict:
    """Medians over rounds; ratios round by round."""
    base = next(c for c in contestants if c.name == "torch fp32")
    rows = []
    for c in contestants:
        rows.append(
            {
                "kernel": c.name,
                "activations": c.activations,
                "bits_per_weight": c.bytes * 8 / (shape[0] * shape[1]),
                "cold_us": c.seconds() * 1e6,
                "cold_gb_s": c.bandwidth() * 1e-9,
                "fraction_of_read": c.fraction(read),
                "times_torch_fp32": c.times(base),
                "resident_us": c.seconds(RESIDENT) * 1e6,
                "resident_gb_s": c.bandwidth(RESIDENT) * 1e-9,
                "relative_error": c.error,
                "cold_rounds_us": [s * 1e6 for s in c.rounds[COLD]],
            }
        )
    gb_s = read.bandwidth() * 1e-9
    return {"shape": list(shape), "m": m, "threads": threads, "read_gb_s": gb_s, "rows": rows}


def table(result: dict) -> str:
    lines = [
        f"{result['shape'][0]}x{result['shape'][1]}, {result['m']} row(s) of x, {result['threads']} thread(s), "
        f"read {result['read_gb_s']:.1f} GB/s",
        f"  {'':42} {'act.':>5} {'bpw':>6} {'cold us':>9} {'GB/s':>6} {'of read':>8} {'/ fp32':>7} "
        f"{'resident us':>12} {'GB/s':>6} {'error':>8}",
    ]
    lines += [
        f"  {r['kernel']:42} {r['activations']:>5} {r['bits_per_weight']:6.2f} {r['cold_us']:9.0f} "
        f"{r['cold_gb_s']:6.1f} {r['fraction_of_read']:8.2f} {r['times_torch_fp32']:7.1f} "
        f"{r['resident_us']:12.0f} {r['resident_gb_s']:6.1f} {r['relative_error']:8.1e}"
        for r in result["rows"]
    ]
    return "\n".join(lines)


def goals(results: list[dict]) -> str:
    """The share of the read bandwidth with the most threads by shape, and what more rows of x cost, of our kernels."""
    threads, fewest = (choose(r["threads"] for r in results) for choose in (max, min))
    one = {tuple(r["shape"]): r["rows"] for r in results if (r["m"], r["threads"]) == (1, threads)}
    alone = {
        (*r["shape"], row["kernel"]): row["resident_us"]
        for r in results
        for row in r["rows"]
        if (r["m"], r["threads"]) == (1, fewest)
    }
    lines = (
        [f"{GOAL} of the read bandwidth, {threads} thread(s), one row of x, cold:"] if one else []
    )
    names = [row["kernel"] for rows in one.values() for row in rows]
    for name in dict.fromkeys(name for name in names if name.startswith("lutlab ")):
        by_shape = {
            "x".join(map(str, shape)): row["fraction_of_read"]
            for shape, rows in one.items()
            for row in rows
            if row["kernel"] == name
        }
        said = "  ".join(f"{shape} {fraction:.2f}" for shape, fraction in by_shape.items())
        met = sum(fraction >= GOAL for fraction in by_shape.values())
        lines.append(f"  {name:42} {said}  met at {met} of {len(by_shape)}")
    many = [r for r in results if r["m"] > 1 and r["threads"] == fewest]
    for r in many:
        times = {
            row["kernel"]: row["resident_us"] / alone[(*r["shape"], row["kernel"])]
            for row in r["rows"]
            if row["kernel"].startswith("lutlab ") and (*r["shape"], row["kernel"]) in alone
        }
        said = ", ".join(
            f"{name.removeprefix('lutlab ')} {ratio:.2f}" for name, ratio in times.items()
        )
        lines.append(
            f"{r['m']} rows of x over one, resident, {r['shape'][0]}x{r['shape'][1]}: {said}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shapes = ["4096x4096", "11008x4096", "4096x11008", "12288x12288"]
    parser.add_argument("--shapes", nargs="+", default=shapes, help="NxK")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batch", nargs="+", type=int, default=[1], help="rows of x")
    parser.add_argument("--bits", nargs="+", type=int, default=[4, 3, 2])
    parser.add_argument("--own", nargs="+", choices=OWN, default=USUAL)
    parser.add_argument("--isa", help="instead of the best this CPU runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--calls", type=int, default=20, help="at least, of each contestant a round"
    )
    parser.add_argument("--cold-mb", type=int, default=320)
    parser.add_argument("--peer-python", help="python of the environment that has the peers")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--search", action="store_true", help="QIGen's micro kernel, by time")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = parser.parse_args()
    results = []
    for shape in args.shapes:
        for m in args.batch:
            for threads in args.threads:
                results.append(measure(tuple(map(int, shape.split("x"))), m, threads, args))
                print(table(results[-1]), flush=True)
                if args.out:
                    origin.write(args.out, {"results": results})
    print(goals(results))


if __name__ == "__main__":
    main()
