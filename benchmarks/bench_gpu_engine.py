"""Milliseconds a token of whole models on one GPU, synthetic weights: the engine's goals, and where a step's time goes.

    python benchmarks/bench_gpu_engine.py [--part opt-30b opt-175b-q3 opt-175b-q1 ...] [--out folder] [--rounds 10]

    opt-30b         float16 beside bcq q=3 g=128, in turns: must be 2.6 times as fast, and reach 0.60 of the bound
    opt-175b-q<n>   bcq row-wise; q=3 must reach 0.75 of the bound, and take 0.43 of the 51.6 ms that LUT-GEMM prints
                    (arXiv v3, Table 5, one A100)

Batch 1, greedy, as the papers: a prompt of one token, then 127 more, one CUDA graph a step (lutlab/generate/graph.py).
The bound of a step: its bytes (packed weights, head, slots of the cache that are read) over the speed of a read-only
stream of the same run. Logits are compared with those of transformers' own engine before anything is timed. The
breakdown is the profiler's; `idle` is what the kernels leave of the time without it. Without a GPU it says so and ends.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from gpu_ceilings import reader
from gpu_contestants import DEVICE, cold_copies, l2_bytes, run_parts

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.evaluators.breakdown import gpu_parts
from lutlab.generate import engine
from lutlab.generate.contract import Engine
from lutlab.measure.timing import Contestant, GpuTimer, gpu_copier, race

LENGTH = 128  # tokens in the cache at the end
STREAM = 1_200_000_000  # bytes of the read-only stream
OF_BOUND = {"opt-30b q3": (0.60, 0.70), "opt-175b q3": (0.75, 0.82)}  # must, stretch
PAPER_MS, OF_PAPER = 51.6, (0.43, 0.37)  # OPT-175B, q=3
TIMES_DENSE = (2.6, 3.2)
ERROR = 2e-2  # of float16 logits, relative
PROFILED = 16  # steps
SHOWN = 12  # kernels of a breakdown


def timer(one: Contestant, kind: str) -> float:
    """Seconds of a token: of a decoded text, by the GPU's own clock."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    one.run(0)
    after.record()
    after.synchronize()
    return before.elapsed_time(after) * 1e-3 / (LENGTH - 1)


def decode(own: Engine) -> None:
    """Greedy tokens after the first one, which is in the cache."""
    own.rewind(1)
    own.greedy(torch.zeros(1, dtype=torch.int64), LENGTH - 1)


@torch.inference_mode(False)  # what is kept outlives the block that benchmarks run in
def made(name: str, method: str, q: int, g: int) -> Engine:
    """The engine of a synthetic model, which has read one token; compared with transformers' own.

    Raises:
        LutlabError: the model does not fit, there is no graph of it, or its logits are others.
    """
    # With an offset, as the papers' kernels read uniform weights.
    options = {"offset": True} if method == "bcq" else {}
    model = lutlab.synthetic(name, method=method, q=q, g=g, device=DEVICE, **options)
    one = torch.zeros(1, dtype=torch.int64)
    found = []
    for kind in ("cuda_graph", "transformers"):
        own = engine(model, batch=1, length=LENGTH, name=kind)
        own.prefill([one])
        found.append((own, torch.cat([own.step(one + at) for at in range(3)])))
    (ours, logits), (_, expected) = found
    error = float((logits - expected).norm() / expected.norm())
    if not error <= ERROR:  # of nan too
        raise LutlabError(f"{name} {method}: logits are wrong by {error:.1e}; speed says nothing")
    return ours


def contestant(name: str, own: Engine) -> Contestant:
    return Contestant(name, sum(own.bytes_read(LENGTH).values()), 1, lambda _: decode(own))


def measured(found: dict[str, Engine], rounds: int) -> list[dict[str, Any]]:
    """Engines timed in turns, after what memory allows: a row each."""
    copy = gpu_copier(max(2**29, 8 * l2_bytes()))
    stream = reader(STREAM, cold_copies(STREAM))
    race([copy, stream], GpuTimer(), 20)
    memory = {
        "read_gb_s": stream.bandwidth() * 1e-9,
        "copy_gb_s": copy.bandwidth() * 1e-9,
        "read_fraction_of_copy": stream.fraction(copy),
    }
    del copy, stream
    entrants = {name: contestant(name, own) for name, own in found.items()}
    for own in found.values():
        decode(own)  # captures the graph
    race(list(entrants.values()), timer, rounds)
    return [row(one, found[name], memory) for name, one in entrants.items()]


def row(one: Contestant, own: Engine, memory: dict[str, float]) -> dict[str, Any]:
    """A model's row, with the breakdown of a step."""
    own.rewind(1)
    first = torch.zeros(1, dtype=torch.int64)
    kinds, kernels = gpu_parts(lambda: own.greedy(first, 1), PROFILED)
    bound = one.bytes / (memory["read_gb_s"] * 1e9)
    return {
        "model": one.name,
        "weights": "synthetic",
        "ms": one.seconds() * 1e3,
        "spread_ms": [seconds * 1e3 for seconds in one.spread()],
        "bytes": own.bytes_read(LENGTH),
        "bound_ms": bound * 1e3,
        "of_bound": bound / one.seconds(),
        **memory,
        "breakdown_ms": {kind: seconds * 1e3 for kind, seconds in kinds.items()}
        | {"idle": max(0.0, one.seconds() - sum(kinds.values())) * 1e3},
        "kernels_us": {name: 1e6 * s for name, s in list(kernels.items())[:SHOWN]},
        "peak_gigabytes": torch.cuda.max_memory_allocated() * 1e-9,
        "prompt": 1,
        "tokens": LENGTH - 1,
        "facts": own.facts(),
    }


# ---- parts ----


def opt_30b(rounds: int) -> Iterator[dict[str, Any]]:
    found = {
        "opt-30b float16": made("opt-30b", "none", 16, -1),
        "opt-30b q3": made("opt-30b", "bcq", 3, 128),
    }
    dense, ours = measured(found, rounds)
    yield told(dense)
    yield told(ours | {"times_dense": dense["ms"] / ours["ms"]})


def opt_175b(q: int, rounds: int) -> Iterator[dict[str, Any]]:
    (found,) = measured({f"opt-175b q{q}": made("opt-175b", "bcq", q, -1)}, rounds)
    yield told(found | ({"of_paper": found["ms"] / PAPER_MS} if q == 3 else {}))


PARTS = {"opt-30b": opt_30b} | {
    f"opt-175b-q{q}": functools.partial(opt_175b, q) for q in (3, 1, 2, 4)
}

# ---- tables ----


def told(found: dict[str, Any]) -> dict[str, Any]:
    """Print a row; and return it."""
    parts = ", ".join(f"{kind} {ms:.2f}" for kind, ms in found["breakdown_ms"].items())
    low, high = found["spread_ms"]
    print(
        f"\n{found['model']}: {found['ms']:.2f} ms a token ({low:.2f}-{high:.2f}), {found['of_bound']:.3f} of the "
        f"bound of {found['bound_ms']:.2f} ms (reading {found['read_gb_s']:.0f} GB/s)\n  ms: {parts}\n"
        f"  {found['facts']['engine']}; {'; '.join(found['facts']['kernel'])}"
    )
    for line in verdicts(found):
        print(f"  goal: {line}", flush=True)
    return found


def verdicts(found: dict[str, Any]) -> Iterator[str]:
    """The goals of a row, in words."""
    name = found["model"]
    if name in OF_BOUND:
        yield said("of the bound", found["of_bound"], *OF_BOUND[name])
    if "times_dense" in found:
        yield said("times as fast as float16", found["times_dense"], *TIMES_DENSE)
    if "of_paper" in found:
        must, stretch = OF_PAPER
        yield said("of the paper's time", -found["of_paper"], -must, -stretch)


def said(what: str, value: float, must: float, stretch: float) -> str:
    """Met or not; what has to be small is given with a minus."""
    verdict = "stretch met" if value >= stretch else "met" if value >= must else "MISSED"
    return f"{abs(value):.3f} {what}; must {abs(must)}, stretch {abs(stretch)}: {verdict}"


def main() -> None:
    run_parts(__doc__, PARTS, "gpu_engine", rounds=10)


if __name__ == "__main__":
    main()
