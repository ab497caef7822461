"""Microseconds of one matrix product, beside the dense product of the same matrix in the same run.

    speedup_fp16 = seconds of the dense product / own seconds, in 16 bits on a GPU        likewise speedup_fp32
    over_rowwise = own seconds / seconds with one scale a row                   LUT-GEMM Fig. 8, nuQmm Fig. 8
    bandwidth_fraction = own bytes a second / those of reading (CPU) or copying (GPU) in the same run

products.py says what a row may be, contestants.py who takes turns, timing.py what a time is. Weights are cold, or
resident in the caches with evaluator.kernel_latency.weights=resident, those of the dense product too. On a CPU torch
stands in for cuBLAS, in 16 bits by the faster of its bfloat16 and float32 products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from lutlab.base.groups import group_count, group_length
from lutlab.base.lazy import torch
from lutlab.base.limits import Count
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, ProductRun
from lutlab.evaluators.contract import Metric, ProductEvaluator
from lutlab.kernels.cpu import paper_tables
from lutlab.measure import contestants, products
from lutlab.measure.contestants import Entrants
from lutlab.measure.energy import clocks_of
from lutlab.measure.timing import COLD, CpuTimer, GpuTimer, race
from lutlab.parallel import products as tensor_parallel
from lutlab.parallel import ranks

# On a CPU so many that a second in which the machine does something else is no more than a few of them.
ROUNDS = {"cpu": 25, "cuda": 200}


def _of_size(width: int) -> tuple[Metric, ...]:
    """Sizes against dense weights of so many bits."""
    dense = f"fp{width}"
    ratios = (
        Metric(f"ratio_{dense}{how}", "x", f"{dense} size over own", False, quantized_only=True)
        for how in ("_table", "_eq", "")
    )
    return (
        Metric(f"baseline_{dense}_mb", "MB", f"{dense} weights", quantized_only=True),
        Metric(f"megabytes_{dense}_table", "MB", f"size, {dense} scales", quantized_only=True),
        *ratios,
    )


_OF_TABLES = (
    Metric("additions_saved", "x", "additions of a dense product over Eq. 2", False, True, "bcq"),
    Metric("table_additions", "of Eq. 2", "additions that build tables", True, True, "bcq"),
    Metric("mu", "columns", "mu", True, True, "bcq"),
)
_METRICS = (
    Metric("latency_us", "µs", "product"),
    Metric("baseline_fp16_us", "µs", "dense product, 16 bits"),
    Metric("baseline_fp32_us", "µs", "dense product"),
    Metric("speedup_fp16", "x", "speed-up over dense, 16 bits", lower_is_better=False),
    Metric("speedup_fp32", "x", "speed-up over dense", lower_is_better=False),
    Metric("best_us", "µs", "best kernel"),
    Metric("best_speedup_fp16", "x", "best speed-up over dense, 16 bits", lower_is_better=False),
    Metric("best_speedup_fp32", "x", "best speed-up over dense", lower_is_better=False),
    Metric("gb_s", "GB/s", "read", lower_is_better=False),
    Metric("bandwidth_fraction", "of memory", "read", lower_is_better=False),
    Metric("bits_per_weight", "bits/weight", "size"),
    Metric("relative_error", "|y - x W^T| / |x W^T|", "error"),
    *_of_size(16),
    *_of_size(32),
    Metric("group_size", "weights", "group", quantized_only=True),
    *_OF_TABLES,
    Metric("over_rowwise", "x", "time over row-wise", quantized_only=True),
    Metric("compute_percent", "%", "compute", lower_is_better=False),
    Metric("communication_percent", "%", "communication"),
)


@register("evaluator", "kernel_latency")
@dataclass(frozen=True)
class KernelLatency(ProductEvaluator):
    """Metrics of a product; samples are the seconds of a call in each round.

    latency_us, baseline_fp16_us, baseline_fp32_us, speedup_fp16, speedup_fp32; best_us, best_speedup_fp16 and
    best_speedup_fp32 of lutlab's best kernel where the row's is the papers', else the same again; gb_s,
    bandwidth_fraction; bits_per_weight, as stored; relative_error of the row's product; compute_percent and
    communication_percent, 100 and 0 of one device, of several as tensor_parallel.py says. Of binary codes
    additions_saved, N K over the additions of LUT-GEMM ICLR Eq. 2 with the row's mu and t_h, counted and not measured,
    table_additions, the share of them that build tables, and mu, the columns of a table. Of quantized weights also
    over_rowwise; group_size, the most weights that share a scale; and of the size, against dense weights of so many
    bits, baseline_fp16_mb and ratio_fp16 as stored, megabytes_fp16_table and ratio_fp16_table with one scale of 16 bits
    a group, as the papers' tables print it, ratio_fp16_eq with q of them, as their equations say (LUT-GEMM Eq. 7, nuQmm
    Eq. 3); likewise fp32.

    Attributes:
        rounds: number of timed rounds; null: 25 on a CPU, 200 on a GPU.
        weights: cold: of so many copies that none is in a cache when its turn comes; resident: one copy again and
            again, which is in a cache where it fits. bandwidth_fraction is of cold reading or copying in both.
    """

    version: ClassVar[int] = 3
    of_this_machine: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = _METRICS
    rounds: Count | None = None
    weights: Literal["cold", "resident"] = COLD

    @classmethod
    def obstacle(cls, run: ProductRun) -> str:
        """Reason why the product cannot be timed, by products.obstacle."""
        return products.obstacle(run)

    def measure(self, run: ProductRun) -> Measurement:
        """The values of a race of the row's product with the dense ones."""
        rounds = self.rounds or ROUNDS[run.device.partition(":")[0]]
        if (gpus := products.gpus_of(run)) > 1:
            task = (run, rounds, self.weights)
            entered, compute = ranks.run(tensor_parallel.time_on, gpus, run.device, task)
        else:
            entered, compute = _timed(run, rounds, self.weights), 1.0
        clocks = {} if run.device == "cpu" else clocks_of(run.device)
        product = entered.own
        shares = {"compute_percent": 100 * compute, "communication_percent": 100 * (1 - compute)}
        return Measurement(
            values=_values(run, entered, self.weights) | shares,
            n=rounds,
            samples=tuple(product.rounds[self.weights]),
            facts=entered.facts
            | clocks
            | {
                "threads": torch.get_num_threads(),
                "weights": self.weights,
                "copies": product.copies if self.weights == COLD else 1,
                "spread_us": [seconds * 1e6 for seconds in product.spread(self.weights)],
                "memory_gb_s": entered.memory.bandwidth() * 1e-9,
            },
        )


def _counted(spec: ProductRun) -> dict[str, float]:
    """The additions of Eq. 2, of all the row's products."""
    knobs = {name: value for name, value in spec.knobs if name in paper_tables.KNOBS}
    building = reading = dense = 0
    for rows, columns, tokens in spec.shapes:
        built, read = paper_tables.additions((rows, columns), int(spec.q), spec.g, knobs)
        building, reading = building + tokens * built, reading + tokens * read
        dense += tokens * rows * columns
    additions = building + reading
    return {
        "additions_saved": dense / additions,
        "table_additions": building / additions,
        "mu": (paper_tables.KNOBS | knobs)["mu"],
    }


def _timed(spec: ProductRun, rounds: int, kind: str) -> Entrants:
    """The contestants of one device, after their race."""
    entered = contestants.enter(spec, kind)
    timer = CpuTimer() if spec.device == "cpu" else GpuTimer()
    memory, *others = entered.all()
    with torch.inference_mode():
        for _ in range(rounds):
            race([memory], timer, 1, (COLD,))
            race(others, timer, 1, (kind,))
    return entered


def _values(spec: ProductRun, entered: Entrants, kind: str) -> dict[str, float]:
    shapes, product = spec.shapes, entered.own
    weights = sum(rows * columns for rows, columns, _ in shapes)
    errors = entered.facts["relative_errors"]
    values = {
        "latency_us": product.seconds(kind) * 1e6,
        "baseline_fp16_us": entered.fp16.seconds(kind) * 1e6,
        "baseline_fp32_us": entered.fp32.seconds(kind) * 1e6,
        "speedup_fp16": product.times(entered.fp16, kind),
        "speedup_fp32": product.times(entered.fp32, kind),
        "best_us": entered.best.seconds(kind) * 1e6,
        "best_speedup_fp16": entered.best.times(entered.fp16, kind),
        "best_speedup_fp32": entered.best.times(entered.fp32, kind),
        "gb_s": product.bandwidth(kind) * 1e-9,
        "bandwidth_fraction": product.fraction(entered.memory, kind),
        "bits_per_weight": product.bytes * 8 / weights,
        "relative_error": max(errors[name] for name in product.kernels()),
    }
    if spec.method == "none":
        return values
    scales = sum(rows * group_count(spec.g, columns) for rows, columns, _ in shapes)
    for width in (16, 32):
        table, equation = (spec.q * weights + n * width * scales for n in (1, spec.q))
        values[f"baseline_fp{width}_mb"] = width * weights / 8e6
        values[f"megabytes_fp{width}_table"] = table / 8e6
        values[f"ratio_fp{width}_table"] = width * weights / table
        values[f"ratio_fp{width}_eq"] = width * weights / equation
        values[f"ratio_fp{width}"] = width * weights / (8 * product.bytes)
    if spec.method == "bcq":
        values |= _counted(spec)
    rowwise = entered.rowwise
    return values | {
        "group_size": max(group_length(spec.g, columns) for _, columns, _ in shapes),
        "over_rowwise": 1 / product.times(rowwise, kind) if rowwise else 1.0,
    }
