"""Energy of a call by the GPU's own counter: NVML's total energy, over windows of at least a second.

    joules = (counter after - counter before) / calls           net_joules = joules - idle watts * seconds / calls
    watts  = (counter after - counter before) / seconds

The counter is advanced some ten times a second, which is why a window is long. Idle watts are those of a window in
which nothing runs. Utilization is sampled inside the window and is what nvidia-smi shows: the share of the time in
which a kernel ran, or in which memory was read or written. NVML comes with nvidia-ml-py, imported where it is needed.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch

WINDOW_SECONDS = 1.0
_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True)
class Energy:
    """Energy of one call, over a window of many. utilization: GPU and memory in percent, means of the samples."""

    joules: float
    net_joules: float
    watts: float
    utilization: tuple[float, float]
    calls: int
    seconds: float


def missing_library() -> str:
    """Package to install; empty where NVML can be asked."""
    if importlib.util.find_spec("pynvml") is None:
        return (
            "energy is read through NVML: pip install nvidia-ml-py (of pip install 'lutlab[gpu]')"
        )
    return ""


class Nvml:
    """NVML's counters of the GPUs that torch names by some indices: joules are added, utilization is the mean.

    Raises:
        LutlabError: nvidia-ml-py is not installed, or a GPU has no energy counter (before Volta).
    """

    def __init__(self, *indices: int) -> None:
        if reason := missing_library():
            raise LutlabError(reason)
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        # by uuid, since torch's order need not be NVML's
        uuids = [torch.cuda.get_device_properties(index).uuid for index in indices]
        self._gpus = [pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") for uuid in uuids]
        try:
            self.joules()
        except pynvml.NVMLError as error:
            raise LutlabError(f"this GPU has no energy counter ({error})") from error

    def joules(self) -> float:
        """Since the driver was loaded."""
        return sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) * 1e-3 for gpu in self._gpus)

    def utilization(self) -> tuple[float, float]:
        """GPU and memory, in percent."""
        rates = [self._nvml.nvmlDeviceGetUtilizationRates(gpu) for gpu in self._gpus]
        gpu, memory = zip(*((float(rate.gpu), float(rate.memory)) for rate in rates), strict=True)
        return statistics.mean(gpu), statistics.mean(memory)

    def facts(self) -> dict[str, Any]:
        """Driver, clocks now and at most, power limit of the first GPU, for a record."""
        nvml, gpu = self._nvml, self._gpus[0]
        kinds = {"sm": nvml.NVML_CLOCK_SM, "memory": nvml.NVML_CLOCK_MEM}
        facts = {"driver": nvml.nvmlSystemGetDriverVersion()}
        for name, kind in kinds.items():
            facts[f"{name}_mhz"] = nvml.nvmlDeviceGetClockInfo(gpu, kind)
            facts[f"{name}_mhz_limit"] = nvml.nvmlDeviceGetMaxClockInfo(gpu, kind)
        return facts | {"power_limit_w": nvml.nvmlDeviceGetPowerManagementLimit(gpu) * 1e-3}


def clocks_of(device: str) -> dict[str, Any]:
    """Nvml.facts of a device right now, or why they are not known: a time can be measured without them."""
    try:
        return Nvml(torch.device(device).index or 0).facts()
    except LutlabError as error:
        return {"clocks": f"not known: {error}"}


def idle_watts(
    counter: Nvml,
    seconds: float = WINDOW_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Watts of a window in which this process asks for nothing."""
    began, before = clock(), counter.joules()
    sleep(seconds)
    return (counter.joules() - before) / (clock() - began)


def energy_of(
    run: Callable[[], object],
    calls: int,
    counter: Nvml,
    idle: float,
    seconds: float = WINDOW_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Energy:
    """Run so many calls, which are waited for, again and again for a window, and divide what it took; idle: watts.

    Raises:
        LutlabError: the counter did not advance.
    """
    run()  # what is compiled or allocated on first use is not counted
    samples, runs = [], 0
    began, before = clock(), counter.joules()
    now = sampled = began
    while now - began < seconds:
        run()
        runs, now = runs + 1, clock()
        if now - sampled >= _SAMPLE_SECONDS:
            samples.append(counter.utilization())
            sampled = now
    spent = counter.joules() - before
    elapsed = clock() - began
    if not spent > 0:
        raise LutlabError(
            f"the GPU's energy counter did not advance in {elapsed:.1f} s: it cannot be measured"
        )
    done = runs * calls
    samples = samples or [counter.utilization()]
    gpu, memory = (statistics.mean(column) for column in zip(*samples, strict=True))
    net = spent - idle * elapsed
    return Energy(spent / done, net / done, spent / elapsed, (gpu, memory), done, elapsed)
