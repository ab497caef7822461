"""Multiple choice by lm-evaluation-harness's definition: is the right ending the most likely one?

    L_i = log p(ending i | its context), summed over tokens (scoring.py)
    accuracy:      share of items where argmax L_i is the right ending
    accuracy_norm: share where argmax L_i / characters of ending i (without its leading space) is: long endings are
                   unlikely because they are long

lm-evaluation-harness 0.4.13, `acc` and `acc_norm` of tasks piqa, hellaswag, winogrande, arc_easy, arc_challenge. The
harness's acc_norm counts characters, not bytes; for winogrande, whose endings are equal, both are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lutlab.data.choices import Choice, choices
from lutlab.data.tokens import begin_id
from lutlab.evaluators import context_length, needed, scoring, text_facts
from lutlab.evaluators.contract import Evaluator, Metric, Work
from lutlab.registry import register
from lutlab.specs import Measurement, RunSpec, Subject

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class ZeroShotResult:
    """accuracy, accuracy_norm: 0 to 1; n: items; margins: the right ending's L less the best other's, in nats."""

    accuracy: float
    accuracy_norm: float
    n: int
    margins: tuple[float, ...]

    def stderr(self, accuracy: float) -> float:
        """Standard error of the mean of n zeros and ones, with n - 1 as in lm-eval; 0 for one item."""
        return math.sqrt(accuracy * (1 - accuracy) / max(1, self.n - 1))


@register("evaluator", "zero_shot")
@dataclass(frozen=True)
class ZeroShot(Evaluator):
    """Metrics `accuracy`, `accuracy_norm` (0 to 1) and their `_stderr`; samples are margins, positive where right.

    Attributes:
        bos: `tokenizer`, begin as the tokenizer does (lm-eval since 0.4.10); `none`, without BOS (up to 0.4.9).
    """

    version: ClassVar[int] = 1
    task: ClassVar[str] = "causal_lm"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy", "accuracy", "zero-shot", lower_is_better=False),
        Metric("accuracy_norm", "accuracy", "zero-shot by length", lower_is_better=False),
        Metric("accuracy_stderr", "accuracy", "zero-shot, standard error"),
        Metric("accuracy_norm_stderr", "accuracy", "zero-shot by length, standard error"),
    )

    bos: str = "tokenizer"

    def work(self, run: RunSpec) -> Work:
        """One pass over the text, every ending with its context."""
        return Work(passes=1)

    def measure(self, subject: Subject) -> Measurement:
        """Scores of subject.text; contexts are cut to the model's context, or subject.seqlen if it has none.

        Raises:
            LutlabError: no text or tokenizer, a protocol without items to choose in, or as `zero_shot`.
        """
        text, tokenizer = needed(subject, "zero_shot")
        items = choices(text)
        window = context_length(subject.model) or subject.seqlen
        result = zero_shot(subject.model, tokenizer, items, self.bos, window)
        values = {
            "accuracy": result.accuracy,
            "accuracy_norm": result.accuracy_norm,
            "accuracy_stderr": result.stderr(result.accuracy),
            "accuracy_norm_stderr": result.stderr(result.accuracy_norm),
        }
        begin = begin_id(tokenizer) if self.bos == "tokenizer" else None
        facts = text_facts(text, tokenizer) | {
            "bos": begin,
            "seqlen": window,
            "loss_dtype": "float32",
        }
        return Measurement(values=values, n=result.n, samples=result.margins, facts=facts)


def zero_shot(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    items: Sequence[Choice],
    bos: str = "tokenizer",
    window: int | None = None,
) -> ZeroShotResult:
    """Choose an ending of each item.

    Args:
        model: a transformers causal language model, quantized or not, on any device.
        tokenizer: its tokenizer.
        items: what to choose among.
        bos: `tokenizer` begins a text as the tokenizer does, `none` without BOS.
        window: tokens the model sees at most, contexts are cut from the left; None takes the model's context.

    Raises:
        LutlabError: as scoring.log_likelihoods; its examples are the endings of all items, counted through.
    """
    pairs = [pair for item in items for pair in zip(item.contexts, item.endings, strict=True)]
    scores = iter(scoring.log_likelihoods(model, tokenizer, pairs, bos, window))
    right = right_norm = 0
    margins = []
    for item in items:
        likelihoods = [next(scores)[0] for _ in item.endings]
        norms = [
            value / len(ending.removeprefix(" "))
            for value, ending in zip(likelihoods, item.endings, strict=True)
        ]
        # the first of equal ones is chosen, as by numpy's argmax in lm-eval
        right += likelihoods.index(max(likelihoods)) == item.gold
        right_norm += norms.index(max(norms)) == item.gold
        gold = likelihoods.pop(item.gold)
        margins.append(gold - max(likelihoods))
    count = len(items)
    return ZeroShotResult(right / count, right_norm / count, count, tuple(margins))
