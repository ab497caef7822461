"""What the times of a race become; the times themselves are made up here."""

import pytest

from lutlab.base.errors import LutlabError
from lutlab.base.specs import ProductRun
from lutlab.evaluators import kernel_latency
from lutlab.evaluators.kernel_latency import KernelLatency
from lutlab.measure import contestants, products
from lutlab.measure.contestants import Entrants
from lutlab.measure.timing import Contestant

SHAPE = (96, 80, 1)


def subject(method="bcq", q=3, g=16):
    return ProductRun((SHAPE,), method, q, g)


class Clock:
    """A timer that says, round by round, what it was given for each contestant."""

    def __init__(self, seconds):
        self.seconds = {name: iter(values) for name, values in seconds.items()}

    def __call__(self, one, kind):
        return next(self.seconds[one.name])


@pytest.fixture
def race_of(monkeypatch):
    def make(found, seconds):
        monkeypatch.setattr(contestants, "enter", lambda spec, kind: found)
        monkeypatch.setattr(kernel_latency, "CpuTimer", lambda: Clock(seconds))

    return make


def contestant(name, size):
    return Contestant(name, size, 2, lambda i: None)


def test_speed_is_a_ratio_of_the_same_rounds(race_of):
    sizes = {"own": 3000, "best": 3000, "dense": 30720, "rowwise": 2900, "read": 8000}
    own, best, dense, rowwise, read = (contestant(*item) for item in sizes.items())
    facts = {"kernel": ["own"], "relative_errors": {"own": 1e-7}}
    race_of(
        Entrants(own, best, dense, dense, rowwise, read, facts),
        {
            "own": [1e-6, 2e-6, 9e-6],
            "best": [1e-6, 1e-6, 5e-6],
            "dense": [4e-6, 4e-6, 45e-6],
            "rowwise": [1e-6, 1e-6, 9e-6],
            "read": [2e-6, 2e-6, 2e-6],
        },
    )
    found = KernelLatency(rounds=3).measure(subject())
    values = found.values
    assert found.samples == (1e-6, 2e-6, 9e-6)
    assert values["latency_us"] == pytest.approx(2)
    assert values["speedup_fp16"] == values["speedup_fp32"] == pytest.approx(4)  # of 4, 2, 5
    best = values["best_speedup_fp16"], values["best_speedup_fp32"]
    assert best == pytest.approx((4, 4))  # of 4, 4, 9
    assert values["over_rowwise"] == pytest.approx(1)  # of 1, 2, 1
    assert values["gb_s"] == pytest.approx(1.5)
    assert values["bandwidth_fraction"] == pytest.approx(3 / 8)  # of 3/4, 3/8, 1/12
    assert values["bits_per_weight"] == pytest.approx(3000 * 8 / (96 * 80))
    assert values["ratio_fp16"] == pytest.approx(2 * 96 * 80 / 3000)
    assert values["baseline_fp32_mb"] == pytest.approx(4 * 96 * 80 / 1e6)
    assert values["megabytes_fp16_table"] == pytest.approx((3 + 16 / 16) * 96 * 80 / 8e6)
    assert values["ratio_fp32_table"] == pytest.approx(32 / (3 + 32 / 16))
    assert values["ratio_fp16_eq"] == pytest.approx(16 / (3 * (1 + 16 / 16)))
    assert values["group_size"] == 16
    assert values["relative_error"] == 1e-7
    assert found.facts["copies"] == 2
    assert found.facts["memory_gb_s"] == pytest.approx(4)


def test_a_dense_row_is_one_times_itself(race_of):
    dense, read = contestant("dense", 30720), contestant("read", 8000)
    facts = {"kernel": ["dense"], "relative_errors": {"dense": 1e-7}}
    race_of(
        Entrants(dense, dense, dense, dense, None, read, facts),
        {"dense": [3e-6, 5e-6], "read": [1e-6] * 2},
    )
    values = KernelLatency(rounds=2).measure(subject("none", 16, -1)).values
    assert values["speedup_fp32"] == values["best_speedup_fp16"] == 1
    assert "over_rowwise" not in values


def test_resident_weights_are_told_against_cold_memory(monkeypatch):
    own, dense, read = contestant("own", 3000), contestant("dense", 30720), contestant("read", 8000)
    facts = {"kernel": ["own"], "relative_errors": {"own": 1e-7}}
    found = Entrants(own, own, dense, dense, None, read, facts)
    monkeypatch.setattr(contestants, "enter", lambda spec, kind: found)
    seconds = {("own", "resident"): 1e-6, ("dense", "resident"): 3e-6, ("read", "cold"): 2e-6}
    timer = lambda one, kind: seconds[one.name, kind]  # noqa: E731
    monkeypatch.setattr(kernel_latency, "CpuTimer", lambda: timer)
    measured = KernelLatency(rounds=3, weights="resident").measure(subject())
    assert measured.samples == (1e-6,) * 3
    assert measured.values["speedup_fp16"] == pytest.approx(3)
    assert measured.values["gb_s"] == pytest.approx(3)
    assert measured.values["bandwidth_fraction"] == pytest.approx(3 / 4)
    assert (measured.facts["weights"], measured.facts["copies"]) == ("resident", 1)


def test_other_words_for_the_weights_are_refused():
    with pytest.raises(LutlabError, match="weights 'resdent': did you mean 'resident'"):
        KernelLatency(weights="resdent")


def test_a_product_is_measured_for_real(monkeypatch):
    monkeypatch.setattr(products, "COLD_LIMIT", 20_000)
    found = KernelLatency(rounds=2).measure(subject())
    assert len(found.samples) == found.n == 2
    assert all(value >= 0 for value in found.values.values())
    assert found.values["relative_error"] < 1e-5
    assert "torch float32" in found.facts["baseline"]


def test_its_cells_are_of_this_machine():
    assert KernelLatency.of_this_machine
