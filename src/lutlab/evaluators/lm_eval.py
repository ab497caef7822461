"""Any task of lm-evaluation-harness, by its own name and metrics: `evaluate=[lm_eval:piqa,lm_eval:boolq]`.

Tasks whose rows lutlab reads (data/tasks.py) take them from `data.source`; the rows of all others lm-eval fetches from
the hub by itself. Groups of tasks are named task by task, since a cell is one number's.
"""

from __future__ import annotations

from typing import ClassVar

from lutlab.data import tasks
from lutlab.errors import LutlabError
from lutlab.evaluators.contract import Metric, metric_of
from lutlab.evaluators.harness.evaluator import HarnessEvaluator
from lutlab.registry import register


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
        found = next((metric for name in named if (metric := metric_of(cls, name))), None)
        if found is None:
            raise LutlabError(
                f"lm-eval's task '{text}' has metrics of its own ({', '.join(named) or 'made by its code'}), which no "
                f"column shows: known are {', '.join(metric.name for metric in cls.metrics)}"
            )
        return found
