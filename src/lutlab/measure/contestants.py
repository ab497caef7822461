"""The contestants of a row whose product is timed, made of drawn weights and checked against float64.

    own       the row's kernel                         best      lutlab's best kernel, where the row's is the papers'
    fp16      the dense product of the same matrix     rowwise   the row's kernel with one scale a row
    fp32      in 16 and in 32 bits                     memory    reads (CPU) or copies (GPU)

Dense products are cuBLAS through torch, each in the layout of W that won a short race, [N, K] or [K, N]. On a CPU they
are torch's; that in 16 bits is bfloat16's where it won a short race with float32's, which stands in elsewhere. What is
multiplied is drawn (products.py). Copies of the weights are so many that together they are in no cache when their turn
comes. The error of a product, |y - x W^T| / |x W^T|, is within a limit, and a fact of the record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch
from lutlab.base.specs import ProductRun, Shape
from lutlab.base.tensors import UniformTensor
from lutlab.formats.contract import Format
from lutlab.kernels.contract import Execution
from lutlab.kernels.cpu.qigen.qigen_blocks import PackedQIGen
from lutlab.measure import products
from lutlab.measure.products import MIXED, draw, operands, relative_error
from lutlab.measure.timing import (
    COLD,
    Contestant,
    CpuTimer,
    GpuTimer,
    Timer,
    copies_for,
    cpu_reader,
    gpu_copier,
    race,
    together,
)

# |y - x W^T| / |x W^T| beyond which a product is wrong; in 16 bits it may be summed in 16 bits, as LUT-GEMM does.
_ERRORS = {"int8": 0.0, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
_INT16_ERROR = 1e-3
_MOST_COPIES = 4096
_CHOOSING_ROUNDS = {"cpu": 3, "gpu": 20}  # of the short race between dense products


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
        places = (self.memory, self.fp16, self.fp32, self.own, self.best, self.rowwise)
        return list({id(entrant): entrant for entrant in places if entrant is not None}.values())


@dataclass
class TimedRow:
    """A row, and the facts of its record, which grow as contestants are made.

    Attributes:
        spec: the row.
        cold: bytes of all copies of a contestant's weights.
        facts: facts of a record: relative_errors by name; on a GPU cublas_us, microseconds of each layout in the short
            race.
        kind: state of the weights in the caches, cold or resident, with which cuBLAS's layouts race.
    """

    spec: ProductRun
    cold: int
    facts: dict[str, Any]
    kind: str = COLD

    @property
    def cpu(self) -> bool:
        """Whether the row's device is the CPU."""
        return self.spec.device == "cpu"

    def copies(self, size: int) -> int:
        """The number of copies of weights of so many bytes; tiny ones are not all cold."""
        return min(copies_for(size, self.cold), _MOST_COPIES)

    def executed(self, execution: Execution, x: torch.Tensor) -> Contestant:
        """A kernel's product with x [M, K], with as many copies of its weights as are cold.

        Raises:
            LutlabError: it is no kernel: none takes the weight.
        """
        from lutlab.kernels.dispatch import Dequantized

        rows, dtype = len(x), x.dtype
        name = execution.describe(rows, dtype)
        if isinstance(execution, Dequantized):
            raise LutlabError(f"there is no kernel to time: {name}")
        size = execution.bytes_read(rows, dtype)
        copies = [execution, *(execution.copy() for _ in range(self.copies(size) - 1))]
        return Contestant(name, size, len(copies), lambda i: copies[i](x))

    def checked(self, product: Contestant, x: torch.Tensor, weight: torch.Tensor) -> Contestant:
        """The contestant, if its first and last copy multiply x [M, K] by the weight [N, K]; the error is a fact.

        Raises:
            LutlabError: the product is wrong.
        """
        dtype = str(x.dtype).removeprefix("torch.")
        limit = _ERRORS[dtype]
        if self.spec.kernel == "int16":
            limit = max(limit, _INT16_ERROR)
        name = product.name
        for copy in {0, product.copies - 1}:
            y = cast("torch.Tensor", product.run(copy))  # of no other contestant
            error = relative_error(y, x, weight)
            if not error <= limit:  # of nan too
                raise LutlabError(
                    f"{name} is wrong: |y - x W^T| is {error:.1e} of |x W^T|, at most {limit:.0e} was expected "
                    f"in {dtype}; its speed would say nothing"
                )
            errors = self.facts.setdefault("relative_errors", {})
            errors[name] = max(error, errors.get(name, 0.0))
        return product


def cold_bytes(device: str) -> tuple[int, dict[str, Any]]:
    """Bytes of all copies of a contestant's weights on a device, and the facts of a record on it."""
    if device == "cpu":
        from lutlab.kernels.cpu.qigen.qigen_model import caches

        cache, times = caches()["l3"], products.CPU_CACHES
    else:
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        times = products.GPU_CACHES
    cold = min(times * cache, products.COLD_LIMIT)
    return cold, {"cache_bytes": cache, "cold_bytes": cold}


def enter(spec: ProductRun, kind: str = COLD) -> Entrants:
    """Draw the weights, make the contestants and check what each of them computes; kind: as in TimedRow.

    Raises:
        LutlabError: a product is wrong, or there is no kernel for the row.
    """
    row = TimedRow(spec, *cold_bytes(spec.device), kind)
    parts = [_part(row, shape) for shape in spec.shapes]
    joined = {name: together([part[name] for part in parts]) for name in parts[0]}
    fp32 = joined["fp32"]
    fp16 = joined["fp16"]
    if row.cpu:
        fp16, row.facts["dense_us"] = _faster(row, [fp32, fp16], CpuTimer())
    own = joined.get("own", fp16 if spec.dtype == "float16" else fp32)
    best = joined.get("best", own)
    dense_names = ", ".join(dict.fromkeys((fp16.name, fp32.name)))
    baseline = f"{dense_names}, in the place of cuBLAS" if row.cpu else f"cuBLAS: {dense_names}"
    names = {"kernel": own.kernels(), "best_kernel": best.kernels()}
    # the bandwidth that others are fractions of: reading by a CPU's threads, or copying by a GPU
    memory = cpu_reader(row.cold, torch.get_num_threads()) if row.cpu else gpu_copier(row.cold)
    facts = {"baseline": baseline} | names | row.facts
    return Entrants(own, best, fp16, fp32, joined.get("rowwise"), memory, facts)


def _part(row: TimedRow, shape: Shape) -> dict[str, Contestant]:
    """The contestants of one product, by their places in Entrants; `fp32` is always there."""
    spec, part = row.spec, {}
    x, weight = operands(spec, shape)
    if weight is None:
        part["own"], weight = _quantized(row, x, shape, spec.g, spec.kernel)
        if spec.g != -1 and spec.method != MIXED:  # a scale a row belongs to its groups of 4 bits
            part["rowwise"], _ = _quantized(row, x, shape, -1, spec.kernel)
        if spec.kernel == "lut_gemm" and not row.cpu:
            part["best"], _ = _quantized(row, x, shape, spec.g, "auto")
    elif spec.dtype == "bfloat16":
        part["own"] = dense(row, weight.bfloat16(), x.bfloat16())
    # of 16 bits, what CPUs have instructions for (AVX512_BF16, AMX)
    half = torch.bfloat16 if row.cpu else torch.float16
    part["fp16"] = dense(row, weight.to(half), x.to(half))
    part["fp32"] = dense(row, weight, x)
    return part


# ---- lutlab's kernels ----


def _quantized(
    row: TimedRow, x: torch.Tensor, shape: Shape, g: int, kernel: str
) -> tuple[Contestant, torch.Tensor]:
    """A kernel with groups of g, and the matrix [N, K] float32 that it multiplies by."""
    drawn = draw(row.spec, shape, g)
    if kernel == "int8":
        return _int8(row, x, drawn.codes)
    x = x.to(getattr(torch, row.spec.dtype))
    packed = formats.pack(drawn)
    if row.cpu and kernel == "optq":
        assert isinstance(drawn, UniformTensor), "products.obstacle refuses other codes"
        contestant = _qigen(row, x, drawn)
    else:
        contestant = by_kernel(row, x, packed, kernel)
    weight = packed.dequantize()
    return row.checked(contestant, x, weight), weight


def by_kernel(row: TimedRow, x: torch.Tensor, packed: Format, kernel: str) -> Contestant:
    """A kernel's product: on a CPU that of quantized layers, with tables of 16 bits for int16; on a GPU a variant.

    Raises:
        LutlabError: no such variant, or it does not take the weight here.
    """
    from lutlab.kernels.dispatch import prepare

    options: dict[str, Any] = {}
    if not row.cpu:
        variant = products.variant_of(kernel)  # None: what the dispatch takes for so many rows of x
        knobs = dict(row.spec.knobs) if variant and kernel == row.spec.kernel else None
        options = {"op": packed.kernels["cuda"][0], "variant": variant, "knobs": knobs}
    elif products.on_cpu(row.spec) and kernel == row.spec.kernel:
        options = {"op": "paper_gemv", "knobs": dict(row.spec.knobs)}
    elif kernel == "int16":
        options = {"op": "bcq_gemv", "tables": "int16"}
    return row.executed(prepare(packed, x.device, len(x), x.dtype, **options), x)


def _qigen(row: TimedRow, x: torch.Tensor, drawn: UniformTensor) -> Contestant:
    """OPTQ's way on a CPU, which is QIGen's kernel: GPTQ's codes, dequantized in registers and multiplied."""
    from lutlab.kernels.cpu.qigen import qigen_gemv

    packed = qigen_gemv.prepare(drawn)
    size = packed.words.nbytes + packed.scale.nbytes + packed.zero.nbytes
    copies = qigen_copies(packed, row.copies(size))
    name = qigen_gemv.variant(packed)
    return Contestant(name, size, len(copies), lambda i: qigen_gemv.gemv(x, copies[i]))


def qigen_copies(packed: PackedQIGen, count: int) -> list[PackedQIGen]:
    """Copies of QIGen's words, scales and zero points, each at an address of its own."""
    buffers = ("words", "scale", "zero")
    return [
        dataclasses.replace(packed, **{name: getattr(packed, name).clone() for name in buffers})
        for _ in range(count)
    ]


# ---- torch's dense products ----


def dense(row: TimedRow, weight: torch.Tensor, x: torch.Tensor) -> Contestant:
    """The product x [M, K] with a dense weight [N, K] by torch, in their dtype; on a GPU in the faster layout."""
    name = f"torch {str(weight.dtype).removeprefix('torch.')}"
    if row.cpu:
        return _by_torch(row, name, weight, x, torch.mm)
    across = weight.t().contiguous().t()
    layouts = {f"{name} [N, K]": weight, f"{name} [K, N]": across}
    both = [_by_torch(row, layout, stored, x, torch.mm) for layout, stored in layouts.items()]
    faster, took = _faster(row, both, GpuTimer())
    shape = "x".join(map(str, (*weight.shape, len(x))))
    row.facts.setdefault("cublas_us", {}).setdefault(shape, {}).update(took)
    return faster


def _faster(
    row: TimedRow, entrants: Sequence[Contestant], timer: Timer
) -> tuple[Contestant, dict[str, float]]:
    """The winner of a short race, whose rounds are forgotten, and the microseconds of all by name."""
    race(entrants, timer, _CHOOSING_ROUNDS["cpu" if row.cpu else "gpu"], (row.kind,))
    winner = min(entrants, key=lambda entrant: entrant.seconds(row.kind))
    took = {entrant.name: entrant.seconds(row.kind) * 1e6 for entrant in entrants}
    for entrant in entrants:
        entrant.rounds.clear()
    return winner, took


def _int8(row: TimedRow, x: torch.Tensor, codes: torch.Tensor) -> tuple[Contestant, torch.Tensor]:
    """Eight-bit codes and activations, summed in 32 bits, and the matrix [N, K] float32 that they are.

    On a GPU cuBLAS takes no fewer than 17 rows of x: there are 32 then.
    """
    weight = (codes.int() - 128).to(torch.int8)
    rows = len(x) if row.cpu else max(32, len(x))
    few = torch.zeros(rows, x.shape[1], dtype=torch.int8, device=x.device)
    few[: len(x)] = (32 * x).round().clamp(-127, 127).to(torch.int8)
    return _by_torch(row, "torch int8", weight, few, torch._int_mm), weight.float()


def _by_torch(
    row: TimedRow,
    name: str,
    weight: torch.Tensor,
    x: torch.Tensor,
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Contestant:
    """The product with W [N, K] as it is stored, rows or columns first."""
    copies = [weight, *(weight.clone() for _ in range(row.copies(weight.nbytes) - 1))]
    product = Contestant(name, weight.nbytes, len(copies), lambda i: multiply(x, copies[i].t()))
    return row.checked(product, x, weight)
