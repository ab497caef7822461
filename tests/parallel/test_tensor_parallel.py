"""A product that several processes share, against the product of one; two processes on the CPU meet through gloo."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from lutlab.base.specs import ProductRun
from lutlab.evaluators import kernel_energy
from lutlab.measure import products
from lutlab.measure.contestants import TimedRow
from lutlab.measure.energy import energy_of
from lutlab.measure.timing import COLD, CpuTimer
from lutlab.parallel import products as tensor_parallel
from lutlab.parallel import ranks


def row(shapes="96x80+48x96x3", gpus=2, **more):
    kernel = f"tensor_parallel_{gpus}"
    return ProductRun(products.parse_shapes(shapes), "none", 16, -1, kernel=kernel, **more)


def products_of(rank, spec):
    """y of every copy of the shares, of each product and layout."""
    timed = TimedRow(tensor_parallel.alone(spec, rank), 20_000, {})
    for shape in spec.shapes:
        for layout in ("[N, K]", "[K, N]"):
            whole, _ = tensor_parallel._part(timed, rank, shape, layout)
            yield shape, [whole.run(copy).clone() for copy in range(whole.copies)]


class Timer(CpuTimer):
    """GpuTimer, with calls in the place of a graph."""

    def graph(self, contestant, kind):
        return SimpleNamespace(replay=lambda: [contestant.run(i) for i in range(2)]), 2


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
    return list(products_of(rank, spec)), timed, energies(rank, spec), numbers


@pytest.mark.slow
def test_two_processes_give_the_product_of_one_and_the_time_and_energy_of_both():
    gathered, (entrants, compute), energies, numbers = ranks.run(together, 2, "cpu", (row(),))
    assert numbers == (1.0, 7.0), "the largest, and rank 0's"
    assert len(gathered) == 2 * 2, "products and layouts"
    for shape, copies in gathered:
        x, weight = products.operands(row(), shape)
        assert len(copies) >= 2
        for y in copies:
            torch.testing.assert_close(y, x @ weight.t(), rtol=1e-5, atol=1e-4)
    for contestant in (entrants.own, entrants.fp16, entrants.fp32):
        assert len(contestant.rounds[COLD]) == 2
    assert 0 < compute < 1, "two processes that meet at every call take longer than microseconds"
    assert entrants.own.bytes == entrants.fp32.bytes == 4 * (96 * 80 + 48 * 96)
    kernels = ["torch float32 [N, K] on 2 devices"]
    assert entrants.facts["kernel"] == kernels
    dense = {"torch float32", "torch bfloat16"}
    assert entrants.facts["relative_errors"].keys() == dense | {*kernels}
    own, _, fp32, idle, facts = energies
    totals = [energy.joules * energy.calls for energy in (own, fp32)]  # over the same window
    assert totals == pytest.approx([300, 100])
    assert (own.utilization, idle) == ((15.0, 1.0), 30.0)
    assert (facts["driver"], facts["kernel"]) == ("600.1", kernels)


def test_the_slowest_rank_is_the_time():
    rank = SimpleNamespace(line_up=lambda: None, largest=lambda number: 2 * number)
    assert tensor_parallel.slowest(rank, lambda seconds, kind: seconds)(3.0, COLD) == 6.0


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
    entrants, compute = ranks.run(tensor_parallel.time_on, gpus, "cuda", (spec, 5, COLD))
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
