"""Energy of one matrix product on a GPU, beside the dense product of the same matrix in the same run.

    energy_ratio_fp16 = joules of a call / joules of a call of the dense product in 16 bits   likewise energy_ratio_fp32

measure/energy.py says how a joule is counted, measure/contestants.py what runs. The papers' energies are nvidia-smi's
watts times seconds, idle included, and so are energy_mj and the ratios; energy_net_mj is without what the idle GPU
would take. Where GPUs share a product (tensor_parallel.py), joules are those of all of them over the same window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, ProductRun
from lutlab.evaluators.contract import Metric, ProductEvaluator
from lutlab.measure import contestants, products
from lutlab.measure.energy import Energy, Nvml, energy_of, idle_watts, missing_library
from lutlab.measure.timing import COLD, Contestant, GpuTimer
from lutlab.parallel import products as tensor_parallel
from lutlab.parallel import ranks
from lutlab.parallel.ranks import Rank

# Replays between two looks at a clock, while which all ranks run on their own.
_RUN_SECONDS = 0.1


class Energies(NamedTuple):
    """Energy of a call of the row's product and of the dense ones; idle_w: idle watts of all the row's GPUs."""

    own: Energy
    fp16: Energy
    fp32: Energy
    idle_w: float
    facts: dict[str, Any]


@register("evaluator", "kernel_energy")
class KernelEnergy(ProductEvaluator):
    """Metrics of a product, of one call.

    energy_mj, energy_net_mj, power_w, gpu_utilization and memory_utilization in percent, energy_ratio_fp16,
    energy_ratio_fp32. Of GPUs that share a product, power and utilization are the mean of theirs.
    """

    version: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("energy_mj", "mJ", "product"),
        Metric("energy_net_mj", "mJ", "product, without idle"),
        Metric("power_w", "W", "power"),
        Metric("gpu_utilization", "%", "GPU utilization", lower_is_better=False),
        Metric("memory_utilization", "%", "memory utilization", lower_is_better=False),
        Metric("energy_ratio_fp16", "x", "energy over fp16"),
        Metric("energy_ratio_fp32", "x", "energy over fp32"),
    )
    of_this_machine: ClassVar[bool] = True

    @classmethod
    def obstacle(cls, run: ProductRun) -> str:
        """Reason why it cannot be measured: products.obstacle's, no GPU, or no library that reads its counter."""
        reason = products.obstacle(run)
        if not reason and run.device == "cpu":
            return "no CUDA device: energy is the GPU's own counter's"
        return reason or missing_library()

    def measure(self, run: ProductRun) -> Measurement:
        """The joules of a call, beside those of the dense products."""
        gpus = products.gpus_of(run)
        energies = _of_one(run) if gpus == 1 else ranks.run(_of_rank, gpus, run.device, (run,))
        call = energies.own
        return Measurement(
            values={
                "energy_mj": call.joules * 1e3,
                "energy_net_mj": call.net_joules * 1e3,
                "power_w": call.watts / gpus,
                "gpu_utilization": call.utilization[0],
                "memory_utilization": call.utilization[1],
                "energy_ratio_fp16": call.joules / energies.fp16.joules,
                "energy_ratio_fp32": call.joules / energies.fp32.joules,
            },
            n=call.calls,
            facts=energies.facts
            | {"idle_w": energies.idle_w, "window_seconds": call.seconds, "calls": call.calls},
        )


def _of_one(spec: ProductRun) -> Energies:
    entered = contestants.enter(spec)
    counter = Nvml(torch.device(spec.device).index or 0)
    timer, idle = GpuTimer(), idle_watts(counter)
    places, energies = (entered.fp16, entered.fp32, entered.own), {}
    with torch.inference_mode():
        for contestant in places:  # a dense product may be the row's own
            if id(contestant) not in energies:
                energies[id(contestant)] = _energy(contestant, timer, counter, idle)
    fp16, fp32, product = (energies[id(contestant)] for contestant in places)
    return Energies(product, fp16, fp32, idle, entered.facts | counter.facts())


def _energy(contestant: Contestant, timer: GpuTimer, counter: Nvml, idle: float) -> Energy:
    graph, calls = timer.graph(contestant, COLD)

    def run() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return energy_of(run, calls, counter, idle)


def _of_rank(rank: Rank, spec: ProductRun) -> Energies | None:
    """The dense products of rank 0's GPU alone, then the shared one; None but of rank 0."""
    beside = None if rank.index else _of_one(tensor_parallel.alone(spec, rank))
    rank.largest(0.0)  # with idle GPUs until then
    whole, _, facts = tensor_parallel.share(spec, rank)
    timer = GpuTimer(tensor_parallel.CALLS)
    with torch.inference_mode():
        graph, calls = timer.graph(whole, COLD)
        seconds = tensor_parallel.slowest(rank, timer)(whole, COLD)
        replays = math.ceil(_RUN_SECONDS / (seconds * calls))

        def run() -> None:
            for _ in range(replays):
                graph.replay()
            torch.cuda.synchronize()

        shared = rank.lead(run, lambda run: _of_all(run, replays * calls, rank.count))
    if beside is None:
        return None
    energy, idle_w = shared
    facts = tensor_parallel.facts_of(beside.facts, whole, facts)
    return beside._replace(own=energy, idle_w=idle_w, facts=facts)


def _of_all(run: Callable[[], None], calls: int, gpus: int) -> tuple[Energy, float]:
    """Energy of a call that so many GPUs share, and their idle watts."""
    counter = Nvml(*range(gpus))
    idle = idle_watts(counter)
    return energy_of(run, calls, counter, idle), idle
