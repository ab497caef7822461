"""Microseconds of one matrix product, beside the dense product of the same matrix in the same run.

    speedup_fp16 = seconds of the dense product in 16 bits / own seconds        likewise speedup_fp32
    over_rowwise = own seconds / seconds with one scale a row                   LUT-GEMM Fig. 8, nuQmm Fig. 8
    bandwidth_fraction = own bytes a second / those of reading (CPU) or copying (GPU) in the same run

products.py says who takes turns, timing.py what a time is; weights are cold. On a CPU both dense products are torch's
float32 one, which stands in for cuBLAS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lutlab.evaluators import products
from lutlab.groups import group_length
from lutlab.records import Measurement, RunSpec, Subject
from lutlab.registry import register
from lutlab.timing import COLD, CpuTimer, GpuTimer, race

if TYPE_CHECKING:
    from lutlab.evaluators.products import Entrants

ROUNDS = {"cpu": 7, "cuda": 200}


@register("evaluator", "kernel_latency")
@dataclass(frozen=True)
class KernelLatency:
    """Metrics of a product; samples are the seconds of a call in each round.

    latency_us, baseline_fp16_us, baseline_fp32_us; speedup_fp16, speedup_fp32, over_rowwise; gb_s, bandwidth_fraction;
    bits_per_weight, megabytes, ratio_fp16, ratio_fp32 of what is stored; megabytes_fp16_scale, megabytes_fp32_scale
    where a group is counted with one scale of 16 or 32 bits, as the papers' tables do, and ratio_* likewise;
    group_size; relative_error.
    """

    of_this_machine = True
    rounds: int | None = None

    @staticmethod
    def obstacle(spec: RunSpec) -> str:
        """Why a row cannot be measured here; empty where it can."""
        return products.obstacle(spec)

    def measure(self, subject: Subject) -> Measurement:
        """Needs no model, no text and no tokenizer: the row's RunSpec alone.

        Raises:
            LutlabError: a contestant's product is wrong, or there is no kernel for the row.
        """
        import torch

        spec = subject.run
        entered = products.entrants(spec)
        cpu = spec.device == "cpu"
        rounds = self.rounds or ROUNDS[spec.device.partition(":")[0]]
        with torch.inference_mode():
            race(entered.all(), CpuTimer() if cpu else GpuTimer(), rounds)
        own = entered.own
        return Measurement(
            values=_values(spec, entered),
            n=rounds,
            samples=tuple(own.rounds[COLD]),
            facts=entered.facts
            | {
                "threads": torch.get_num_threads(),
                "copies": own.copies,
                "spread_us": [seconds * 1e6 for seconds in own.spread()],
                "memory_gb_s": entered.memory.bandwidth() * 1e-9,
            },
        )


def _values(spec: RunSpec, entered: Entrants) -> dict[str, float]:
    rows, columns, _ = products.shape_of(spec)
    own, weights = entered.own, rows * columns
    g = group_length(spec.g, columns)
    values = {
        "latency_us": own.seconds() * 1e6,
        "baseline_fp16_us": entered.fp16.seconds() * 1e6,
        "baseline_fp32_us": entered.fp32.seconds() * 1e6,
        "speedup_fp16": own.times(entered.fp16),
        "speedup_fp32": own.times(entered.fp32),
        "gb_s": own.bandwidth() * 1e-9,
        "bandwidth_fraction": own.fraction(entered.memory),
        "bits_per_weight": own.bytes * 8 / weights,
        "megabytes": own.bytes / 1e6,
        "ratio_fp16": 2 * weights / own.bytes,
        "ratio_fp32": 4 * weights / own.bytes,
        "group_size": g,
        "relative_error": entered.facts["relative_errors"][own.name],
    }
    for width in (16, 32):
        bits = spec.q + width / g if spec.method != "none" else width
        values[f"megabytes_fp{width}_scale"] = bits * weights / 8e6
        values[f"ratio_fp{width}_scale"] = width / bits
    if spec.method != "none":
        values["over_rowwise"] = 1 / own.times(entered.rowwise) if entered.rowwise else 1.0
    return values
