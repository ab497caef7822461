"""Microseconds of y = x W^T with low-bit W on a GPU: every variant beside cuBLAS, torch's int4 and installed peers.

    python benchmarks/bench_lut_gemv.py [--part goals batch groups] [--out folder] [--rounds 200]

    goals       batch 1, g = 128, the two shapes of the goals: fraction of the copy bandwidth of the same run (must,
                stretch), times cuBLAS, the papers' kernel and peers
    batch       1 to 32 rows of x at q = 3 over batch 1, and the time of dequantizing and cuBLAS
    groups      every q at g = 128, and other groups at q = 3: no cliff

Who races: gpu_contestants.py. They take turns, a time is the median over rounds, each round a replay of a CUDA graph of
20 or more calls (lutlab/measure/timing.py). Beside the copy runs a read-only stream of as many bytes as the binary
codes have. Without a GPU it says so and ends. Predicted and seen: kernels/README.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_ceilings import reader
from gpu_contestants import (
    LARGE,
    SMALL,
    Entrant,
    activations,
    checked,
    cold_copies,
    cublas,
    draw,
    l2_bytes,
    ours,
    peers,
    run_parts,
    through_dense,
)

from lutlab.kernels.gpu import variants
from lutlab.measure.timing import Contestant, GpuTimer, gpu_copier, race

# Fraction of the copy bandwidth on an H200, batch 1, g = 128: must, stretch.
FRACTIONS = {
    (LARGE, 2): (0.83, 0.91),
    (LARGE, 3): (0.88, 0.94),
    (LARGE, 4): (0.90, 0.96),
    (LARGE, 8): (0.93, 0.98),
    (SMALL, 2): (0.60, 0.69),
    (SMALL, 3): (0.70, 0.78),
    (SMALL, 4): (0.75, 0.83),
}
# Where a read-only stream does not reach STREAM of the copy bandwidth, must becomes OF_STREAM of that stream.
STREAM, OF_STREAM = 0.90, 0.97
# How many times as fast as whom at LARGE, by q.
TIMES = {
    "cuBLAS": {2: 5.9, 3: 4.2, 4: 3.25},
    "paper bcq": {2: 2.0, 3: 2.0, 4: 2.0, 8: 2.0},
    "Marlin int4": {3: 1.3},
    "gemlite": {2: 1.2, 4: 1.2, 8: 1.2},
    "torch int4": {4: 1.5},
}
BATCH_LIMITS = {2: 1.05, 4: 1.2, 8: 1.5}
BATCHES = (1, 2, 4, 8, 16, 32)
GROUPS_MUST = 0.80  # of its own floor, at LARGE, q = 3, g = 32
KINDS = ("bcq", "uniform")

# ---- races ----


def contest(
    shape: tuple[int, int],
    q: int,
    g: int,
    m: int,
    rounds: int,
    dense: bool = True,
    others: bool = True,
) -> dict[str, Any]:
    """All variants on one shape, timed together; beside them cuBLAS where dense, and peers where others."""
    x = activations(m, shape[1])
    found: list[Entrant] = []
    for kind in KINDS:
        packed = draw(shape, q, g, kind == "uniform")
        weight = packed.dequantize()
        names = ("uniform_mma", "optq") if kind == "uniform" else variants.variants()
        for name in names:
            if one := ours(packed, x, name, kind):
                found.append(checked(one, x, weight))
        if m > 1:
            found.append(checked(through_dense(packed, x, kind), x, weight))
        del packed, weight
    size = min(one.bytes for one in found if one.kind == "bcq")
    absent = {}
    if dense:
        found += cublas(shape, x)
    if others:
        more, absent = peers(shape, q, g, x)
        found += more
    copy = gpu_copier(max(2**29, 8 * l2_bytes()))
    stream = reader(size, cold_copies(size))
    race([copy, stream, *found], GpuTimer(), rounds)
    return {
        "shape": list(shape),
        "q": q,
        "g": g,
        "m": m,
        "copy_gb_s": copy.bandwidth() * 1e-9,
        "read_gb_s": stream.bandwidth() * 1e-9,
        "read_megabytes": stream.bytes * 1e-6,
        "read_fraction_of_copy": stream.fraction(copy),
        "not_run": absent,
        "rows": [row(one, copy, stream, found) for one in found],
    }


def row(one: Entrant, copy: Contestant, stream: Contestant, all_: list[Entrant]) -> dict[str, Any]:
    """One contestant's row of the table; times: its speed over that of others, cuBLAS in its faster layout."""
    beside = [o for o in all_ if o.kind in ("dense", "peer") or o.name == "paper bcq"]
    times = {other.name: one.times(other) for other in beside}
    if dense := [times[other.name] for other in beside if other.kind == "dense"]:
        times["cuBLAS"] = min(dense)
    return {
        "kernel": one.name,
        "kind": one.kind,
        "us": one.seconds() * 1e6,
        "spread_us": [seconds * 1e6 for seconds in one.spread()],
        "megabytes": one.bytes * 1e-6,
        "fraction_of_copy": one.fraction(copy),
        "fraction_of_read": one.fraction(stream),
        "times": times,
        "relative_error": one.error,
    }


# ---- parts: results one by one, so that what is measured is kept ----


def goals(rounds: int) -> Iterator[dict[str, Any]]:
    for shape, q in FRACTIONS:
        yield told(contest(shape, q, 128, 1, rounds))


def batch(rounds: int) -> Iterator[dict[str, Any]]:
    alone: dict[str, float] = {}
    for m in BATCHES:
        result = told(contest(LARGE, 3, 128, m, rounds // 4, others=m == 1))
        for kind in KINDS:
            own = best(result, kind)
            if own is None:
                continue
            ratio = own["us"] / alone.setdefault(kind, own["us"])
            goal = BATCH_LIMITS.get(m)
            say = f"; at most {goal}: {met(-ratio, -goal)}" if goal else ""
            print(
                f"  {kind}: {m} row(s) of x take {ratio:.2f} of the time of one{say}; "
                f"{own['times']['cuBLAS']:.2f} times as fast as cuBLAS",
                flush=True,
            )
        yield result


def groups(rounds: int) -> Iterator[dict[str, Any]]:
    cases = [(SMALL, q, 128) for q in range(1, 9)]
    cases += [(SMALL, 3, g) for g in (32, 64, 256, -1)] + [(LARGE, 3, 32)]
    for shape, q, g in cases:
        yield told(contest(shape, q, g, 1, rounds // 4, dense=False, others=False))


PARTS = {"goals": goals, "batch": batch, "groups": groups}

# ---- tables ----


def best(result: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """The fastest variant of a kind, if any takes it; OPTQ's baseline is none of ours."""
    rows = [r for r in result["rows"] if r["kind"] == kind and not r["kernel"].startswith("optq")]
    return min(rows, key=lambda r: r["us"], default=None)


def told(result: dict[str, Any]) -> dict[str, Any]:
    """Print a result; and return it."""
    (rows, columns), megabytes = result["shape"], result["read_megabytes"]
    print(
        f"\n{rows}x{columns}, q={result['q']}, g={result['g']}, {result['m']} row(s) of x; "
        f"copy {result['copy_gb_s']:.0f} GB/s; reading {megabytes:.1f} MB {result['read_gb_s']:.0f} GB/s, "
        f"{result['read_fraction_of_copy']:.3f} of copy"
    )
    print(
        f"  {'':19} {'us':>9} {'spread':>17} {'MB':>8} {'of copy':>8} {'of read':>8} {'/cuBLAS':>8} {'/paper':>6} error"
    )
    for r in sorted(result["rows"], key=lambda r: r["us"]):
        ratios = (
            f"{r['times'][name]:.2f}" if name in r["times"] else "-"
            for name in ("cuBLAS", "paper bcq")
        )
        low, high = r["spread_us"]
        print(
            "  {:19} {:9.2f} {:8.2f}-{:8.2f} {:8.1f} {:8.3f} {:8.3f} {:>8} {:>6} {:.1e}".format(
                r["kernel"], r["us"], low, high, r["megabytes"], r["fraction_of_copy"], r["fraction_of_read"],
                *ratios, r["relative_error"],
            )
        )  # fmt: skip
    for name, why in result["not_run"].items():
        print(f"  {name}: not run ({why})")
    for line in verdicts(result):
        print(f"  goal: {line}")
    return result


def met(value: float, must: float, stretch: float | None = None) -> str:
    """In words."""
    if stretch is not None and value >= stretch:
        return "stretch met"
    return "met" if value >= must else "MISSED"


def verdicts(result: dict[str, Any]) -> Iterator[str]:
    """The goals of a result with one row of x, in words: of its bandwidth, and beside others."""
    shape, q, own = tuple(result["shape"]), result["q"], best(result, "bcq")
    fraction = own["fraction_of_copy"]
    if (shape, q, result["g"], result["m"]) == (LARGE, 3, 32, 1):
        verdict = met(fraction, GROUPS_MUST)
        yield f"{own['kernel']} reaches {fraction:.3f} of its own floor; must {GROUPS_MUST}: {verdict}"
    if (shape, q) not in FRACTIONS or (result["g"], result["m"]) != (128, 1):
        return
    must, stretch = FRACTIONS[shape, q]
    verdict = met(fraction, must, stretch)
    yield f"{own['kernel']} reaches {fraction:.3f} of copy; must {must}, stretch {stretch}: {verdict}"
    stream = result["read_fraction_of_copy"]
    if stream < STREAM and OF_STREAM * stream < must:
        least = OF_STREAM * stream
        verdict = met(fraction, least)
        yield f"a read-only stream reaches {stream:.3f} itself; must {OF_STREAM} of it, {least:.3f}: {verdict}"
    if shape == LARGE:
        yield from beside(result)


def beside(result: dict[str, Any]) -> Iterator[str]:
    """Speed of the best of each kind over that of others, in words."""
    for other, by_bits in TIMES.items():
        must = by_bits.get(result["q"])
        if must is None:
            continue
        own = [one for kind in KINDS if (one := best(result, kind))]
        found = [
            f"{one['kernel']} is {times:.2f} times as fast as {name}; must {must}: {met(times, must)}"
            for one in own
            for name, times in one["times"].items()
            if name == other or name.startswith(f"{other} W")
        ]
        yield from found or [f"{must} times as fast as {other}: not judged, it did not run"]


def main() -> None:
    run_parts(__doc__, PARTS, "lut_gemv")


if __name__ == "__main__":
    main()
