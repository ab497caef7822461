"""A product that several processes share, against the product of one; two processes on the CPU meet through gloo."""

import types
from functools import partial

import pytest
import torch

from lutlab.base.specs import ProductRun
from lutlab.evaluators import kernel_energy
from lutlab.evaluators.kernel_energy import Energies, KernelEnergy
from lutlab.evaluators.kernel_latency import KernelLatency
from lutlab.measure import products
from lutlab.measure.contestants import Entrants, TimedRow
from lutlab.measure.energy import Energy, energy_of
from lutlab.measure.products import parse_shapes
from lutlab.measure.timing import COLD, Contestant, CpuTimer
from lutlab.parallel import products as tensor_parallel
from lutlab.parallel import ranks

SHAPES = "96x80+48x96x3"


def row(shapes=SHAPES, gpus=2, **more):
    kernel = f"tensor_parallel_{gpus}"
    return ProductRun(parse_shapes(shapes), "none", 16, -1, kernel=kernel, **more)


def subject(spec):
    return spec


# ---- in two processes ----


def products_of(rank, spec):
    """y of every copy of the shares, of each product and layout."""
    timed = TimedRow(tensor_parallel.alone(spec, rank), 20_000, {})
    found = []
    for shape in spec.shapes:
        for layout in ("[N, K]", "[K, N]"):
            whole, _ = tensor_parallel._part(timed, rank, shape, layout)
            found.append([whole.run(copy).clone() for copy in range(whole.copies)])
    return found


class Timer(CpuTimer):
    """GpuTimer, with calls in the place of a graph."""

    def graph(self, one, kind):
        return types.SimpleNamespace(replay=lambda: [one.run(i) for i in range(2)]), 2


class Nvml:
    """GPU 0 takes 100 J between two looks, GPU 1 200 J."""

    def __init__(self, *indices):
        self.watts, self.spent = sum(100.0 * (index + 1) for index in indices), 0.0

    def joules(self):
        self.spent += self.watts
        return self.spent

    def utilization(self):
        return self.watts / 20, 1.0

    def facts(self):
        return {"driver": "600.1"}


def energies(rank, spec):
    """kernel_energy with a GPU that is not real."""
    kernel_energy.GpuTimer, kernel_energy.Nvml, kernel_energy._RUN_SECONDS = Timer, Nvml, 0.01
    kernel_energy.energy_of = partial(energy_of, seconds=0.05)
    kernel_energy.idle_watts = lambda counter: counter.joules() / 10
    torch.cuda.synchronize = lambda: None
    return kernel_energy._of_rank(rank, spec)


def together(rank, spec):
    products.COLD_LIMIT = 20_000
    rank.line_up()
    numbers = rank.largest(rank.index), rank.first(rank.index + 7)
    timed = tensor_parallel.time_on(rank, spec, 2, COLD)
    return products_of(rank, spec), timed, energies(rank, spec), numbers


@pytest.fixture(scope="module")
def done():
    return ranks.run(together, 2, "cpu", (row(),))


@pytest.mark.slow
def test_what_is_gathered_is_the_product_of_one_process(done):
    found = iter(done[0])
    for shape in row().shapes:
        x, weight = products.operands(row(), shape)
        for _ in ("[N, K]", "[K, N]"):
            copies = next(found)
            assert len(copies) >= 2
            for y in copies:
                torch.testing.assert_close(y, x @ weight.t(), rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_the_shared_product_is_timed_beside_that_of_one_process(done):
    entrants, compute = done[1]
    for one in (entrants.own, entrants.fp16, entrants.fp32):
        assert len(one.rounds[COLD]) == 2
    assert 0 < compute < 1, (
        "two processes that meet at every call take longer than a few microseconds"
    )
    assert entrants.own.bytes == entrants.fp32.bytes == 4 * (96 * 80 + 48 * 96)
    assert entrants.facts["kernel"] == ["torch float32 [N, K] on 2 devices"]
    assert entrants.facts["relative_errors"].keys() == {"torch float32", *entrants.facts["kernel"]}
    assert done[3] == (1.0, 7.0), "the largest, and rank 0's"


@pytest.mark.slow
def test_energy_is_of_all_gpus_over_the_same_window(done):
    own, _, fp32, idle, facts = done[2]
    assert own.joules * own.calls == pytest.approx(300)
    assert fp32.joules * fp32.calls == pytest.approx(100)
    assert own.utilization == (15.0, 1.0)
    assert idle == 30.0
    assert facts["driver"] == "600.1"
    assert facts["kernel"] == ["torch float32 [N, K] on 2 devices"]


# ---- in this one ----


def contestant(name, size, *seconds):
    return Contestant(name, size, 3, None, {COLD: list(seconds)})


def test_the_slowest_rank_is_the_time():
    rank = types.SimpleNamespace(line_up=lambda: None, largest=lambda number: 2 * number)
    assert tensor_parallel.slowest(rank, lambda one, kind: one)(3.0, COLD) == 6.0


def test_a_shared_product_is_compared_with_one_device_and_with_what_it_computes(monkeypatch):
    whole = contestant("whole", 960, 4e-6, 8e-6)
    dense = contestant("dense", 960, 8e-6, 16e-6)
    copies = contestant("copy", 1920, 4e-6, 4e-6)
    facts = {"relative_errors": {"whole": 1e-4}, "devices": 2, "kernel": ["whole"]}
    entrants = Entrants(whole, whole, dense, dense, None, copies, facts)
    monkeypatch.setattr(ranks, "run", lambda job, count, device, arguments: (entrants, 0.75))
    found = KernelLatency(rounds=2).measure(subject(row("48x10")))
    values = found.values
    assert values["communication_percent"] == pytest.approx(25)
    assert values["compute_percent"] == pytest.approx(75)
    assert values["latency_us"] == values["best_us"] == pytest.approx(6)
    assert values["speedup_fp16"] == values["speedup_fp32"] == pytest.approx(2)
    assert values["bits_per_weight"] == 16
    assert values["bandwidth_fraction"] == pytest.approx(0.375), "of 1/2 and 1/4"
    assert "over_rowwise" not in values
    assert found.samples == (4e-6, 8e-6)
    assert found.facts["devices"] == 2


def test_power_is_a_gpus_and_energy_is_of_all(monkeypatch):
    def energy(joules):
        return Energy(joules, joules / 2, 600.0, (50.0, 25.0), calls=100, seconds=1.0)

    three = energy(0.012), energy(0.008), energy(0.016)
    made = Energies(*three, idle_w=150.0, facts={"devices": 2})
    monkeypatch.setattr(ranks, "run", lambda job, count, device, arguments: made)
    found = KernelEnergy().measure(subject(row(device="cuda", dtype="float16")))
    assert found.values == pytest.approx(
        {
            "energy_mj": 12.0, "energy_net_mj": 6.0, "power_w": 300.0, "gpu_utilization": 50.0,
            "memory_utilization": 25.0, "energy_ratio_fp16": 1.5, "energy_ratio_fp32": 0.75,
        }
    )  # fmt: skip
    assert found.facts["idle_w"] == 150.0


# ---- on GPUs ----


@pytest.fixture(params=[1, 2])
def gpus(request):
    """One rank meets nobody, but all that is captured and counted is the same."""
    if torch.cuda.device_count() < request.param:
        pytest.skip(f"needs {request.param} CUDA devices")
    return request.param


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_on_gpus_graphs_with_collectives_are_timed(gpus, dtype):
    spec = row("4096x1024+1024x4096x3", gpus, device="cuda", dtype=dtype)
    found = ranks.run(tensor_parallel.time_on, gpus, "cuda", (spec, 5, COLD))
    entrants, compute = found
    assert len(entrants.own.rounds[COLD]) == len(entrants.fp16.rounds[COLD]) == 5
    assert 0 < compute < 1.1
    assert entrants.facts["devices"] == gpus
    assert all(name.startswith(f"torch {dtype}") for name in entrants.facts["kernel"])
    (took, _) = entrants.facts["shared_us"].values()
    assert len(took) == 2, "both layouts"


@pytest.mark.gpu
def test_on_gpus_energy_is_counted(gpus):
    pytest.importorskip("pynvml")
    spec = row("4096x4096", gpus, device="cuda", dtype="float16")
    own = ranks.run(kernel_energy._of_rank, gpus, "cuda", (spec,)).own
    assert own.joules > 0
    assert own.watts > gpus * 20
