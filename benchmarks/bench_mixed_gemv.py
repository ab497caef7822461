"""Microseconds of y = x W^T with 2/4/16-bit W on a GPU: asynchronous and synchronous, outliers fused or by cuSPARSE.

    python benchmarks/bench_mixed_gemv.py [--part shapes outliers widths batch] [--out folder] [--rounds 200]

    shapes      no outliers and 0.2 %, beside cuBLAS: share of the copy bandwidth of the same run, times cuBLAS; what
                asynchrony buys (mixed_async over mixed_sync)
    outliers    slow-down by the share of outliers, fused and by cuSPARSE (Fig. 6 of the paper)
    widths      groups of 2, 3 and 4 bits beside one width: time over what their bytes predict
    batch       1 to 16 rows of x over one, and dequantizing with cuBLAS

Li et al., "Fast and Efficient 2-bit LLM Inference on GPU" (ICCAD 2024). A quarter of the groups at 4 bits, g = 16. Who
races and how: gpu_contestants.py, bench_lut_gemv.py. Without a GPU it says so and ends. Predicted and seen:
kernels/README.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from bench_lut_gemv import met, row
from gpu_ceilings import reader
from gpu_contestants import (
    Entrant,
    activations,
    checked,
    cold_copies,
    cublas,
    draw_mixed,
    draw_widths,
    executed,
    l2_bytes,
    run_parts,
)

from lutlab.measure.timing import GpuTimer, gpu_copier, race

LARGE, WIDE, SQUARE = (12288, 12288), (4096, 11008), (4096, 4096)
SHAPES = (LARGE, WIDE, SQUARE)
RATIOS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.015)
BATCHES = (1, 2, 4, 8, 16)
# On an H200, with 0.2 % of outliers: least share of the copy bandwidth, most microseconds, times cuBLAS.
FRACTION, TIMES = {LARGE: 0.66}, {LARGE: 4.2, WIDE: 2.6}
MICROSECONDS = {WIDE: 10.0}
# Widths repeated over the groups, and the most that a mix may take of what its bytes predict by those of one width.
WIDTHS = {
    "2 bits": (2,),
    "3 bits": (3,),
    "4 bits": (4,),
    "2, 4 bits, 10 % at 4": (2, 2, 2, 2, 2, 2, 2, 2, 2, 4),
    "2, 3, 4 bits": (2, 3, 2, 4, 2, 3),
}
BY_BYTES = 1.05
# Most that fused outliers may cost; the paper pays about 20 %.
FUSED = {0.001: 0.05, 0.002: 0.05, 0.005: 0.05}


def entrants(
    shape: tuple[int, int], ratio: float, x: torch.Tensor, ways: tuple[tuple[str, str], ...]
) -> list[Entrant]:
    """Variants, each with its way of adding outliers, on one drawn weight; checked."""
    packed = draw_mixed(shape, ratio)
    weight = packed.dequantize()
    found = []
    for variant, outliers in ways:
        label = f"{variant} {100 * ratio:g} %" + (f" {outliers}" if ratio else "")
        options = {"variant": variant, "knobs": {"outliers": outliers}}
        found.append(checked(executed(packed, x, label, "mixed", **options), x, weight))
    return found


def timed(found: list[Entrant], shape: tuple[int, int], m: int, rounds: int) -> dict[str, Any]:
    """One race beside copying and reading as many bytes; a result, printed."""
    size = min(one.bytes for one in found)
    copy = gpu_copier(max(2**29, 8 * l2_bytes()))
    stream = reader(size, cold_copies(size))
    race([copy, stream, *found], GpuTimer(), rounds)
    rows = [row(one, copy, stream, found) for one in found]
    print(f"\n{shape[0]}x{shape[1]}, {m} row(s) of x; copy {copy.bandwidth() * 1e-9:.0f} GB/s")
    for r in sorted(rows, key=lambda r: r["us"]):
        faster = f"{r['times']['cuBLAS']:.2f}" if "cuBLAS" in r["times"] else "-"
        print(
            f"  {r['kernel']:30} {r['us']:9.2f} us {r['megabytes']:8.1f} MB {r['fraction_of_copy']:.3f} of copy "
            f"{r['fraction_of_read']:.3f} of read {faster:>6} x cuBLAS, error {r['relative_error']:.1e}"
        )
    return {"shape": list(shape), "m": m, "copy_gb_s": copy.bandwidth() * 1e-9, "rows": rows}


def microseconds(result: dict[str, Any], kernel: str) -> float:
    """Of a row."""
    return next(r["us"] for r in result["rows"] if r["kernel"] == kernel)


def shapes(rounds: int) -> Iterator[dict[str, Any]]:
    ways = (("mixed_async", "fused"), ("mixed_sync", "fused"))
    for shape in SHAPES:
        x = activations(1, shape[1])
        found = [one for ratio in (0.0, 0.002) for one in entrants(shape, ratio, x, ways)]
        result = timed([*found, *cublas(shape, x)], shape, 1, rounds)
        for line in goals(result, shape):
            print(f"  goal: {line}", flush=True)
        yield result


def goals(result: dict[str, Any], shape: tuple[int, int]) -> Iterator[str]:
    """What a shape reaches and was to reach, in words."""
    name = "mixed_async 0.2 % fused"
    own = next(r for r in result["rows"] if r["kernel"] == name)
    if must := FRACTION.get(shape):
        reached = own["fraction_of_copy"]
        yield f"{name} reaches {reached:.3f} of copy; must {must}: {met(reached, must)}"
    if must := TIMES.get(shape):
        reached = own["times"]["cuBLAS"]
        yield f"{name} is {reached:.2f} times as fast as cuBLAS; must {must}: {met(reached, must)}"
    if most := MICROSECONDS.get(shape):
        yield f"{name} takes {own['us']:.2f} us; at most {most}: {met(-own['us'], -most)}"
    buys = microseconds(result, "mixed_sync 0 %") / microseconds(result, "mixed_async 0 %")
    yield f"asynchrony makes the product {buys:.2f} times as fast"


def outliers(rounds: int) -> Iterator[dict[str, Any]]:
    for shape in SHAPES:
        x = activations(1, shape[1])
        found = entrants(shape, 0.0, x, (("mixed_async", "fused"),))
        ways = tuple(("mixed_async", how) for how in ("fused", "cusparse"))
        for ratio in RATIOS[1:]:
            found += entrants(shape, ratio, x, ways)
        result = timed(found, shape, 1, rounds)
        without = microseconds(result, "mixed_async 0 %")
        for ratio in RATIOS[1:]:
            costs = [
                microseconds(result, f"mixed_async {100 * ratio:g} % {how}") / without - 1
                for _, how in ways
            ]
            goal = FUSED.get(ratio)
            say = f"; at most {goal:.0%}: {met(-costs[0], -goal)}" if goal else ""
            print(
                f"  {ratio:.1%} of outliers cost {costs[0]:.1%} fused{say}, {costs[1]:.1%} by cuSPARSE",
                flush=True,
            )
        yield result


def widths(rounds: int) -> Iterator[dict[str, Any]]:
    x = activations(1, LARGE[1])
    found = []
    for name, of_groups in WIDTHS.items():
        packed = draw_widths(LARGE, of_groups)
        one = executed(packed, x, name, "mixed", variant="mixed_async")
        found.append(checked(one, x, packed.dequantize()))
        del packed
    result = timed(found, LARGE, 1, rounds)
    rows = {r["kernel"]: r for r in result["rows"]}
    least, most = rows["2 bits"], rows["4 bits"]
    for name in (n for n, of_groups in WIDTHS.items() if len(of_groups) > 1):
        share = (rows[name]["megabytes"] - least["megabytes"]) / (
            most["megabytes"] - least["megabytes"]
        )
        predicted = least["us"] + share * (most["us"] - least["us"])
        ratio = rows[name]["us"] / predicted
        print(
            f"  goal: {name} take {ratio:.3f} of what their bytes predict between 2 and 4 bits; at most "
            f"{BY_BYTES}: {met(-ratio, -BY_BYTES)}",
            flush=True,
        )
    yield result


def batch(rounds: int) -> Iterator[dict[str, Any]]:
    alone = None
    for m in BATCHES:
        x = activations(m, LARGE[1])
        packed = draw_mixed(LARGE, 0.002)
        weight = packed.dequantize()
        found = entrants(LARGE, 0.002, x, (("mixed_async", "fused"),))
        if m > 1:
            one = executed(packed, x, "as chosen", "mixed")
            found.append(checked(one, x, weight))
        del packed, weight
        result = timed([*found, *cublas(LARGE, x)], LARGE, m, rounds // 4)
        us = microseconds(result, "mixed_async 0.2 % fused")
        alone = alone or us
        print(f"  {m} row(s) of x take {us / alone:.2f} of the time of one", flush=True)
        yield result


PARTS = {"shapes": shapes, "outliers": outliers, "widths": widths, "batch": batch}


def main() -> None:
    run_parts(__doc__, PARTS, "mixed_gemv")


if __name__ == "__main__":
    main()
