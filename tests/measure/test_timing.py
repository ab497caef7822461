"""Timer and energy counter with clocks and devices that are not real: what is called when, and what is made of it."""

import importlib.machinery
import subprocess
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest
import torch
from tests.base.refusals import refused

from lutlab.measure import energy, timing
from lutlab.measure.energy import energy_of, idle_watts
from lutlab.measure.timing import COLD, RESIDENT, Contestant, CpuTimer, GpuTimer, race


def contestant(name="a", size=100, copies=3, rounds=None, calls=None):
    noted = [] if calls is None else calls
    return Contestant(name, size, copies, lambda i: noted.append((name, i)), rounds or {})


def timer(calls, *seconds):
    """A timer whose next calls take so many seconds each."""
    readings = iter([reading for end in seconds for reading in (0, end)])
    return CpuTimer(calls=calls, clock=lambda: next(readings))


def test_contestants_take_turns_round_by_round():
    order, both = [], [contestant("a"), contestant("b")]

    def count(contestant, kind):
        order.append((contestant.name, kind))
        return float(len(order))

    race(both, count, 2, (COLD, RESIDENT))
    assert order == 2 * [("a", COLD), ("a", RESIDENT), ("b", COLD), ("b", RESIDENT)]
    assert both[0].rounds == {COLD: [1.0, 5.0], RESIDENT: [2.0, 6.0]}
    race(both, count, 1)
    assert both[1].rounds == {COLD: [3.0, 7.0, 10.0], RESIDENT: [4.0, 8.0]}, "rounds are added"
    refused("at least 1", race, both, count, 0)
    refused("a took 0.0 s", race, both, lambda *_: 0.0, 1)


def test_a_cpu_round_takes_the_next_copies_or_repeats_one_and_leaves_out_the_first_call():
    calls = []
    own = contestant(copies=8, calls=calls)
    assert timer(4, 100, 1, 2, 3, 4)(own, COLD) == 1  # of 1 .. 4
    assert timer(4, 100, 4, 3, 2, 1)(own, COLD) == 1
    assert [copy for _, copy in calls] == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1], "8 copies in turn"
    calls.clear()
    timer(4, *[1] * 5)(own, RESIDENT)
    assert [copy for _, copy in calls] == [0] * 5


@pytest.mark.parametrize(("calls", "quartile"), [(1, 7), (2, 5), (4, 5), (5, 6), (20, 6)])
def test_a_round_is_a_call_that_was_measured(calls, quartile):
    """Of 9 (left out), then 7, 5, 6, 8 and 9 again and again."""
    own = timer(calls, 9, *[(7, 5, 6, 8, 9)[i % 5] for i in range(calls)])
    assert own(contestant(copies=1), RESIDENT) == quartile


def test_medians_and_ratios_are_of_rounds():
    a = contestant("a", 100, rounds={COLD: [1.0, 2.0, 10.0]})
    b = contestant("b", 300, rounds={COLD: [4.0, 2.0, 30.0]})
    assert (a.seconds(), a.bandwidth(), a.spread()) == (2, 50, (1.5, 6.0))
    assert a.times(b) == 3, "of 4, 1 and 3, not 4 / 2"
    assert a.fraction(b) == pytest.approx(1)  # of 4/3, 1/3 and 1
    assert contestant(rounds={COLD: [7.0]}).spread() == (7.0, 7.0)


def test_products_of_a_layer_are_called_in_turn():
    calls, alone = [], contestant()
    parts = [contestant("a", 100, 3, calls=calls), contestant("b", 7, 2, calls=calls)]
    both = timing.together(parts)
    assert (both.name, both.bytes, both.copies) == ("a + b", 107, 3)
    for copy in range(both.copies):
        both.run(copy)
    assert calls == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 0)]
    assert timing.together([alone]) is alone
    assert (alone.kernels(), both.kernels()) == (["a"], ["a", "b"])


class FakeCuda:
    """What GpuTimer asks of torch.cuda: streams and graphs that note calls, events 6 ms apart."""

    def __init__(self):
        self.events, self.capturing = [], False
        note = lambda event: lambda *_: self.events.append(event)  # noqa: E731
        self.Stream = self.current_stream = lambda: SimpleNamespace(wait_stream=note("wait"))
        self.CUDAGraph = lambda: SimpleNamespace(replay=note("replay"))
        self.synchronize = note("synchronize")
        self.Event = lambda enable_timing: SimpleNamespace(
            record=note("event"),
            synchronize=self.synchronize,
            elapsed_time=lambda other: 6.0 * enable_timing,
        )

    @contextmanager
    def stream(self, stream):
        yield

    @contextmanager
    def graph(self, graph):
        self.capturing = True
        yield
        self.capturing = False


def test_a_gpu_round_is_a_replay_of_a_graph_of_whole_rotations(monkeypatch):
    cuda, captured = FakeCuda(), []
    monkeypatch.setattr(torch, "cuda", cuda)
    own = Contestant("a", 1, 4, lambda i: captured.append(i) if cuda.capturing else None)
    timer = GpuTimer(calls=6)
    assert timer(own, COLD) == pytest.approx(6e-3 / 8)
    assert captured == [0, 1, 2, 3, 0, 1, 2, 3]
    cuda.events.clear()
    assert timer(own, COLD) == pytest.approx(6e-3 / 8)
    assert cuda.events == ["event", "replay", "event", "synchronize"], "captured once"
    timer(own, RESIDENT)
    assert captured[8:] == [0] * 6


def test_copies_fill_what_is_to_be_cold_and_the_reader_reads_them():
    assert [timing.copies_for(size, 1000) for size in (100, 101, 1000, 5000)] == [10, 10, 1, 1]
    reader = timing.cpu_reader(3 * timing.READ_BYTES, threads=1)
    assert (reader.bytes, reader.copies) == (timing.READ_BYTES, 3)
    for copy in range(reader.copies):
        reader.run(copy)


def test_a_peer_without_torch_can_import_the_timer():
    code = "import sys, lutlab.measure.timing; sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.gpu
def test_a_gpu_times_a_copy():
    copier = timing.gpu_copier(2**28)
    race([copier], GpuTimer(), 5)
    assert len(copier.rounds[COLD]) == 5


class FakeGpu:
    """Takes `watts` while the clock goes on; a call takes `seconds`."""

    def __init__(self, watts, seconds=0.25):
        self.now, self.watts, self.seconds, self.runs = 100.0, watts, seconds, 0

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def run(self):
        self.sleep(self.seconds)
        self.runs += 1

    def joules(self):
        return 1e6 + self.watts * self.now

    def utilization(self):
        return 10.0 * self.runs, 5.0 * self.runs


def test_energy_is_divided_by_the_calls_of_the_window_and_idle_watts_by_its_seconds():
    gpu = FakeGpu(watts=300.0)
    spent = energy_of(gpu.run, 10, gpu, idle=100.0, seconds=1.0, clock=gpu.clock)
    assert gpu.runs == 1 + 4, "the first run is not counted"
    assert (spent.calls, spent.seconds) == (40, 1.0)
    joules = (spent.joules, spent.net_joules, spent.watts)
    assert joules == pytest.approx((300 / 40, 200 / 40, 300))
    assert spent.utilization == (35.0, 17.5), "of runs 2, 3, 4 and 5"
    gpu = FakeGpu(watts=70.0)
    assert idle_watts(gpu, 2.0, gpu.clock, gpu.sleep) == pytest.approx(70)
    assert gpu.now == 102


def test_a_run_longer_than_the_window_counts_once_and_a_counter_that_stands_still_never():
    gpu = FakeGpu(watts=300.0, seconds=3.0)
    spent = energy_of(gpu.run, 1, gpu, idle=0.0, seconds=1.0, clock=gpu.clock)
    assert (spent.calls, spent.seconds, spent.joules) == (1, 3.0, pytest.approx(900))
    still = FakeGpu(watts=0.0)
    refused("did not advance", energy_of, still.run, 1, still, idle=0.0, clock=still.clock)


@pytest.fixture
def nvml(monkeypatch):
    """pynvml, as far as it is used, of two GPUs, which it numbers the other way round than torch."""

    def clock(mhz):
        return lambda gpu, kind: mhz * kind

    module = ModuleType("pynvml")
    module.__spec__ = importlib.machinery.ModuleSpec("pynvml", None)
    module.NVMLError, module.NVML_CLOCK_SM, module.NVML_CLOCK_MEM = KeyError, 1, 2
    module.nvmlInit = lambda: None
    module.nvmlDeviceGetHandleByUUID = lambda uuid: uuid
    module.nvmlDeviceGetTotalEnergyConsumption = {"GPU-0": 1500, "GPU-1": 500}.__getitem__
    rates = {f"GPU-{i}": SimpleNamespace(gpu=used, memory=40) for i, used in enumerate((97, 2))}
    module.nvmlDeviceGetUtilizationRates = rates.__getitem__
    module.nvmlSystemGetDriverVersion = lambda: "600.1"
    module.nvmlDeviceGetClockInfo, module.nvmlDeviceGetMaxClockInfo = clock(1000), clock(2000)
    module.nvmlDeviceGetPowerManagementLimit = lambda gpu: 700_000
    properties = [SimpleNamespace(uuid=uuid) for uuid in ("1", "0")]
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_nvml_is_asked_in_its_units(nvml):
    gpu = energy.Nvml(1)
    assert (gpu.joules(), gpu.utilization()) == (1.5, (97.0, 40.0))
    assert gpu.facts() == {
        "driver": "600.1", "sm_mhz": 1000, "sm_mhz_limit": 2000,
        "memory_mhz": 2000, "memory_mhz_limit": 4000, "power_limit_w": 700.0,
    }  # fmt: skip
    assert energy.clocks_of("cuda:1") == gpu.facts()
    both = energy.Nvml(0, 1)
    assert (both.joules(), both.utilization()) == (2.0, (49.5, 40.0)), "of 97 and 2"


def test_without_nvml_or_a_counter_the_cure_is_told(nvml, monkeypatch):
    nvml.nvmlDeviceGetTotalEnergyConsumption = {}.__getitem__
    refused("no energy counter", energy.Nvml, 0)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    refused("pip install nvidia-ml-py", energy.Nvml, 0)
    assert "pip install nvidia-ml-py" in energy.clocks_of("cuda")["clocks"]
