"""Microseconds of y = x W^T with low-bit W on a GPU: every variant beside cuBLAS, torch's int4 and installed peers.

    python benchmarks/bench_lut_gemv.py [--part goals batch groups] [--out folder] [--rounds 200]

    goals       batch 1, g = 128, the two shapes of the goals: fraction of the copy bandwidth of the same run (must,
                stretch), times cuBLAS, R0 and peers
    batch       1 to 32 rows of x at q = 3 over batch 1, and the time of dequantizing and cuBLAS
    groups      every q at g = 128, and g = 32 at q = 3: no cliff

Every contestant's product is checked against float64 before it is timed. Weights are random and cold: at least four
copies, together at least 4 times the L2 cache. Contestants take turns, a time is the median over rounds, each round a
replay of a CUDA graph of 20 or more calls (lutlab/timing.py). Bytes are those stored, scales included. Without a GPU it
says so and ends. Predicted and seen: kernels/README.md.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lutlab.energy import clocks_of
from lutlab.errors import LutlabError
from lutlab.formats import bcq
from lutlab.formats.bcq import PackedBCQ
from lutlab.kernels import lut_gemv
from lutlab.kernels.dequantize import dequantize
from lutlab.kernels.lut_gemv import launcher
from lutlab.kernels.lut_gemv.variant import case
from lutlab.provenance import environment
from lutlab.records import BCQTensor, UniformTensor
from lutlab.timing import Contestant, GpuTimer, copies_for, gpu_copier, race

DEVICE = "cuda"
CHECKED_WEIGHTS = 2**24  # at a time, in float64
LARGE, SMALL = (49152, 12288), (12288, 12288)
# Fraction of the copy bandwidth on an H200, batch 1, g = 128: must, stretch; and times cuBLAS.
FRACTIONS = {
    (LARGE, 2): (0.83, 0.91),
    (LARGE, 3): (0.88, 0.94),
    (LARGE, 4): (0.90, 0.96),
    (LARGE, 8): (0.93, 0.98),
    (SMALL, 2): (0.60, 0.69),
    (SMALL, 3): (0.70, 0.78),
    (SMALL, 4): (0.75, 0.83),
}
TIMES_CUBLAS = {(LARGE, 2): 5.9, (LARGE, 3): 4.2, (LARGE, 4): 3.25}
BATCH_LIMITS = {2: 1.05, 4: 1.2, 8: 1.5}
BATCHES = (1, 2, 4, 8, 16, 32)
ERRORS = {torch.float16: 3e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}
PARTS = ("goals", "batch", "groups")


@dataclass
class Entrant(Contestant):
    """A contestant with what the table says beside its time."""

    kind: str = ""  # bcq, uniform, dense, peer, copy
    error: float = 0.0


# ---- weights ----


def draw(shape: tuple[int, int], q: int, g: int, uniform: bool) -> PackedBCQ:
    """Random codes with positive scales: binary codes with an offset, or uniform codes, both with float16 scales."""
    generator = torch.Generator(DEVICE).manual_seed(q)
    rows, columns = shape
    groups = 1 if g == -1 else -(-columns // g)

    def positive(*size: int) -> torch.Tensor:
        return 0.01 * (0.5 + torch.rand(size, generator=generator, device=DEVICE))

    codes = torch.randint(0, 2**q, shape, generator=generator, device=DEVICE, dtype=torch.uint8)
    if uniform:
        zero = torch.randint(0, 2**q, (rows, groups), generator=generator, device=DEVICE).short()
        scale = positive(rows, groups).half()
        return bcq.pack(bcq.from_uniform(UniformTensor(codes, scale, zero, q, g)))
    powers = 2.0 ** torch.arange(q, device=DEVICE).view(-1, 1, 1)
    alpha = (positive(q, rows, groups) * powers).half()
    return bcq.pack(BCQTensor(codes, alpha, positive(rows, groups).half(), q, g))


def activations(m: int, columns: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(m)
    return torch.randn(m, columns, generator=generator, device=DEVICE).to(dtype)


def l2_bytes() -> int:
    return torch.cuda.get_device_properties(DEVICE).L2_cache_size


def cold_copies(size: int) -> int:
    return max(4, copies_for(size, 4 * l2_bytes()))


def relative_error(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> float:
    """|y - x W^T| / |x W^T|, the product in float64."""
    parts = weight.split(max(1, CHECKED_WEIGHTS // weight.shape[1]))
    expected = torch.cat([x.double() @ part.double().t() for part in parts], dim=1)
    return float((y.double() - expected).norm() / expected.norm())


def checked(one: Entrant, x: torch.Tensor, weight: torch.Tensor) -> Entrant:
    """Its error against float64.

    Raises:
        LutlabError: it is wrong.
    """
    one.error = max(relative_error(one.run(i), x, weight) for i in {0, one.copies - 1})
    if not one.error <= ERRORS[x.dtype]:
        raise LutlabError(f"{one.name} is wrong by {one.error:.1e}: its speed would say nothing")
    return one


# ---- contestants ----


def ours(packed: PackedBCQ, x: torch.Tensor, name: str, kind: str) -> Entrant | None:
    """A variant with its copies; None where it does not take the weight."""
    here = launcher.gpu(launcher.device_of(DEVICE))
    variant = lut_gemv.variant(name)
    if variant.why_not(case(packed, x.dtype, len(x)), here):
        return None
    first = launcher.bind(packed, x.dtype, DEVICE, name).prepare(len(x))
    size = sum(b.nbytes for b in first.weight.buffers.values() if b is not None)
    products = [first]
    for _ in range(cold_copies(size) - 1):
        parts = copy.deepcopy(first.weight), x.dtype, first.device, first.gpu, first.knobs
        products.append(launcher.Product(variant, *parts).prepare(len(x)))
    return Entrant(f"{name} {kind}", size, len(products), lambda i: products[i](x), kind=kind)


def through_dense(packed: PackedBCQ, x: torch.Tensor, kind: str) -> Entrant:
    """What QuantLinear does with many rows of x."""

    def run(i: int) -> torch.Tensor:
        return torch.nn.functional.linear(x, dequantize(packed, x.dtype))

    buffers = (packed.planes, packed.alpha, packed.offset)
    size = sum(b.nbytes for b in buffers if b is not None)
    return Entrant(f"dequantize {kind}", size, 1, run, kind="through dense")


def cublas(shape: tuple[int, int], x: torch.Tensor) -> list[Entrant]:
    """The dense product in both layouts, [N, K] and [K, N]."""
    rows, columns = shape
    weight = torch.randn(rows, columns, device=DEVICE, dtype=x.dtype)
    across = [weight.t().contiguous() for _ in range(cold_copies(weight.nbytes))]
    along = [weight, *(weight.clone() for _ in across[1:])]
    products: dict[str, Callable[[int], torch.Tensor]] = {
        "cuBLAS [N, K]": lambda i: torch.nn.functional.linear(x, along[i]),
        "cuBLAS [K, N]": lambda i: torch.mm(x, across[i]),
    }
    return [
        checked(Entrant(name, weight.nbytes, len(along), run, kind="dense"), x, weight)
        for name, run in products.items()
    ]


def torch_int4(shape: tuple[int, int], m: int, g: int) -> Entrant:
    """Aten's weight-only int4 product, bfloat16."""
    rows, columns = shape
    x = activations(m, columns, torch.bfloat16)
    codes = torch.randint(0, 16, shape, device=DEVICE, dtype=torch.int32)
    scales = 0.01 * (0.5 + torch.rand(columns // g, rows, 2, device=DEVICE)).bfloat16()
    octets = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8)
    words = torch.ops.aten._convert_weight_to_int4pack(octets, 8)
    packs = [words.clone() for _ in range(cold_copies(words.nbytes))]
    wide = scales.float().repeat_interleave(g, dim=0)
    weight = ((codes.t().float() - 8) * wide[..., 0] + wide[..., 1]).t()
    run = lambda i: torch.ops.aten._weight_int4pack_mm(x, packs[i], g, scales)  # noqa: E731
    size = words.nbytes + scales.nbytes
    return checked(Entrant("torch int4", size, len(packs), run, kind="peer"), x, weight)


def gemlite_peer(shape: tuple[int, int], q: int, g: int, x: torch.Tensor) -> Entrant:
    """Gemlite's best kernel for the shape, tuned by itself before it is timed."""
    from gemlite.core import DType, GemLiteLinear

    rows, columns = shape
    codes = torch.randint(0, 2**q, shape, device=DEVICE, dtype=torch.uint8)
    scale = 0.01 * (0.5 + torch.rand(rows, columns // g, device=DEVICE)).half()
    zero = torch.full_like(scale, 2 ** (q - 1))
    layers = []
    for _ in range(cold_copies(rows * columns * q // 8)):
        half = DType.FP16
        layer = GemLiteLinear(q, g, columns, rows, input_dtype=half, output_dtype=half)
        layer.pack(codes.view(rows, columns), scale.view(-1, 1), zero.view(-1, 1), None)
        layers.append(layer)
    wide = [t.float().repeat_interleave(g, dim=1) for t in (scale, zero)]
    weight = (codes.float() - wide[1]) * wide[0]
    size = rows * columns * q // 8 + 2 * scale.nbytes
    one = Entrant(f"gemlite W{q}", size, len(layers), lambda i: layers[i](x), kind="peer")
    return checked(one, x, weight)


def marlin_peer(shape: tuple[int, int], g: int, x: torch.Tensor) -> Entrant:
    """Marlin's int4 product, symmetric; its workspace is zeroed by itself."""
    import marlin

    rows, columns = shape
    scale = 0.01 * (0.5 + torch.rand(rows, columns // g, device=DEVICE)).half()
    codes = torch.randint(0, 16, shape, device=DEVICE)
    weight = (codes - 8).half() * scale.repeat_interleave(g, dim=1)
    dense = torch.nn.Linear(columns, rows, bias=False, device=DEVICE, dtype=torch.float16)
    dense.weight.data = weight
    layer = marlin.Layer(columns, rows, g).cuda()
    layer.pack(dense, scale)
    size = layer.B.nbytes + layer.s.nbytes
    layers = [layer, *(copy.deepcopy(layer) for _ in range(cold_copies(size) - 1))]
    one = Entrant("Marlin int4", size, len(layers), lambda i: layers[i](x), kind="peer")
    return checked(one, x, weight)


def peers(shape: tuple[int, int], q: int, g: int, x: torch.Tensor) -> tuple[list[Entrant], dict]:
    """Those that are installed and take q; and why the others do not run."""
    makers: dict[str, Callable[[], Entrant]] = {}
    absent = {}
    if q == 4:
        makers["torch int4"] = lambda: torch_int4(shape, len(x), g)
    for name, bits, make in (
        ("gemlite", (1, 2, 4, 8), lambda: gemlite_peer(shape, q, g, x)),
        ("marlin", (3, 4), lambda: marlin_peer(shape, g, x)),
    ):
        if q in bits and importlib.util.find_spec(name) is None:
            absent[name] = "not installed"
        elif q in bits:
            makers[name] = make
    found = []
    for name, make in makers.items():
        try:
            found.append(make())
        except Exception as error:  # a peer that fails must not end the run; the table says so
            absent[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found, absent


# ---- parts ----


def contest(shape, q: int, g: int, m: int, rounds: int, others: bool = True) -> dict[str, Any]:
    """All variants on one shape, with cuBLAS and peers or without; timed together."""
    x = activations(m, shape[1])
    found: list[Entrant] = []
    for kind in ("bcq", "uniform"):
        packed = draw(shape, q, g, kind == "uniform")
        weight = packed.dequantize()
        names = ("r5", "optq") if kind == "uniform" else lut_gemv.VARIANTS
        for name in names:
            if one := ours(packed, x, name, kind):
                found.append(checked(one, x, weight))
        if m > 1:
            found.append(checked(through_dense(packed, x, kind), x, weight))
        del packed, weight
    absent = {}
    if others:
        found += cublas(shape, x)
        more, absent = peers(shape, q, g, x)
        found += more
    memory = gpu_copier(max(2**29, 8 * l2_bytes()))
    race([memory, *found], GpuTimer(), rounds)
    return {
        "shape": list(shape),
        "q": q,
        "g": g,
        "m": m,
        "copy_gb_s": memory.bandwidth() * 1e-9,
        "not_run": absent,
        "rows": [row(one, memory, found) for one in found],
    }


def row(one: Entrant, memory: Contestant, all_: list[Entrant]) -> dict[str, Any]:
    """What the table says of one."""
    dense = [other for other in all_ if other.kind == "dense"]
    first = next((other for other in all_ if other.name == "r0 bcq"), None)
    return {
        "kernel": one.name,
        "kind": one.kind,
        "us": one.seconds() * 1e6,
        "spread_us": [seconds * 1e6 for seconds in one.spread()],
        "megabytes": one.bytes * 1e-6,
        "fraction_of_copy": one.fraction(memory),
        "times_cublas": min((one.times(other) for other in dense), default=None),
        "times_r0": one.times(first) if first else None,
        "relative_error": one.error,
    }


def goals(rounds: int) -> list[dict[str, Any]]:
    return [told(contest(shape, q, 128, 1, rounds)) for shape, q in FRACTIONS]


def batch(rounds: int) -> list[dict[str, Any]]:
    found = [told(contest(LARGE, 3, 128, m, rounds // 4, m == 1)) for m in BATCHES]
    for kind in ("bcq", "uniform"):
        alone = best(found[0], kind)
        for result in found[1:]:
            ratio = best(result, kind)["us"] / alone["us"]
            goal = BATCH_LIMITS.get(result["m"])
            say = "" if goal is None else f"  goal {goal}: {'met' if ratio <= goal else 'MISSED'}"
            print(f"{kind}: {result['m']} rows of x take {ratio:.2f} of the time of one{say}")
    return found


def groups(rounds: int) -> list[dict[str, Any]]:
    cases = [(q, 128) for q in range(1, 9)] + [(3, 32), (3, 64), (3, 256), (3, -1)]
    return [told(contest(SMALL, q, g, 1, rounds // 4, False)) for q, g in cases]


# ---- tables ----


def best(result: dict[str, Any], kind: str) -> dict[str, Any]:
    """The fastest variant of a kind; OPTQ's baseline is none of ours."""
    rows = [r for r in result["rows"] if r["kind"] == kind and not r["kernel"].startswith("optq")]
    return min(rows, key=lambda r: r["us"])


def told(result: dict[str, Any]) -> dict[str, Any]:
    """Print a result; and return it."""
    shape, q = tuple(result["shape"]), result["q"]
    print(
        f"\n{shape[0]}x{shape[1]}, q={q}, g={result['g']}, {result['m']} row(s) of x; "
        f"copy {result['copy_gb_s']:.0f} GB/s"
    )
    print(
        f"  {'':16} {'us':>9} {'spread':>17} {'MB':>8} {'of copy':>8} {'/cuBLAS':>8} {'/R0':>6} error"
    )
    for r in sorted(result["rows"], key=lambda r: r["us"]):
        ratios = (f"{r[key]:.2f}" if r[key] else "-" for key in ("times_cublas", "times_r0"))
        low, high = r["spread_us"]
        print(
            "  {:16} {:9.2f} {:8.2f}-{:8.2f} {:8.1f} {:8.3f} {:>8} {:>6} {:.1e}".format(
                r["kernel"], r["us"], low, high, r["megabytes"], r["fraction_of_copy"], *ratios,
                r["relative_error"],
            )
        )  # fmt: skip
    for name, why in result["not_run"].items():
        print(f"  {name}: not run ({why})")
    if (shape, q) in FRACTIONS and (result["g"], result["m"]) == (128, 1):
        print(
            f"  goal: {verdict(result, *FRACTIONS[shape, q], TIMES_CUBLAS.get((shape, q)))}",
            flush=True,
        )
    return result


def verdict(result: dict[str, Any], must: float, stretch: float, times: float | None) -> str:
    """The best binary code against the goals."""
    own = best(result, "bcq")
    fraction = own["fraction_of_copy"]
    met = "stretch met" if fraction >= stretch else "met" if fraction >= must else "MISSED"
    text = f"{own['kernel']} reaches {fraction:.3f} of copy; must {must}, stretch {stretch}: {met}"
    if times and own["times_cublas"]:
        met = "met" if own["times_cublas"] >= times else "MISSED"
        text += f"; {own['times_cublas']:.2f} times cuBLAS, must {times}: {met}"
    return text


def about() -> dict[str, Any]:
    """What the numbers depend on beside the code."""
    return environment() | {"clocks": clocks_of(DEVICE)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, help="folder: a JSON a part")
    args = parser.parse_args()
    try:
        launcher.device_of(DEVICE)
    except LutlabError as error:
        parser.exit(0, f"not run: {error}\n")
    run = {"goals": goals, "batch": batch, "groups": groups}
    with torch.inference_mode():
        for part in args.part:
            results = run[part](args.rounds)
            if args.out:
                args.out.mkdir(parents=True, exist_ok=True)
                text = json.dumps(about() | {"rounds": args.rounds, "results": results}, indent=1)
                (args.out / f"lut_gemv_{part}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
