"""The contestants of a row whose product is timed, made of drawn weights and checked against float64.

    own       the row's kernel                         best      lutlab's best kernel, where the row's is the papers'
    fp16      the dense product of the same matrix     rowwise   the row's kernel with one scale a row
    fp32      in 16 and in 32 bits                     memory    reads (CPU) or copies (GPU)

Dense products are cuBLAS through torch, each in the layout of W that won a short race, [N, K] or [K, N]; on a CPU
torch's float32 product stands in for both. What is multiplied is drawn (drawn.py). How a kernel is called is said once:
cpu_contestants.py, gpu_contestants.py, dense_contestants.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lutlab import formats
from lutlab.lazy import torch
from lutlab.measure import cpu_contestants, gpu_contestants
from lutlab.measure.dense_contestants import dense, int8
from lutlab.measure.drawn import MIXED, draw, operands
from lutlab.measure.timed_row import TimedRow, cold_bytes
from lutlab.measure.timing import COLD, Contestant, cpu_reader, gpu_copier, together
from lutlab.specs import ProductRun, Shape


@dataclass(frozen=True)
class Entrants:
    """Timed contestants by place; one may be in several, and `rowwise` is None where it has no meaning."""

    own: Contestant
    best: Contestant
    fp16: Contestant
    fp32: Contestant
    rowwise: Contestant | None
    memory: Contestant
    facts: dict[str, Any]

    def all(self) -> list[Contestant]:
        """Contestants, each once, in the order in which they take turns."""
        found = (self.memory, self.fp16, self.fp32, self.own, self.best, self.rowwise)
        return list({id(one): one for one in found if one is not None}.values())


def enter(spec: ProductRun, kind: str = COLD) -> Entrants:
    """Draw the weights, make the contestants and check what each of them computes.

    Args:
        spec: the row.
        kind: state of the weights in the caches, cold or resident, with which cuBLAS's layouts race.

    Raises:
        LutlabError: a product is wrong, or there is no kernel for the row.
    """
    row = TimedRow(spec, *cold_bytes(spec.device), kind)
    made = [_part(row, shape) for shape in spec.shapes]
    joined = {
        name: together([part[name] for part in made]) if made[0][name] else None for name in made[0]
    }
    if row.cpu:
        joined["fp16"] = joined["fp32"]
    if spec.method == "none":
        joined["own"] = joined["own"] or joined["fp16" if spec.dtype == "float16" else "fp32"]
    joined["best"] = joined["best"] or joined["own"]
    baseline = "torch float32 product, in the place of cuBLAS"
    if not row.cpu:
        baseline = f"cuBLAS: {joined['fp16'].name}, {joined['fp32'].name}"
    names = {"kernel": joined["own"].kernels(), "best_kernel": joined["best"].kernels()}
    return Entrants(**joined, memory=_memory(row), facts={"baseline": baseline} | names | row.facts)


def _part(row: TimedRow, shape: Shape) -> dict[str, Contestant | None]:
    """The contestants of one product; None where there is nothing of that name."""
    spec = row.spec
    x, weight = operands(spec, shape)
    own = best = rowwise = None
    if weight is None:
        own, weight = _quantized(row, x, shape, spec.g, spec.kernel)
        if spec.g != -1 and spec.method != MIXED:  # a scale a row belongs to its groups of 4 bits
            rowwise, _ = _quantized(row, x, shape, -1, spec.kernel)
        if spec.kernel == "lut_gemm" and not row.cpu:
            best, _ = _quantized(row, x, shape, spec.g, "auto")
    elif spec.dtype == "bfloat16":
        own = dense(row, weight.bfloat16(), x.bfloat16())
    fp16 = None if row.cpu else dense(row, weight.half(), x.half())
    fp32 = dense(row, weight, x)
    return {"own": own, "best": best, "fp16": fp16, "fp32": fp32, "rowwise": rowwise}


def _quantized(
    row: TimedRow, x: torch.Tensor, shape: Shape, g: int, kernel: str
) -> tuple[Contestant, torch.Tensor]:
    """A kernel with groups of g, and the matrix [N, K] float32 that it multiplies by."""
    drawn = draw(row.spec, shape, g)
    if kernel == "int8":
        return int8(row, x, drawn.codes)
    x = x.to(getattr(torch, row.spec.dtype))
    packed = formats.pack(drawn)
    weight = packed.dequantize()
    if not row.cpu:
        one = gpu_contestants.quantized(row, x, packed, kernel)
    elif kernel == "optq":
        one = cpu_contestants.qigen(row, x, drawn)
    else:
        one = cpu_contestants.quantized(row, x, packed, kernel)
    return row.checked(one, x, weight), weight


def _memory(row: TimedRow) -> Contestant:
    """Reading by a CPU's threads, or copying by a GPU: the bandwidth that others are fractions of."""
    return cpu_reader(row.cold, torch.get_num_threads()) if row.cpu else gpu_copier(row.cold)
