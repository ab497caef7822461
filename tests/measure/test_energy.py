"""The energy of calls with a GPU that is not real: counters and clocks that are known."""

import importlib.machinery
import sys
import types

import pytest
import torch

from lutlab.base.errors import LutlabError
from lutlab.measure import energy
from lutlab.measure.energy import energy_of, idle_watts


class FakeGpu:
    """Takes `watts` while the clock goes on; a call takes `seconds`."""

    def __init__(self, watts, seconds=0.25):
        self.now, self.watts, self.seconds, self.runs = 100.0, watts, seconds, 0

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def run(self):
        self.now += self.seconds
        self.runs += 1

    def joules(self):
        return 1e6 + self.watts * self.now

    def utilization(self):
        return 10.0 * self.runs, 5.0 * self.runs


def test_idle_watts_are_the_counters_over_the_window():
    gpu = FakeGpu(watts=70.0)
    assert idle_watts(gpu, 2.0, gpu.clock, gpu.sleep) == pytest.approx(70)
    assert gpu.now == 102


def test_energy_is_divided_by_the_calls_of_the_window():
    gpu = FakeGpu(watts=300.0)
    found = energy_of(gpu.run, 10, gpu, idle=100.0, seconds=1.0, clock=gpu.clock)
    assert gpu.runs == 1 + 4, "the first run is not counted"
    assert (found.calls, found.seconds) == (40, 1.0)
    assert found.joules == pytest.approx(300 / 40)
    assert found.net_joules == pytest.approx(200 / 40)
    assert found.watts == pytest.approx(300)
    assert found.utilization == (35.0, 17.5), "of runs 2, 3, 4 and 5"


def test_a_run_longer_than_the_window_counts_once():
    gpu = FakeGpu(watts=300.0, seconds=3.0)
    found = energy_of(gpu.run, 1, gpu, idle=0.0, seconds=1.0, clock=gpu.clock)
    assert (found.calls, found.seconds, found.joules) == (1, 3.0, pytest.approx(900))


def test_a_counter_that_stands_still_is_refused():
    gpu = FakeGpu(watts=0.0)
    with pytest.raises(LutlabError, match="did not advance"):
        energy_of(gpu.run, 1, gpu, idle=0.0, clock=gpu.clock)


class FakeNvml(types.ModuleType):
    """pynvml, as far as it is used."""

    NVMLError = RuntimeError
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    def __init__(self, counts=True):
        super().__init__("pynvml")
        self.__spec__ = importlib.machinery.ModuleSpec("pynvml", None)
        self.counts, self.asked = counts, []

    def nvmlInit(self):
        self.asked.append("init")

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):
        if not self.counts:
            raise self.NVMLError("Not Supported")
        return {"GPU-0": 1500, "GPU-1": 500}[gpu]

    def nvmlDeviceGetUtilizationRates(self, gpu):
        return types.SimpleNamespace(gpu={"GPU-0": 97, "GPU-1": 2}[gpu], memory=40)

    def nvmlSystemGetDriverVersion(self):
        return "600.1"

    def nvmlDeviceGetClockInfo(self, gpu, kind):
        return 1000 * kind

    def nvmlDeviceGetMaxClockInfo(self, gpu, kind):
        return 2000 * kind

    def nvmlDeviceGetPowerManagementLimit(self, gpu):
        return 700_000


@pytest.fixture
def gpus(monkeypatch):
    """Two, which NVML numbers the other way round."""
    of = {index: types.SimpleNamespace(uuid=str(1 - index)) for index in (0, 1)}
    monkeypatch.setattr(torch.cuda, "get_device_properties", of.get)


@pytest.mark.usefixtures("gpus")
def test_nvml_is_asked_in_its_units(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    gpu = energy.Nvml(1)
    assert gpu.joules() == 1.5
    assert gpu.utilization() == (97.0, 40.0)
    assert gpu.facts() == {
        "driver": "600.1", "sm_mhz": 1000, "sm_mhz_limit": 2000,
        "memory_mhz": 2000, "memory_mhz_limit": 4000, "power_limit_w": 700.0,
    }  # fmt: skip
    assert energy.clocks_of("cuda:1") == gpu.facts()


@pytest.mark.usefixtures("gpus")
def test_gpus_that_work_together_are_counted_together(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    both = energy.Nvml(0, 1)
    assert both.joules() == 2.0
    assert both.utilization() == (49.5, 40.0), "of 97 and 2"


@pytest.mark.usefixtures("gpus")
def test_without_nvml_or_a_counter_the_cure_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(LutlabError, match="pip install nvidia-ml-py"):
        energy.Nvml(0)
    assert "pip install nvidia-ml-py" in energy.clocks_of("cuda")["clocks"]
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(counts=False))
    with pytest.raises(LutlabError, match="no energy counter"):
        energy.Nvml(0)
