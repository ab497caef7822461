"""Charts of one record: numbers over a step of their own, for a tracked run.

    layer/weight_relative_mse, layer/bits_per_weight     by linear layer, in forward order, from 0
    window/<text>/ppl                                    perplexity of the first so many windows
    round/<evaluator>_s                                  seconds of each round of a timing, from 1
    tuning_step/held_out_loss, tuning_step/loss          of a tuning's end-to-end steps; the loss, mean of some steps
    tuning_block_step/<index>/held_out_error             where its blocks were tuned

A name's part before the first stroke is its step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from lutlab import registry
from lutlab.evaluators import exp_of_mean
from lutlab.experiment.store.record import Record

Points = Sequence[tuple[float, float]]  # (step, value)
LONGEST = 128  # points of a chart of windows: a log call is 0.7 ms, and a text may have thousands


def histories(record: Record, key: str) -> dict[str, Points]:
    """The charts that a record's samples and facts hold.

    Args:
        record: a measured cell.
        key: text or evaluator that its metrics stand under.
    """
    return dict(_charts(record, key))


def _charts(record: Record, key: str) -> Iterator[tuple[str, Points]]:
    evaluator = registry.classes("evaluator").get(record.evaluation["evaluator"])
    samples, facts = record.samples, record.facts
    if evaluator and len(samples) == len(facts.get("layers", ())) > 0:
        yield f"layer/{evaluator.metrics[0].name}", list(enumerate(samples))
    elif evaluator and evaluator.of_this_machine and samples:
        yield f"round/{record.evaluation['evaluator']}_s", list(enumerate(samples, 1))
    elif "ppl" in record.values and len(samples) == facts.get("windows"):
        yield f"window/{key}/ppl", _thin(running_perplexity(samples, facts["seqlen"]))
    if bits := facts.get("bits_by_layer"):
        yield "layer/bits_per_weight", list(enumerate(bits))
    tuning = facts.get("tuning", {})
    for name, chart in (("held_out", "held_out_loss"), ("losses", "loss")):
        if points := tuning.get(name):
            yield f"tuning_step/{chart}", [(step, loss) for step, loss in points]
    for index, curve in enumerate(tuning.get("blocks", ())):
        if curve:
            points = [(step, loss) for step, loss in curve["held_out"]]
            yield f"tuning_block_step/{index}/held_out_error", points


def running_perplexity(nll: Sequence[float], seqlen: int) -> list[tuple[int, float]]:
    """(n, perplexity of the first n windows) of losses in nats, windows of `seqlen` tokens; the last is the text's."""
    sums = itertools.accumulate(nll)
    return [(n, exp_of_mean(total / (n * seqlen))) for n, total in enumerate(sums, 1)]


def _thin(points: Points) -> Points:
    """Evenly spaced points, LONGEST at most; the last one stays."""
    if len(points) <= LONGEST:
        return points
    return [points[len(points) * i // LONGEST - 1] for i in range(1, LONGEST + 1)]


def log_rows(charts: Mapping[str, Points]) -> Iterator[dict[str, float]]:
    """Values to log, call by call: the n-th point of every chart in one, each beside its own step.

    >>> list(log_rows({"layer/bits": [(0, 4.5), (1, 3.5)], "round/latency_s": [(1, 0.25)]}))
    [{'layer': 0, 'layer/bits': 4.5, 'round': 1, 'round/latency_s': 0.25}, {'layer': 1, 'layer/bits': 3.5}]
    """
    by_step: dict[str, dict[float, dict[str, float]]] = {}
    for name, points in charts.items():
        step = name.partition("/")[0]
        for at, value in points:
            by_step.setdefault(step, {}).setdefault(at, {step: at})[name] = value
    for some in itertools.zip_longest(*(rows.values() for rows in by_step.values()), fillvalue={}):
        yield {name: value for row in some for name, value in row.items()}
