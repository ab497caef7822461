"""From each example's metrics to a task's values and standard errors, without the examples that have no likelihood.

With s^2 = sum (x_i - mean)^2 / (n - 1), r = sum a_i / sum b_i, and by linearization (delta method):

    m = mean of x_i     s / sqrt(n)
    exp(-m)             exp(-m) s / sqrt(n)
    exp(-r)             exp(-r) e, with e = sqrt(n / (n - 1) * sum (a_i - r b_i)^2) / sum b_i
    -r / ln 2           e / ln 2
"""

from __future__ import annotations

import hashlib
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lm_eval.api import metrics
from lm_eval.api.task import Task

from lutlab.errors import LutlabError
from lutlab.evaluators.harness.model import CountingLM


def counted(task: Task, samples: Sequence[Mapping[str, Any]], lm: CountingLM) -> dict[str, Any]:
    """The fields n, values, errors and items of Scores.

    Raises:
        LutlabError: no example has a likelihood, or a value is not finite.
    """
    kept = [sample for sample in samples if sample["doc_id"] not in lm.left_out]
    if not kept:
        raise LutlabError(_nothing_left(task, samples, lm))
    items: dict[str, list[Any]] = {}
    functions: dict[str, Callable] = {}
    for sample in kept:
        suffix = "" if sample["filter"] == "none" else f",{sample['filter']}"
        for metric in sample["metrics"]:
            items.setdefault(metric + suffix, []).append(sample[metric])
            functions[metric + suffix] = task.aggregation().get(metric, metrics.mean)
    values = {name: functions[name](some) for name, some in items.items()}
    values = {k: float(v) for k, v in values.items() if isinstance(v, numbers.Real)}
    for name, value in values.items():
        if not math.isfinite(value):
            raise LutlabError(f"{name} of '{task.task_name}' is {value}: the model is broken")
    errors = {name: standard_error(functions[name], items[name], values[name]) for name in values}
    return {
        "n": len({sample["doc_id"] for sample in kept}),
        "values": values,
        "errors": {name: error for name, error in errors.items() if error is not None},
        "items": {name: tuple(some) for name, some in items.items()},
    }


def standard_error(aggregation: Callable, items: Sequence[Any], value: float) -> float | None:
    """The standard error of an aggregate of lm-eval's; None where there is no formula, or one example only."""
    if len(items) < 2:
        return None
    if aggregation is metrics.mean:
        return metrics.mean_stderr(items)
    if aggregation is metrics.perplexity:
        return value * metrics.mean_stderr(items)
    if aggregation is metrics.weighted_perplexity:
        return value * _ratio_error(items)
    if aggregation is metrics.bits_per_byte:
        return _ratio_error(items) / math.log(2)
    return None


def _ratio_error(items: Sequence[tuple[float, float]]) -> float:
    """Standard error of sum a / sum b over items (a, b), by linearization."""
    total, n = sum(b for _, b in items), len(items)
    ratio = sum(a for a, _ in items) / total
    return math.sqrt(n / (n - 1) * sum((a - ratio * b) ** 2 for a, b in items)) / total


def documents_sha256(samples: Sequence[Mapping[str, Any]]) -> str:
    """Hash of all documents and prompts in order, by lm-eval's own hash of each."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(f"{sample['doc_hash']} {sample['prompt_hash']}\n".encode())
    return digest.hexdigest()


def _nothing_left(task: Task, samples: Sequence[Mapping[str, Any]], lm: CountingLM) -> str:
    count = len({sample["doc_id"] for sample in samples})
    if lm.not_finite:
        return (
            f"no example of {count} of '{task.task_name}' has a finite log-likelihood: the logits overflow "
            f"{lm.model.dtype} or the weights are broken; try dtype=float32"
        )
    return (
        f"no example of {count} of '{task.task_name}' fits: what is to be predicted makes no tokens or more than the "
        f"model's context of {lm.max_length}, or stands alone for a tokenizer with neither BOS nor EOS"
    )
