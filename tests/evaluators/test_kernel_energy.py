"""Energy cells: why they are not run here, and what they say with a GPU that is not real."""

import sys
import types

import pytest
import torch

from lutlab.base.specs import ProductRun
from lutlab.evaluators import kernel_energy
from lutlab.evaluators.kernel_energy import KernelEnergy
from lutlab.measure import contestants
from lutlab.measure.contestants import Entrants
from lutlab.measure.energy import Energy
from lutlab.measure.timing import Contestant


def row(**more):
    return ProductRun(((96, 80, 1),), "bcq", 3, 16, **more)


def test_on_a_cpu_it_is_not_run_and_says_why():
    assert "no CUDA device" in KernelEnergy.obstacle(row())
    shared = ProductRun(((96, 80, 1),), "none", 16, -1, kernel="tensor_parallel_2")
    assert "needs 2 GPUs" in KernelEnergy.obstacle(shared)


def test_on_a_gpu_without_nvml_it_is_not_run_and_the_cure_is_told(monkeypatch):
    monkeypatch.setattr(kernel_energy, "missing_library", lambda: "")
    assert KernelEnergy.obstacle(row(device="cuda", dtype="float16")) == ""
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install nvidia-ml-py" in KernelEnergy.obstacle(row(device="cuda"))


def test_energy_is_a_ratio_of_the_same_run(monkeypatch):
    own, dense16, dense32 = (Contestant(name, 1, 2, lambda i: None) for name in ("own", "16", "32"))
    joules = {"own": 0.002, "16": 0.008, "32": 0.016}
    entered = Entrants(own, own, dense16, dense32, None, None, {"kernel": ["own"]})
    monkeypatch.setattr(contestants, "enter", lambda spec: entered)
    counter = types.SimpleNamespace(facts=lambda: {"driver": "600.1"})
    monkeypatch.setattr(kernel_energy, "Nvml", lambda index: counter)
    monkeypatch.setattr(kernel_energy, "idle_watts", lambda one: 75.0)

    def energy(one, timer, asked, idle):
        assert (asked, idle) == (counter, 75.0)
        total = joules[one.name]
        return Energy(total, total / 2, 300.0, (97.0, 40.0), calls=500, seconds=1.0)

    monkeypatch.setattr(kernel_energy, "_energy", energy)
    subject = row(device="cuda")
    found = KernelEnergy().measure(subject)
    assert found.values == pytest.approx(
        {
            "energy_mj": 2.0, "energy_net_mj": 1.0, "power_w": 300.0, "gpu_utilization": 97.0,
            "memory_utilization": 40.0, "energy_ratio_fp16": 0.25, "energy_ratio_fp32": 0.125,
        }
    )  # fmt: skip
    assert found.n == 500
    assert found.facts == {
        "kernel": ["own"], "driver": "600.1", "idle_w": 75.0, "window_seconds": 1.0, "calls": 500,
    }  # fmt: skip


def test_what_is_counted_is_the_replayed_graph(monkeypatch):
    said = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("wait"))
    graph = types.SimpleNamespace(replay=lambda: said.append("replay"))
    timer = types.SimpleNamespace(graph=lambda one, kind: (graph, 20))

    def energy_of(run, calls, counter, idle):
        run()
        return calls

    monkeypatch.setattr(kernel_energy, "energy_of", energy_of)
    assert kernel_energy._energy(None, timer, None, 0.0) == 20
    assert said == ["replay", "wait"]
