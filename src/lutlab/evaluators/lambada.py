"""LAMBADA by lm-evaluation-harness: is the last word predicted, given everything before it?

    context = text up to its last space, target = " " + last word, L = sum of log p over the target's tokens
    accuracy = share of examples whose every target token is the most likely one; perplexity = exp(-mean L), per word

Paperno et al. 2016; lm-evaluation-harness, tasks lambada_openai and lambada_standard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lutlab.base import arguments
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, PreTrainedTokenizerBase
from lutlab.base.registry import register
from lutlab.base.specs import Text
from lutlab.data.tokens import examples as rows_of
from lutlab.evaluators import check_evaluated, harness
from lutlab.evaluators.contract import Metric
from lutlab.evaluators.lm_eval import HarnessEvaluator


@dataclass(frozen=True)
class LambadaResult:
    """Last-word scores.

    Attributes:
        accuracy: 0 to 1.
        perplexity: perplexity per last word.
        n: examples that count.
        log_likelihoods: log likelihood of each counted last word, in nats.
        accuracy_stderr: standard error of the mean of n zeros and ones, with n - 1; 0 for one example.
        perplexity_stderr: standard error of the perplexity by the delta method; 0 for one example.
        cut: places in `examples` of those whose context exceeds the model's, and lost its beginning.
        left_out: places of those that do not count: their last word exceeds the model's context, stands alone for a
            tokenizer with neither BOS nor EOS, or has a likelihood that is NaN or infinite.
    """

    accuracy: float
    perplexity: float
    n: int
    log_likelihoods: tuple[float, ...]
    accuracy_stderr: float
    perplexity_stderr: float
    cut: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()


@register("evaluator", "lambada")
class Lambada(HarnessEvaluator):
    """Metrics `lambada_accuracy` (0 to 1), `lambada_perplexity`; samples: log-likelihoods of the last words."""

    version: ClassVar[int] = 2
    name: ClassVar[str] = "lambada"
    sampled: ClassVar[str] = "perplexity"
    names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "lambada_accuracy": ("acc",),
        "lambada_perplexity": ("perplexity",),
    }
    reads: ClassVar[tuple[str, ...]] = ("examples",)
    golden: ClassVar[str] = "passages"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("lambada_accuracy", "accuracy", "last word", lower_is_better=False),
        Metric("lambada_perplexity", "perplexity", "last word"),
    )

    def check_text(self, text: Text) -> None:
        """Raises LutlabError: a protocol that is no list of examples."""
        rows_of(text)


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
        LutlabError: no examples, none with a likelihood, or a model of another task.
    """
    check_evaluated(model, tokenizer)
    rows = arguments.strings("examples", examples, 'a list of texts, as ["... the last word"]')
    if blank := [at for at, row in enumerate(rows) if not row.rpartition(" ")[2].strip()]:
        raise LutlabError(
            f"examples[{blank[0]}] ends with a space: give texts that end with a word"
        )
    arguments.instance("bos", bos, str, "tokenizer or none")
    if window is not None:
        arguments.integer("window", window, 2, "the tokens that the model sees at most, at least 2")
    text = Text("lambada", rows, "", "")
    scores = harness.scores(model, tokenizer, text, bos, window=window)
    return LambadaResult(
        accuracy=scores.values["acc"],
        perplexity=scores.values["perplexity"],
        n=scores.n,
        log_likelihoods=scores.items["perplexity"],
        accuracy_stderr=scores.errors.get("acc", 0.0),
        perplexity_stderr=scores.errors.get("perplexity", 0.0),
        cut=tuple(scores.facts["cut"]),
        left_out=tuple(sorted(scores.facts["unfit"] + scores.facts["not_finite"])),
    )
