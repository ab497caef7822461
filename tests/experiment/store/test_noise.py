"""Standard errors of records from before they were kept: each rule against the plain formula over its samples."""

import math
from statistics import fmean

import pytest
from scipy.stats import sem
from tests.conftest import ROOT

from lutlab.evaluators.noise import standard_error
from lutlab.experiment.store.noise import error_of, shares_of
from lutlab.experiment.store.record import Record
from lutlab.experiment.store.store import Store

NLL = (93.0, 101.0, 97.0, 88.0)  # nats, of windows of 32 tokens
LIKELIHOODS = (-3.0, -1.5, -4.0)
SECONDS = (1.0, 1.25, 0.8, 1.1, 1.05)
RELATIVE = sem(SECONDS) / fmean(SECONDS)
PPL = math.exp(fmean(NLL) / 32)


def record(evaluator, metric, value, samples=(), cell="id", **facts) -> Record:
    about, n = {"evaluator": evaluator}, len(samples) or 5
    return Record(cell, "done", {}, about, {metric: value}, n, samples, facts, {}, 0)


@pytest.mark.parametrize(("evaluator", "metric", "value", "samples", "facts", "error"), [
    ("ppl", "ppl", PPL, NLL, {"seqlen": 32}, PPL * sem(NLL) / 32),  # by the delta method
    ("ppl", "ppl", PPL, NLL[:1], {"seqlen": 32}, math.inf),
    ("kld", "kld_mean_nats", fmean(NLL), NLL, {}, sem(NLL)),
    ("lambada", "lambada_perplexity", 9.0, LIKELIHOODS, {}, 9 * sem(LIKELIHOODS)),
    ("zero_shot", "accuracy", 0.75, (1.0, 2.0, -1.0, 0.5), {}, math.sqrt(0.75 * 0.25 / 3)),
    # 0 of 3 is not exactly 0, but as half an example of 4
    ("lambada", "lambada_accuracy", 0.0, LIKELIHOODS, {}, math.sqrt(0.125 * 0.875 / 2)),
    ("a_users_own", "x", 2.0, (), {"standard_error": {"x": 0.25}}, 0.25),
    ("llama_cpp", "tokens_per_s", 100 / 1.05, SECONDS, {}, 100 / 1.05 * RELATIVE),
    ("generation", "ms_per_token", 10.5, SECONDS, {}, 10.5 * RELATIVE),
    # the deviation of a round by the quartiles, not the error of the median
    ("kernel_latency", "latency_us", 12.0, SECONDS, {"spread_us": [0.9e6, 1.2e6]}, 12 * 0.3 / 1.05 / 1.349),
    ("kernel_latency", "speedup_fp32", 1.0, SECONDS, {"spread_us": [0.9e6, 1.2e6]}, None),  # over itself
    *((exact, "x", 2.0, (1.0, 2.0), {}, None) for exact in ("model_size", "kernel_latency", "weight_error")),
])  # fmt: skip
def test_of_each_metric_by_its_formula(evaluator, metric, value, samples, facts, error) -> None:
    own = record(evaluator, metric, value, samples, **facts)
    assert error_of(own, metric) == pytest.approx(error)


def test_the_same_windows_of_the_same_text_are_paired() -> None:
    facts = {"seqlen": 32, "token_sha256": "a"}
    records = [
        *(record("ppl", "ppl", value, NLL, **facts) for value in (20.0, 21.0)),
        record("ppl", "ppl", 20.0, NLL, seqlen=32, token_sha256="b"),
        record("ppl", "ppl", 20.0, NLL[:3], **facts),
    ]
    sources = [set(shares_of(each, "ppl")) for each in records]
    assert sources[0] == sources[1]
    assert not sources[0] & (sources[2] | sources[3])
    runs = [record("llama_cpp", "tokens_per_s", 95.0, SECONDS, cell) for cell in "ab"]
    assert shares_of(runs[0], "tokens_per_s").keys() != shares_of(runs[1], "tokens_per_s").keys()


def test_published_records_have_the_errors_that_lm_eval_gives() -> None:
    """Of LAMBADA and zero-shot records, which hold them: earlier ones as values, later ones as a fact."""
    checked = 0
    machines = [path for path in (ROOT / "results" / "published").iterdir() if path.is_dir()]
    for record in (r for machine in machines for r in Store(machine).all().values()):
        for metric in ("lambada_perplexity", "accuracy", "accuracy_norm", "lambada_accuracy"):
            fact = record.facts.get("standard_error", {}).get(metric)
            kept = record.values.get(f"{metric}_stderr", fact)
            if kept is not None and record.values[metric] not in (0, 1):
                shares = [s for own in shares_of(record, metric).values() for s in own]
                assert standard_error(shares) == pytest.approx(kept, rel=1e-6)
                checked += 1
    assert checked > 100
