"""Any task of lm-evaluation-harness, by its own name and metrics: `evaluate=[lm_eval:piqa,lm_eval:boolq]`.

Tasks whose rows lutlab reads (data/tasks.py) take them from `data.source`; the rows of all others lm-eval fetches from
the hub by itself. Groups of tasks are named task by task, since a cell is one number's. lambada.py and zero_shot.py
have tasks under names of ours.
"""

from __future__ import annotations

import importlib.util
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from lutlab.base.errors import LutlabError
from lutlab.base.limits import Count
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, ModelRun, Subject, Text
from lutlab.data import tasks
from lutlab.evaluators import context_length, harness, needed, text_facts
from lutlab.evaluators.contract import Evaluator, Metric, metric_of


@dataclass(frozen=True)
class HarnessEvaluator(Evaluator):
    """A task's scores, under names of ours or under lm-eval's.

    Attributes:
        bos: `tokenizer`, begin as the tokenizer does (lm-eval since 0.4.10); `none`, without BOS (up to 0.4.9).
        batch_size: number of requests that are evaluated together.
    """

    name: ClassVar[str]  # as registered
    sampled: ClassVar[str] = ""  # lm-eval's metric whose items are the samples; empty: the first
    # our name of a metric -> lm-eval's, of which the first that the task has counts; empty: all under lm-eval's
    names: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    task: ClassVar[str] = "causal_lm"
    libraries: ClassVar[tuple[str, ...]] = ("lm-eval",)

    bos: str = "tokenizer"
    batch_size: Count = harness.BATCH_SIZE

    @classmethod
    def obstacle(cls, run: ModelRun) -> str:
        """Reason why it cannot run: lm-eval is not installed."""
        return tasks.MISSING if importlib.util.find_spec("lm_eval") is None else ""

    def check_text(self, text: Text) -> None:
        """Raises LutlabError: the text is none that it measures."""

    def measure(self, subject: Subject) -> Measurement:
        """Scores of subject.text; contexts are cut to the model's context, or subject.seqlen if it has none."""
        text, tokenizer = needed(subject, self.name)
        self.check_text(text)
        window = context_length(subject.model) or subject.seqlen
        scores = harness.scores(subject.model, tokenizer, text, self.bos, self.batch_size, window)
        names = {name: name for name in scores.values}
        if self.names:
            names = {o: next(n for n in t if n in scores.values) for o, t in self.names.items()}
        first = scores.items[self.sampled] if self.sampled else next(iter(scores.items.values()))
        plain = all(isinstance(item, numbers.Real) for item in first)
        return Measurement(
            values={ours: scores.values[of_task] for ours, of_task in names.items()},
            n=scores.n,
            samples=tuple(map(float, first)) if plain else (),
            facts=text_facts(text, tokenizer) | scores.facts,
            errors={o: scores.errors[t] for o, t in names.items() if t in scores.errors},
        )


@register("evaluator", "lm_eval")
class LmEval(HarnessEvaluator):
    """The task's own metrics, under lm-eval's names; samples are those of its first metric, where they are numbers.

    Those declared are of most tasks; a task has some of them, and may have others, which stand in its record.
    """

    version: ClassVar[int] = 1
    name: ClassVar[str] = "lm_eval"
    reads: ClassVar[tuple[str, ...]] = ("examples", "choices")
    golden: ClassVar[str] = "passages"
    reads_tasks: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("acc", "accuracy", "acc", lower_is_better=False),
        Metric("acc_norm", "accuracy", "acc_norm", lower_is_better=False),
        Metric("exact_match", "share", "exact match", lower_is_better=False),
        Metric("f1", "F1", "F1", lower_is_better=False),
        Metric("mcc", "correlation", "MCC", lower_is_better=False),
        Metric("perplexity", "perplexity", "last word"),
        Metric("word_perplexity", "perplexity of a word", "word ppl"),
        Metric("byte_perplexity", "perplexity of a byte", "byte ppl"),
        Metric("bits_per_byte", "bits/byte", "bits per byte"),
    )

    @classmethod
    def shown(cls, text: str) -> Metric:
        """The first of the task's metrics that is declared here.

        Raises:
            LutlabError: no task is named, lm-eval has none of that name, or it has other metrics only.
        """
        if not text:
            raise LutlabError("lm_eval measures a task: name one, as evaluate=[lm_eval:piqa]")
        named = tasks.metrics_of(tasks.protocol_of(text))
        metric = next((metric for name in named if (metric := metric_of(cls, name))), None)
        if metric is None:
            raise LutlabError(
                f"lm-eval's task '{text}' has metrics of its own ({', '.join(named) or 'made by its code'}), which no "
                f"column shows: known are {', '.join(metric.name for metric in cls.metrics)}"
            )
        return metric
