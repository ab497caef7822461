"""Seconds to solve alternating BCQ for one large layer, beside a plain NumPy loop over groups.

    python benchmarks/bench_alternating.py [--rows 4096 --columns 4096 --q 3 --g 128 --offset --out bench.json]

The floor, per million weights on one core (AMD EPYC with AVX-512, an otherwise idle core; printed again by each run):
what any solver on sorted groups pays before its first round is the sort (numpy, vector instructions, about 1.2 ms;
torch.sort takes 70), the float64 prefix sums (6-8 ms), and after its last round one pass of 2^(q-1) - 1 comparisons for
the codes (3 ms at q = 3). A Gaussian group of 128 takes 11 rounds at q = 3; one round is a binary search of
2^(q-1) - 1 thresholds a group (0.3 ms) and the arithmetic on a handful of numbers a group (about 1 ms).

The NumPy loop is what one writes from the paper: greedy start, lstsq, all distances to all codewords, until the codes
rest. It is timed on a sample of groups of the same layer and scaled to all of them; the table says so. Its error is
compared with the solver's before anything is timed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import resource
import time
from pathlib import Path

import numpy as np
import origin
import torch

from lutlab.quantizers import alternating
from lutlab.quantizers.alternating import sort_groups


def plain_group(w: np.ndarray, q: int, rounds: int) -> np.ndarray:
    """One group [g] float64 -> its reconstruction [g]; Xu et al. as written."""
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=q)))
    rest, alpha = w.copy(), np.zeros(q)
    for b in range(q):
        alpha[b] = np.abs(rest).mean()
        rest -= alpha[b] * np.where(rest >= 0, 1.0, -1.0)
    codes = np.abs(w[:, None] - signs @ alpha).argmin(axis=1)
    for _ in range(rounds):
        alpha = np.linalg.lstsq(signs[codes], w, rcond=None)[0]
        nearest = np.abs(w[:, None] - signs @ alpha).argmin(axis=1)
        if np.array_equal(nearest, codes):
            break
        codes = nearest
    return signs[codes] @ alpha


def seconds_of(work, repeats: int) -> list[float]:
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        samples.append(time.perf_counter() - start)
    return samples


def one_thread_seconds(work) -> float:
    """Processor time of the calling thread, best of 5: what others do on the machine counts little."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    samples = []
    for _ in range(5):
        start = time.thread_time()
        work()
        samples.append(time.thread_time() - start)
    torch.set_num_threads(threads)
    return min(samples)


def peak_mib() -> float:
    """Largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def check(weight: torch.Tensor, groups: np.ndarray, args: argparse.Namespace) -> dict[str, float]:
    """Squared errors of both on the sample, relative to its norm, coefficients not rounded."""
    codes, alpha, _ = alternating.solve(
        torch.from_numpy(groups), args.q, -1, rounds=args.rounds, offset=False, dtype=torch.float64
    )
    ours = sum((2.0 * ((codes >> b) & 1) - 1) * plane for b, plane in enumerate(alpha))
    plain = np.stack([plain_group(w, args.q, args.rounds) for w in groups.astype(np.float64)])
    norm = (groups.astype(np.float64) ** 2).sum()
    errors = {
        "solver": float(((ours.numpy() - groups) ** 2).sum() / norm),
        "plain": float(((plain - groups) ** 2).sum() / norm),
    }
    # With more codewords than weights planes depend on each other: least squares leaves a choice, so paths part.
    slack = 1.001 if 2**args.q <= groups.shape[1] else 1.25
    if errors["solver"] > slack * errors["plain"]:
        raise SystemExit(f"the solver ends above the plain loop, nothing timed: {errors}")
    return errors


def measure(args: argparse.Namespace) -> dict:
    weight = torch.randn(
        args.rows, args.columns, generator=torch.Generator().manual_seed(args.seed)
    )
    length = args.columns if args.g == -1 else args.g
    whole = weight[:, : args.columns // length * length].reshape(-1, length)
    picked = torch.randperm(len(whole), generator=torch.Generator().manual_seed(args.seed))
    groups = whole[picked[: args.sample]].numpy()
    errors = check(weight, groups, args)

    def solve():
        alternating.solve(
            weight, args.q, args.g, rounds=args.rounds, offset=args.offset, dtype=torch.float16
        )

    before = peak_mib()
    solve()  # warm-up, and the one run whose memory is read
    after = peak_mib()
    cpu = time.process_time()
    samples = seconds_of(solve, args.repeats)
    cpu = (time.process_time() - cpu) / args.repeats
    doubles = groups.astype(np.float64)
    plain = seconds_of(lambda: [plain_group(w, args.q, args.rounds) for w in doubles], 3)
    scaled = min(plain) / len(groups) * weight.numel() / length
    piece = whole[: max(1, 2**20 // length)].abs()
    sort = one_thread_seconds(lambda: sort_groups(piece)) / piece.numel() * weight.numel()
    return {
        "rows": args.rows,
        "columns": args.columns,
        "q": args.q,
        "g": args.g,
        "offset": args.offset,
        "seconds": min(samples),
        "seconds_samples": samples,
        "seconds_per_million_weights": min(samples) / weight.numel() * 1e6,
        "cpu_seconds": cpu,
        "sort_and_prefix_one_thread_seconds": sort,
        "plain_seconds_scaled": scaled,
        "plain_sample_groups": len(groups),
        "plain_sample_seconds": plain,
        "ratio": scaled / min(samples),
        "relative_squared_error_on_sample": errors,
        "weight_mib": weight.numel() * 4 / 2**20,
        "peak_rss_before_mib": before,
        "peak_rss_after_mib": after,
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        "cpu": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def table(r: dict) -> str:
    extra = r["peak_rss_after_mib"] - r["peak_rss_before_mib"]
    what = "extended BCQ (offset)" if r["offset"] else "BCQ"
    return "\n".join(
        [
            f"alternating {what}, {r['rows']}x{r['columns']} Gaussian, q={r['q']} g={r['g']}, "
            f"{r['threads']} threads, load average {r['load_average']:.1f}",
            f"  solver                      {r['seconds']:9.3f} s   best of {len(r['seconds_samples'])}",
            f"                              {r['seconds_per_million_weights'] * 1e3:9.2f} ms per million weights",
            f"  its processor time          {r['cpu_seconds']:9.3f} s   all threads, mean",
            f"  of it sort + prefix sums    {r['sort_and_prefix_one_thread_seconds']:9.3f} s   one thread, the floor",
            f"  plain NumPy, one thread     {r['plain_seconds_scaled']:9.1f} s   scaled from "
            f"{r['plain_sample_groups']} groups, without offset, best of {len(r['plain_sample_seconds'])}",
            f"  ratio                       {r['ratio']:9.0f} x",
            f"  relative squared error      {r['relative_squared_error_on_sample']['solver']:.5f}, plain "
            f"{r['relative_squared_error_on_sample']['plain']:.5f} (the sample, no offset)",
            f"  memory beyond the weights   {extra:9.0f} MiB peak resident, codes and coefficients included "
            f"(weights {r['weight_mib']:.0f} MiB)",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--q", type=int, default=3)
    parser.add_argument("--g", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--offset", action="store_true")
    parser.add_argument("--sample", type=int, default=512, help="groups the NumPy loop is timed on")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = parser.parse_args()
    result = measure(args)
    print(table(result))
    if args.out:
        origin.write(args.out, result)


if __name__ == "__main__":
    main()
