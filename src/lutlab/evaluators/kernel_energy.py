"""Energy of one matrix product on a GPU, beside the dense product of the same matrix in the same run.

    energy_ratio_fp16 = joules of a call / joules of a call of the dense product in 16 bits   likewise energy_ratio_fp32

energy.py says how a joule is counted, contestants.py what runs. The papers' energies are nvidia-smi's watts times
seconds, idle included, and so are energy_mj and the ratios; energy_net_mj is without what the idle GPU would take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lutlab.energy import Energy, Nvml, energy_of, idle_watts, missing_library
from lutlab.evaluators import contestants, products
from lutlab.records import Measurement, RunSpec, Subject
from lutlab.registry import register
from lutlab.timing import COLD, GpuTimer

if TYPE_CHECKING:
    from lutlab.energy import Counter
    from lutlab.timing import Contestant


@register("evaluator", "kernel_energy")
@dataclass(frozen=True)
class KernelEnergy:
    """Metrics of a product, of one call.

    energy_mj, energy_net_mj, power_w, gpu_utilization and memory_utilization in percent, energy_ratio_fp16,
    energy_ratio_fp32.
    """

    of_this_machine = True
    of_products = True

    @staticmethod
    def obstacle(spec: RunSpec) -> str:
        """Why a row cannot be measured here; empty where it can."""
        reason = products.obstacle(spec)
        if not reason and spec.device == "cpu":
            return "no CUDA device: energy is the GPU's own counter's"
        return reason or missing_library()

    def measure(self, subject: Subject) -> Measurement:
        """Needs no model, no text and no tokenizer: the row's RunSpec alone.

        Raises:
            LutlabError: as contestants.enter; no NVML or no counter.
        """
        import torch

        spec = subject.run
        entered = contestants.enter(spec)
        counter = Nvml(torch.device(spec.device).index or 0)
        timer, idle = GpuTimer(), idle_watts(counter)
        with torch.inference_mode():
            of = {
                id(one): _energy(one, timer, counter, idle)
                for one in {id(o): o for o in (entered.fp16, entered.fp32, entered.own)}.values()
            }
        own, fp16, fp32 = (of[id(one)] for one in (entered.own, entered.fp16, entered.fp32))
        return Measurement(
            values={
                "energy_mj": own.joules * 1e3,
                "energy_net_mj": own.net_joules * 1e3,
                "power_w": own.watts,
                "gpu_utilization": own.utilization[0],
                "memory_utilization": own.utilization[1],
                "energy_ratio_fp16": own.joules / fp16.joules,
                "energy_ratio_fp32": own.joules / fp32.joules,
            },
            n=own.calls,
            facts=entered.facts
            | counter.facts()
            | {"idle_w": idle, "window_seconds": own.seconds, "calls": own.calls},
        )


def _energy(one: Contestant, timer: GpuTimer, counter: Counter, idle: float) -> Energy:
    import torch

    graph, calls = timer.graph(one, COLD)

    def run() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return energy_of(run, calls, counter, idle)
