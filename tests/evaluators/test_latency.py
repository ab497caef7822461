"""Latency is generation's speed, told in the papers' unit, on one GPU only."""

import pytest
from tests.tiny_models import one_thread, tiny_opt  # noqa: F401

from lutlab.evaluators import generation
from lutlab.evaluators.latency import Latency
from lutlab.specs import ModelRun, ModelSpec, Subject


def row(device):
    return ModelRun(ModelSpec("m", "embedded", "m"), "rtn", 4, 128, device=device)


@pytest.mark.parametrize(
    ("device", "reason"),
    [("cpu", "no CUDA device"), ("spread", "set device=cuda"), ("cuda", ""), ("cuda:1", "")],
)
def test_it_is_of_one_gpu(device, reason):
    assert reason in Latency.obstacle(row(device))
    assert bool(Latency.obstacle(row(device))) == bool(reason)


@pytest.mark.usefixtures("one_thread")
def test_milliseconds_a_token_are_those_of_the_median_repeat(monkeypatch):
    clock = iter([0.0, 4.0, 10.0, 11.0, 20.0, 22.0])  # seconds 4, 1, 2, each of 10 steps
    monkeypatch.setattr(generation.time, "perf_counter", lambda: next(clock))
    subject = Subject(tiny_opt(), None, (), None, 64, row("cuda"))
    found = Latency(tokens=11, repeats=3, engine="transformers").measure(subject)
    assert found.values == {"latency_1gpu_ms": pytest.approx(200.0)}
    assert found.samples == (4.0, 1.0, 2.0)
    assert found.facts["tokens"] == 11
