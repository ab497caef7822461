"""LAMBADA by lm-evaluation-harness's definition: is the last word predicted, given everything before it?

    context = text up to its last space, target = " " + last word, L = sum of log p over the target's tokens
    accuracy = share of examples whose every target token is the most likely one; perplexity = exp(-mean L), per word

Paperno et al. 2016; lm-evaluation-harness 0.4.13, tasks lambada_openai and lambada_standard; scoring.py has L.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lutlab.data.tokens import begin_id, examples
from lutlab.evaluators import context_length, exp_of_mean, needed, scoring, text_facts
from lutlab.evaluators.contract import Evaluator, Metric, Work
from lutlab.registry import register
from lutlab.specs import Measurement, RunSpec, Subject

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class LambadaResult:
    """accuracy: 0 to 1; perplexity: per last word; n: examples; log_likelihoods: of each last word, in nats."""

    accuracy: float
    perplexity: float
    n: int
    log_likelihoods: tuple[float, ...]

    @property
    def accuracy_stderr(self) -> float:
        """Standard error of the mean of n zeros and ones, with n - 1 as in lm-eval; 0 for one example."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / max(1, self.n - 1))

    @property
    def perplexity_stderr(self) -> float:
        """Delta method: perplexity times the standard error of the mean log-likelihood."""
        mean = sum(self.log_likelihoods) / self.n
        squares = sum((value - mean) ** 2 for value in self.log_likelihoods)
        return self.perplexity * math.sqrt(squares / max(1, self.n - 1) / self.n)


@register("evaluator", "lambada")
@dataclass(frozen=True)
class Lambada(Evaluator):
    """Metrics `lambada_accuracy` (0 to 1), `lambada_perplexity` and their `_stderr`; samples are log-likelihoods.

    Attributes:
        bos: `tokenizer`, begin as the tokenizer does (lm-eval since 0.4.10); `none`, without BOS (up to 0.4.9).
    """

    version: ClassVar[int] = 1
    task: ClassVar[str] = "causal_lm"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("lambada_accuracy", "accuracy", "last word", lower_is_better=False),
        Metric("lambada_perplexity", "perplexity", "last word"),
        Metric("lambada_accuracy_stderr", "accuracy", "last word, standard error"),
        Metric("lambada_perplexity_stderr", "perplexity", "last word, standard error"),
    )

    bos: str = "tokenizer"

    def work(self, run: RunSpec) -> Work:
        """One pass over the text."""
        return Work(passes=1)

    def measure(self, subject: Subject) -> Measurement:
        """Last-word scores of subject.text; contexts are cut to the model's context, or subject.seqlen if it has none.

        Raises:
            LutlabError: no text or tokenizer, a protocol that is no list of examples, or as `lambada`.
        """
        text, tokenizer = needed(subject, "lambada")
        rows = examples(text)
        window = context_length(subject.model) or subject.seqlen
        result = lambada(subject.model, tokenizer, rows, self.bos, window)
        values = {
            "lambada_accuracy": result.accuracy,
            "lambada_perplexity": result.perplexity,
            "lambada_accuracy_stderr": result.accuracy_stderr,
            "lambada_perplexity_stderr": result.perplexity_stderr,
        }
        begin = begin_id(tokenizer) if self.bos == "tokenizer" else None
        facts = text_facts(text, tokenizer) | {
            "bos": begin,
            "seqlen": window,
            "loss_dtype": "float32",
        }
        return Measurement(values=values, n=result.n, samples=result.log_likelihoods, facts=facts)


def lambada(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[str],
    bos: str = "tokenizer",
    window: int | None = None,
) -> LambadaResult:
    """Predict the last word of each example.

    Args:
        model: a transformers causal language model, quantized or not, on any device.
        tokenizer: its tokenizer.
        examples: texts that end with the word to predict.
        bos: `tokenizer` begins a text as the tokenizer does, `none` without BOS.
        window: tokens the model sees at most, contexts are cut from the left; None takes the model's context.

    Raises:
        LutlabError: no examples, an example without a word to predict, a last word longer than the window, or a
            likelihood that is not finite.
    """
    scores = scoring.log_likelihoods(model, tokenizer, _pairs(examples), bos, window)
    likelihoods = tuple(value for value, _ in scores)
    count = len(scores)
    return LambadaResult(
        accuracy=sum(greedy for _, greedy in scores) / count,
        perplexity=exp_of_mean(-sum(likelihoods) / count),
        n=count,
        log_likelihoods=likelihoods,
    )


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], bos: str
) -> list[tuple[list[int], list[int]]]:
    """Token ids of context and last word of each text.

    Raises:
        LutlabError: as scoring.encode_pairs.
    """
    return scoring.encode_pairs(tokenizer, _pairs(texts), bos)


def _pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Each text up to its last space, and the space with the last word; a text of one word has an empty context."""
    halves = [text.rpartition(" ") for text in texts]
    return [(context, f" {word}") for context, _, word in halves]
