"""What the times and the energies of a product become, and why there are none; they are made up here."""

import sys
from types import SimpleNamespace

import pytest
import torch
from tests.evaluators.items import check

from lutlab.base.specs import ProductRun
from lutlab.evaluators import kernel_energy, kernel_latency
from lutlab.evaluators.kernel_energy import Energies, KernelEnergy
from lutlab.evaluators.kernel_latency import KernelLatency
from lutlab.measure import contestants
from lutlab.measure.contestants import Entrants
from lutlab.measure.energy import Energy
from lutlab.measure.timing import COLD, Contestant
from lutlab.parallel import ranks

SIZES = {"own": 3000, "best": 3000, "dense": 30720, "rowwise": 2900, "read": 8000}
DENSE = {"method": "none", "q": 16, "g": -1}
ON_GPU = {"device": "cuda", "dtype": "float16"}


def row(**more):
    return ProductRun(((96, 80, 1),), **{"method": "bcq", "q": 3, "g": 16, **more})


@pytest.fixture
def race(monkeypatch):
    """Measures a row whose rounds take seconds by contestant and kind; own, best and rowwise are named, or "none"."""

    def run(spec, own, best, rowwise, seconds, **options):
        entered = {name: Contestant(name, size, 2, lambda i: None) for name, size in SIZES.items()}
        dense, facts = entered["dense"], {"kernel": [own], "relative_errors": {own: 1e-7}}
        places = (entered[own], entered[best], dense, dense, entered.get(rowwise), entered["read"])
        monkeypatch.setattr(contestants, "enter", lambda spec, kind: Entrants(*places, facts))
        clocks = {key: iter(rounds) for key, rounds in seconds.items()}
        timer = lambda contestant, kind: next(clocks[contestant.name, kind])  # noqa: E731
        monkeypatch.setattr(kernel_latency, "CpuTimer", lambda: timer)
        return KernelLatency(**options).measure(spec)

    return run


def test_speed_is_a_ratio_of_the_same_rounds(race):
    rounds = {
        "own": (1e-6, 2e-6, 9e-6), "best": (1e-6, 1e-6, 5e-6), "dense": (4e-6, 4e-6, 45e-6),
        "rowwise": (1e-6, 1e-6, 9e-6), "read": (2e-6,) * 3,
    }  # fmt: skip
    seconds = {(name, "cold"): times for name, times in rounds.items()}
    measured = race(row(), "own", "best", "rowwise", seconds, rounds=3)
    speeds = {
        "latency_us": 2, "speedup_fp16": 4, "speedup_fp32": 4,  # of 4, 2, 5
        "best_speedup_fp16": 4, "best_speedup_fp32": 4,  # of 4, 4, 9
        "over_rowwise": 1,  # of 1, 2, 1
        "gb_s": 1.5, "bandwidth_fraction": 3 / 8,  # of 3/4, 3/8, 1/12
    }  # fmt: skip
    sizes = {
        "bits_per_weight": 3000 * 8 / (96 * 80), "baseline_fp32_mb": 4 * 96 * 80 / 1e6,
        "megabytes_fp16_table": (3 + 16 / 16) * 96 * 80 / 8e6, "ratio_fp32_table": 32 / (3 + 32 / 16),
        "ratio_fp16": 2 * 96 * 80 / 3000, "ratio_fp16_eq": 16 / (3 * (1 + 16 / 16)),
    }  # fmt: skip
    check(measured, speeds | sizes)
    assert (measured.values["group_size"], measured.values["relative_error"]) == (16, 1e-7)
    assert (measured.samples, measured.facts["copies"]) == ((1e-6, 2e-6, 9e-6), 2)
    assert measured.facts["memory_gb_s"] == pytest.approx(4)


def test_resident_weights_are_told_against_cold_memory_and_a_dense_row_is_one_times_itself(race):
    each = {("own", "resident"): 1e-6, ("dense", "resident"): 3e-6, ("read", "cold"): 2e-6}
    seconds = {key: [time] * 3 for key, time in each.items()}
    measured = race(row(), "own", "own", "none", seconds, rounds=3, weights="resident")
    check(measured, {"speedup_fp16": 3, "gb_s": 3, "bandwidth_fraction": 3 / 4})
    assert measured.samples == (1e-6,) * 3
    assert (measured.facts["weights"], measured.facts["copies"]) == ("resident", 1)
    seconds = {("dense", "cold"): (3e-6, 5e-6), ("read", "cold"): (1e-6, 1e-6)}
    values = race(row(**DENSE), "dense", "dense", "none", seconds, rounds=2).values
    assert values["speedup_fp32"] == values["best_speedup_fp16"] == 1
    assert "over_rowwise" not in values


def test_a_shared_product_is_compared_with_one_device_and_with_what_it_computes(monkeypatch):
    sizes = {"whole": (960, 4e-6, 8e-6), "dense": (960, 8e-6, 16e-6), "copy": (1920, 4e-6, 4e-6)}
    whole, dense, copies = (Contestant(k, v, 3, None, {COLD: s}) for k, (v, *s) in sizes.items())
    facts = {"relative_errors": {"whole": 1e-4}, "devices": 2, "kernel": ["whole"]}
    entrants = Entrants(whole, whole, dense, dense, None, copies, facts)
    monkeypatch.setattr(ranks, "run", lambda job, count, device, arguments: (entrants, 0.75))
    spec = ProductRun(((48, 10, 1),), "none", 16, -1, kernel="tensor_parallel_2")
    measured = KernelLatency(rounds=2).measure(spec)
    speeds = {"latency_us": 6, "best_us": 6, "speedup_fp16": 2, "speedup_fp32": 2}
    parts = {"communication_percent": 25, "compute_percent": 75, "bits_per_weight": 16}
    check(measured, speeds | parts | {"bandwidth_fraction": 0.375})  # of 1/2 and 1/4
    assert "over_rowwise" not in measured.values
    assert (measured.samples, measured.facts["devices"]) == ((4e-6, 8e-6), 2)


def test_why_energy_is_not_counted(monkeypatch):
    assert "no CUDA device" in KernelEnergy.obstacle(row())
    assert "needs 2 GPUs" in KernelEnergy.obstacle(row(**DENSE, kernel="tensor_parallel_2"))
    with monkeypatch.context() as patch:
        patch.setattr(kernel_energy, "missing_library", lambda: "")
        assert KernelEnergy.obstacle(row(**ON_GPU)) == ""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install nvidia-ml-py" in KernelEnergy.obstacle(row(device="cuda"))


def test_energy_is_a_ratio_of_the_same_run(monkeypatch):
    own, dense16, dense32 = (Contestant(name, 1, 2, lambda i: None) for name in ("own", "16", "32"))
    joules = {"own": 0.002, "16": 0.008, "32": 0.016}
    entered = Entrants(own, own, dense16, dense32, None, None, {"kernel": ["own"]})
    counter = SimpleNamespace(facts=lambda: {"driver": "600.1"})

    def energy(contestant, timer, *counted):
        assert counted == (counter, 75.0)
        total = joules[contestant.name]
        return Energy(total, total / 2, 300.0, (97.0, 40.0), calls=500, seconds=1.0)

    monkeypatch.setattr(contestants, "enter", lambda spec: entered)
    monkeypatch.setattr(kernel_energy, "Nvml", lambda index: counter)
    monkeypatch.setattr(kernel_energy, "idle_watts", lambda counter: 75.0)
    monkeypatch.setattr(kernel_energy, "_energy", energy)
    measured = KernelEnergy().measure(row(device="cuda"))
    assert measured.values == pytest.approx(
        {
            "energy_mj": 2.0, "energy_net_mj": 1.0, "power_w": 300.0, "gpu_utilization": 97.0,
            "memory_utilization": 40.0, "energy_ratio_fp16": 0.25, "energy_ratio_fp32": 0.125,
        }
    )  # fmt: skip
    facts = {"driver": "600.1", "idle_w": 75.0, "window_seconds": 1.0, "calls": 500}
    assert (measured.n, measured.facts) == (500, {"kernel": ["own"], **facts})


def test_power_is_a_gpus_and_energy_is_of_all(monkeypatch):
    each = (600.0, (50.0, 25.0), 100, 1.0)
    three = (Energy(joules, joules / 2, *each) for joules in (0.012, 0.008, 0.016))
    made = Energies(*three, idle_w=150.0, facts={"devices": 2})
    monkeypatch.setattr(ranks, "run", lambda job, count, device, arguments: made)
    measured = KernelEnergy().measure(row(**DENSE, kernel="tensor_parallel_2", **ON_GPU))
    assert measured.values == pytest.approx(
        {
            "energy_mj": 12.0, "energy_net_mj": 6.0, "power_w": 300.0, "gpu_utilization": 50.0,
            "memory_utilization": 25.0, "energy_ratio_fp16": 1.5, "energy_ratio_fp32": 0.75,
        }
    )  # fmt: skip
    assert measured.facts["idle_w"] == 150.0


def test_what_is_counted_is_the_replayed_graph(monkeypatch):
    events = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    graph = SimpleNamespace(replay=lambda: events.append("replay"))
    timer = SimpleNamespace(graph=lambda contestant, kind: (graph, 20))
    monkeypatch.setattr(kernel_energy, "energy_of", lambda run, calls, *_: run() or calls)
    assert kernel_energy._energy(None, timer, None, 0.0) == 20
    assert events == ["replay", "wait"]
