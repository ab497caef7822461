"""Standard errors of records from before they were kept: each rule against the plain formula over its samples."""

from __future__ import annotations

import dataclasses
import math
import statistics

import pytest
from tests.conftest import ROOT

from lutlab.evaluators.noise import standard_error
from lutlab.experiment.store.noise import error_of, shares_of
from lutlab.experiment.store.record import Record
from lutlab.experiment.store.store import Store

NLL = (93.0, 101.0, 97.0, 88.0)  # nats, of windows of 32 tokens
LIKELIHOODS = (-3.0, -1.5, -4.0)


def record(evaluator: str, metric: str, value: float, samples: tuple, **facts: object) -> Record:
    n = len(samples) or 5
    return Record(
        "id", "done", {}, {"evaluator": evaluator}, {metric: value}, n, samples, facts, {}, 0
    )


def naive(samples: tuple[float, ...]) -> float:
    return statistics.stdev(samples) / math.sqrt(len(samples))


def test_of_a_perplexity_by_the_delta_method() -> None:
    value = math.exp(statistics.fmean(NLL) / 32)
    found = record("ppl", "ppl", value, NLL, seqlen=32)
    assert error_of(found, "ppl") == pytest.approx(value * naive(NLL) / 32)
    assert error_of(record("ppl", "ppl", value, NLL[:1], seqlen=32), "ppl") == math.inf
    divergence = record("kld", "kld_mean_nats", statistics.fmean(NLL), NLL)
    assert error_of(divergence, "kld_mean_nats") == pytest.approx(naive(NLL))
    word = record("lambada", "lambada_perplexity", 9.0, LIKELIHOODS)
    assert error_of(word, "lambada_perplexity") == pytest.approx(9 * naive(LIKELIHOODS))


def test_of_an_accuracy_and_none_of_what_is_exact() -> None:
    found = record("zero_shot", "accuracy", 0.75, (1.0, 2.0, -1.0, 0.5))
    assert error_of(found, "accuracy") == pytest.approx(math.sqrt(0.75 * 0.25 / 3))
    lost = record("lambada", "lambada_accuracy", 0.0, LIKELIHOODS)
    assert 0.1 < error_of(lost, "lambada_accuracy") < 0.3, "0 of 3 is not exactly 0"
    for name in ("model_size", "kernel_latency", "weight_error"):
        assert error_of(record(name, "x", 2.0, (1.0, 2.0)), "x") is None
    kept = record("a_users_own", "x", 2.0, (), standard_error={"x": 0.25})
    assert error_of(kept, "x") == 0.25


def test_of_a_speed_by_the_repeats_of_its_run() -> None:
    seconds = (1.0, 1.25, 0.8, 1.1, 1.05)
    per_s = record("llama_cpp", "tokens_per_s", 100 / 1.05, seconds)
    relative = naive(seconds) / statistics.fmean(seconds)
    assert error_of(per_s, "tokens_per_s") == pytest.approx(100 / 1.05 * relative)
    ms = record("generation", "ms_per_token", 10.5, seconds)
    assert error_of(ms, "ms_per_token") == pytest.approx(10.5 * relative)
    own = [dataclasses.replace(r, cell_id=c) for r, c in ((per_s, "a"), (per_s, "b"))]
    assert set(shares_of(own[0], "tokens_per_s")) != set(shares_of(own[1], "tokens_per_s"))


def test_the_same_windows_of_the_same_text_are_paired() -> None:
    facts = {"seqlen": 32, "token_sha256": "a"}
    first, second = (record("ppl", "ppl", v, NLL, **facts) for v in (20.0, 21.0))
    other = record("ppl", "ppl", 20.0, NLL, seqlen=32, token_sha256="b")
    fewer = record("ppl", "ppl", 20.0, NLL[:3], **facts)
    sources = [set(shares_of(one, "ppl")) for one in (first, second, other, fewer)]
    assert sources[0] == sources[1]
    assert not sources[0] & (sources[2] | sources[3])


def test_published_records_have_the_errors_that_lm_eval_gives() -> None:
    """Of LAMBADA and zero-shot records, which hold them: earlier ones as values, later ones as a fact."""
    checked = 0
    for machine in (ROOT / "results" / "published").iterdir():
        for one in Store(machine).all().values() if machine.is_dir() else ():
            for metric in ("lambada_perplexity", "accuracy", "accuracy_norm", "lambada_accuracy"):
                fact = one.facts.get("standard_error", {}).get(metric)
                told = one.values.get(f"{metric}_stderr", fact)
                if told is not None and one.values[metric] not in (0, 1):
                    shares = [s for own in shares_of(one, metric).values() for s in own]
                    assert standard_error(shares) == pytest.approx(told, rel=1e-6)
                    checked += 1
    assert checked > 100
