"""Latency is generation's speed, told in the papers' unit, on one GPU, and on those that share the model."""

import pytest
from tests.parallel.thread_ranks import ThreadRank, together
from tests.tiny_models import tiny_opt

import lutlab
from lutlab.base.specs import ModelRun, ModelSpec, Subject
from lutlab.evaluators import generation, latency
from lutlab.evaluators.latency import Latency
from lutlab.parallel import ranks


def row(device):
    return ModelRun(ModelSpec("m", "embedded", "m"), "rtn", 4, 128, device=device)


@pytest.mark.parametrize(
    ("device", "reason"),
    [("cpu", "no CUDA device"), ("spread", "set device=cuda"), ("cuda", ""), ("cuda:1", "")],
)
def test_it_is_of_one_gpu(device, reason):
    assert reason in Latency.obstacle(row(device))
    assert bool(Latency.obstacle(row(device))) == bool(reason)


def test_milliseconds_a_token_are_those_of_the_median_repeat(monkeypatch):
    clock = iter([0.0, 4.0, 10.0, 11.0, 20.0, 22.0])  # seconds 4, 1, 2, each of 10 steps
    monkeypatch.setattr(generation.time, "perf_counter", lambda: next(clock))
    subject = Subject(tiny_opt(), None, (), None, 64, row("cuda"))
    found = Latency(tokens=11, repeats=3, engine="transformers").measure(subject)
    assert found.values == {"latency_1gpu_ms": pytest.approx(200.0)}
    assert found.samples == (4.0, 1.0, 2.0)
    assert found.facts["tokens"] == 11


@pytest.fixture
def threads(monkeypatch):
    """Ranks are threads of this process; the ids that the first says may be changed in `change`."""
    change = []

    def run(job, count, device, task, *limits):
        ids, found = together(job, count, *task)[0]
        return [*ids[:-1], *change] if change else ids, found

    monkeypatch.setattr(ThreadRank, "agree", lambda rank, said: None, raising=False)
    monkeypatch.setattr(ranks, "run", run)
    return change


def test_ranks_share_the_model_and_choose_its_tokens(threads):
    model = tiny_opt().eval()
    lutlab.quantize(model, "rtn", q=4, g=16)
    own, counts = Latency(tokens=6, repeats=2, prompt=3), {"latency_2gpu_ms": 2}
    values, facts, refused = own._shared(model, counts, "cpu")
    assert refused == {}
    assert facts["latency_2gpu_ms"]["ranks"] == 2
    seconds = facts["latency_2gpu_ms"]["seconds"]
    assert values == {"latency_2gpu_ms": pytest.approx(1e3 * sum(seconds) / 2 / 5)}
    threads.append(259)
    with pytest.raises(lutlab.base.errors.LutlabError, match="first at 5 of 6"):
        own._shared(model, counts, "cpu")


def test_gpus_that_cannot_share_a_model_say_why_beside_those_that_can(threads, monkeypatch):
    monkeypatch.setattr(latency, "gpus", lambda device: 4)
    subject = Subject(tiny_opt(), None, (), None, 64, row("cuda"))
    found = Latency(tokens=4, repeats=1).measure(subject)
    assert set(found.values) == {"latency_1gpu_ms", "latency_2gpu_ms"}
    assert "4" in found.facts["not_measured"]["latency_4gpu_ms"]
