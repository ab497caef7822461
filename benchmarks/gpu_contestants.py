"""Contestants of the GPU benchmarks: variants of y = x W^T with low-bit W, cuBLAS, and installed peers.

Every contestant's product is checked against float64 before it is timed. Weights are random, and cold: at least four
copies, together at least 4 times the L2 cache. Bytes are those stored, scales included.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import origin
import torch
from peers import able

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.base.specs import ProductRun
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.contract import Format
from lutlab.formats.mixed import PackedMixed
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.dispatch import prepare
from lutlab.kernels.gpu import variants
from lutlab.kernels.gpu.dequantize import dequantize
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.kernels.gpu.lut_gemv.variant import case
from lutlab.measure import products
from lutlab.measure.energy import clocks_of
from lutlab.measure.timing import Contestant, copies_for
from lutlab.peers.contract import MultipliesOnGPU
from lutlab.quantizers.mixed_2_4_16 import Mixed2416

DEVICE = "cuda"
LARGE, SMALL = (49152, 12288), (12288, 12288)  # the shapes of the goals, N x K
ERRORS = {torch.float16: 3e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}


@dataclass
class Entrant(Contestant):
    """A contestant with what the table says beside its time."""

    kind: str = ""  # bcq, uniform, dense, peer, through dense
    error: float = 0.0


def run_parts(
    doc: str, parts: Mapping[str, Callable[[int], Iterable[Any]]], name: str, rounds: int = 200
) -> None:
    """The command of a benchmark: its parts, each by a number of rounds, results kept as they come.

    Args:
        doc: the benchmark's, whose first line is the command's description.
        parts: part -> what yields its results.
        name: of the files, `<name>_<part>.json`.
        rounds: where the command says none.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--part", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--out", type=Path, help="folder: a JSON a part")
    args = parser.parse_args()
    try:
        launcher.device_of(DEVICE)
    except LutlabError as error:
        parser.exit(0, f"not run: {error}\n")
    with torch.inference_mode():
        for part in args.part:
            results = []
            for result in parts[part](args.rounds):
                results.append(result)
                if args.out:
                    about = {"clocks": clocks_of(DEVICE), "rounds": args.rounds}
                    origin.write(args.out / f"{name}_{part}.json", about | {"results": results})


# ---- weights ----


def draw(shape: tuple[int, int], q: int, g: int, uniform: bool) -> PackedBCQ | PackedUniform:
    """Random codes with positive scales: binary codes with an offset, or uniform codes, both with float16 scales."""
    method = "rtn" if uniform else "bcq"
    one = (*shape, 1)
    row = ProductRun((one,), method, q, g, (("offset", True),), device=DEVICE, seed=q)
    return formats.pack(products.draw(row, one, g))


def draw_mixed(shape: tuple[int, int], outliers: float) -> PackedMixed:
    """A normal weight rounded to memory-aligned 2/4-bit blocks, with a share of outliers."""
    one = (*shape, 1)
    options = (("outliers", outliers),)
    row = ProductRun((one,), products.MIXED, 2.5, 16, options, device=DEVICE)
    return formats.pack(products.draw(row, one, 16))


def draw_widths(shape: tuple[int, int], widths: Sequence[int]) -> PackedMixed:
    """A normal weight rounded to groups of 16 whose widths are repeated, all with second-order scales."""
    generator = torch.Generator(DEVICE).manual_seed(1)
    weight = torch.randn(shape, generator=generator, device=DEVICE)
    groups = -(-shape[1] // 16)
    width = torch.tensor(widths, dtype=torch.uint8, device=DEVICE).repeat(groups)[:groups]
    method = Mixed2416(wide_scale="group", aligned=False)
    return formats.pack(method.round_to(weight, width, 16))


def activations(m: int, columns: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(m)
    return torch.randn(m, columns, generator=generator, device=DEVICE).to(dtype)


def l2_bytes() -> int:
    return torch.cuda.get_device_properties(DEVICE).L2_cache_size


def cold_copies(size: int) -> int:
    return max(4, copies_for(size, 4 * l2_bytes()))


def cold_products(
    packed: PackedBCQ | PackedUniform, dtype: torch.dtype, variant: str
) -> tuple[list[launcher.Product], int]:
    """A variant's product with as many copies of its weights as are cold, and the bytes of one copy, scales included.

    Raises:
        LutlabError: as launcher.bind.
    """
    first = launcher.bind(packed, dtype, DEVICE, variant)
    size = sum(buffer.nbytes for buffer in first.weight.buffers.values() if buffer is not None)
    return [first, *(first.copy() for _ in range(cold_copies(size) - 1))], size


def checked(one: Entrant, x: torch.Tensor, weight: torch.Tensor) -> Entrant:
    """Its error against float64.

    Raises:
        LutlabError: it is wrong.
    """
    for copy_ in {0, one.copies - 1}:
        error = products.relative_error(one.run(copy_), x, weight)
        if not error <= ERRORS[x.dtype]:  # of nan too
            raise LutlabError(f"{one.name} is wrong by {error:.1e}: its speed would say nothing")
        one.error = max(one.error, error)
    return one


# ---- ours ----


def ours(
    packed: PackedBCQ | PackedUniform, x: torch.Tensor, name: str, kind: str
) -> Entrant | None:
    """A variant with its copies; None where it does not take the weight."""
    here = launcher.gpu(launcher.device_of(DEVICE))
    variant = variants.variant(name)
    if variant.why_not(case(packed, x.dtype, len(x)), here):
        return None
    products, size = cold_products(packed, x.dtype, name)
    for product in products:
        product.prepare(len(x))
    return Entrant(f"{name} {kind}", size, len(products), lambda i: products[i](x), kind=kind)


def executed(packed: Format, x: torch.Tensor, name: str, kind: str, **options: Any) -> Entrant:
    """What the dispatch takes for a packed weight, with its copies; options: of the operation."""
    op = packed.kernels["cuda"][0]
    first = prepare(packed, DEVICE, len(x), x.dtype, op=op, **options)
    size = first.bytes_read(len(x), x.dtype)
    copies = [first, *(first.copy() for _ in range(cold_copies(size) - 1))]
    return Entrant(name, size, len(copies), lambda i: copies[i](x), kind=kind)


def through_dense(packed: PackedBCQ | PackedUniform, x: torch.Tensor, kind: str) -> Entrant:
    """Dequantizing and cuBLAS, as QuantLinear multiplies many rows of x."""
    planes = packed.to_bcq()
    read = (planes.planes, planes.alpha, planes.offset)
    size = sum(buffer.nbytes for buffer in read if buffer is not None)

    def run(i: int) -> torch.Tensor:
        return torch.nn.functional.linear(x, dequantize(planes, x.dtype))

    return Entrant(f"dequantize {kind}", size, 1, run, kind="through dense")


# ---- cuBLAS and peers ----


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


def peers(shape: tuple[int, int], q: int, g: int, x: torch.Tensor) -> tuple[list[Entrant], dict]:
    """Installed peers that take q, and the reasons of the others by name."""
    found, absent = [], {}
    for name, peer in able(MultipliesOnGPU).items():
        if q not in peer.gpu_bits:
            continue
        if peer.lacking():
            absent[name] = "not installed"
            continue
        try:
            one, given, weight = peer.gpu_product(shape, q, g, x, cold_copies)
            one = Entrant(one.name, one.bytes, one.copies, one.run, kind="peer")
            found.append(checked(one, given, weight))
        except Exception as error:  # a peer that fails must not end the run; the table says so
            absent[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found, absent
