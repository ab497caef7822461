"""Chance in a record's value: what its standard error is made of, sample by sample where the record tells.

A record made before errors were kept (as the fact `standard_error`) has its samples, which are, by evaluator:

    ppl                   nll of each window, nats       ppl = exp(mean / seqlen)
    kld_mean_nats         mean of each window, nats      mean
    lambada_perplexity    log-likelihood of each word    exp(-mean)
    accuracy              margin, positive where right   mean of right; 0 and 1 have the error of half an example
    tokens_per_s          seconds of each repeat         tokens / median, whose error is taken as that of the mean

The repeats of one run do not show what differs between runs, so that an error of a decoding speed is the least that it
can be. The rounds of a product follow each other within a second, so that the error of their median says nothing of
another run: that of a product's time, and of what is over it, is the deviation of one round, by the quartiles. Sizes
and errors of weights are exact: of the same model and method there is nothing to draw again.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence

from lutlab.evaluators.noise import deviations, proportion_error, standard_error
from lutlab.experiment.store.record import Record

# Source of chance -> shares of the deviation; the sum of all squares is the variance. Two values with the same source
# are of the same samples, share by share, so that the error of their difference is that of the differences.
Shares = Mapping[str, tuple[float, ...]]

_PROPORTIONS = {
    ("zero_shot", "accuracy"),
    ("zero_shot", "accuracy_norm"),
    ("lambada", "lambada_accuracy"),
    ("glue", "accuracy"),
    ("lm_eval", "acc"),
    ("lm_eval", "acc_norm"),
}

_DECODING = ("generation", "llama_cpp", "qigen")
# Metric of decoding -> the power of the seconds that it goes with.
_OF_SECONDS = {"tokens_per_s": -1, "bandwidth_gb_s": -1, "ms_per_token": 1}

# Metrics of kernel_latency that go with the seconds of a product, in one direction or the other.
OF_PRODUCT = re.compile(r"latency_us|gb_s|bandwidth_fraction|over_rowwise|speedup_fp\d\d")
_INTERQUARTILE = 1.349  # standard deviations between the quartiles of a normal variate

# Of these the samples tell what is right: positive margins, or ones.
_JUDGED = {("zero_shot", "accuracy"), ("glue", "accuracy"), ("lm_eval", "acc")}


def error_of(record: Record, metric: str) -> float | None:
    """Standard error of a value; inf where it rests on one sample, None where it is exact or nothing is known of it."""
    shares = shares_of(record, metric)
    return standard_error([*itertools.chain(*shares.values())]) if shares else None


def shares_of(record: Record, metric: str) -> Shares:
    """Sources of chance of a value with its shares; empty where it is exact or nothing is known of it."""
    evaluator = record.evaluation.get("evaluator")
    influences = _influences(record, evaluator, metric)
    if influences is not None and len(influences) > 1:
        return {_source(record): deviations(influences)}
    error = record.facts.get("standard_error", {}).get(metric)
    if evaluator == "kernel_latency" and OF_PRODUCT.fullmatch(metric):
        error = _of_one_round(record, metric)
    elif not error and (evaluator, metric) in _PROPORTIONS:
        error = proportion_error(record.values[metric], record.n)
    elif not error and influences:
        error = math.inf
    if not error:
        return {}
    n = max(1, record.n)
    shares = (error / math.sqrt(n),) * n  # equal ones, as nobody knows which sample moves it how
    return {f"{record.cell_id} {metric}": shares}


def _of_one_round(record: Record, metric: str) -> float:
    """Deviation of one round, in the metric's unit; 0 of a ratio of 1, which is that of a product over itself."""
    value, (lower, upper) = record.values[metric], record.facts["spread_us"]
    if value == 1 and metric != "latency_us":
        return 0.0
    return value * (upper - lower) * 1e-6 / statistics.median(record.samples) / _INTERQUARTILE


def _influences(record: Record, evaluator: str | None, metric: str) -> Sequence[float] | None:
    """Numbers, one a sample, whose mean moves as the value does, to first order; None where samples do not tell."""
    if metric not in record.values or not record.samples:
        return None
    value, samples = record.values[metric], record.samples
    if (evaluator, metric) == ("ppl", "ppl"):
        return [value * nll / record.facts["seqlen"] for nll in samples]
    if (evaluator, metric) == ("kld", "kld_mean_nats"):
        return samples
    if (evaluator, metric) == ("lambada", "lambada_perplexity"):
        return [-value * likelihood for likelihood in samples]
    if evaluator in _DECODING and metric in _OF_SECONDS:
        return [_OF_SECONDS[metric] * value * s * len(samples) / sum(samples) for s in samples]
    if (evaluator, metric) in _JUDGED:
        right = [float(margin > 0) for margin in samples]
        # a tie that counted as right cannot be told from the margin, and of 0 and 1 the spread cannot be seen
        if value not in (0, 1) and math.isclose(sum(right) / len(right), value):
            return right
    return None


def _source(record: Record) -> str:
    """The samples of a record: the same windows or examples of the same text have the same name."""
    facts = record.facts
    text = facts.get("token_sha256") or facts.get("text_sha256") or record.cell_id
    evaluator = record.evaluation["evaluator"]
    left_out = [facts[name] for name in ("unfit", "not_finite") if facts.get(name)]
    return (
        f"{evaluator} {text} {facts.get('seqlen')} {len(record.samples)} {left_out or ''}".rstrip()
    )
