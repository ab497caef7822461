"""LAMBADA by lm-evaluation-harness's definition: is the last word predicted, given everything before it?

    context = text up to its last space, target = " " + last word, L = sum of log p over the target's tokens
    accuracy = share of examples whose every target token is the most likely one; perplexity = exp(-mean L), per word

Paperno et al. 2016; lm-evaluation-harness 0.4.13, tasks lambada_openai and lambada_standard. Up to 0.4.9 the harness
encoded without BOS, since 0.4.10 (PR #3347) as the tokenizer does: `bos` names which.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lutlab.data.tokens import begin_id, examples
from lutlab.errors import LutlabError
from lutlab.evaluators import (
    batch_tokens,
    context_length,
    evaluation_mode,
    exp_of_mean,
    needed,
    text_facts,
)
from lutlab.records import Measurement, Subject
from lutlab.registry import register

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BOS = ("tokenizer", "none")


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
class Lambada:
    """Metrics `lambada_accuracy` (0 to 1), `lambada_perplexity` and their `_stderr`; samples are log-likelihoods.

    Attributes:
        bos: `tokenizer`, begin as the tokenizer does (lm-eval since 0.4.10); `none`, without BOS (up to 0.4.9).
    """

    bos: str = "tokenizer"

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
    window = window or context_length(model) or 2048
    pairs = encode_pairs(tokenizer, examples, bos)
    for index, (_, target) in enumerate(pairs):
        if not 1 <= len(target) <= window:
            raise LutlabError(
                f"example {index} ends with '{examples[index][-30:]}': its last word makes {len(target)} tokens, "
                f"which is not between 1 and the model's context of {window}; remove it"
            )
    scores = _score(model, pairs, window)
    bad = next((i for i, (value, _) in enumerate(scores) if not math.isfinite(value)), None)
    if bad is not None:
        raise LutlabError(
            f"the log-likelihood of example {bad} ('…{examples[bad][-30:]}') is {scores[bad][0]}: the logits overflow "
            f"{model.dtype} or the weights are broken; try dtype=float32"
        )
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
    """Token ids of context and target: the whole text is encoded, and what exceeds the context's ids is the target.

    Raises:
        LutlabError: no texts, an unknown `bos`, or a text of one word for a tokenizer with neither BOS nor EOS.
    """
    if not texts:
        raise LutlabError("there are no examples to predict the last word of")
    if bos not in BOS:
        raise LutlabError(f"bos '{bos}' is none of {', '.join(BOS)}")
    special = bos == "tokenizer" and begin_id(tokenizer) is not None
    # white space before the last word belongs to the target, as in lm-eval
    contexts = [text.rpartition(" ")[0].rstrip() for text in texts]
    wholes = [text if " " in text else f" {text}" for text in texts]
    encoded = [
        tokenizer(list(part), add_special_tokens=special, verbose=False).input_ids
        for part in (contexts, wholes)
    ]
    pairs = []
    for index, (context, whole) in enumerate(zip(*encoded, strict=True)):
        target = whole[len(context) :]
        if not context:  # a text of one word: lm-eval predicts it from BOS, or EOS
            begin = (
                tokenizer.bos_token_id
                if tokenizer.bos_token_id is not None
                else tokenizer.eos_token_id
            )
            if begin is None:
                raise LutlabError(
                    f"example {index} ('{texts[index]}') is one word and the tokenizer has no BOS or EOS to predict it "
                    "from; remove it"
                )
            context = [begin]
        pairs.append((context, target))
    return pairs


def _score(
    model: PreTrainedModel, pairs: Sequence[tuple[list[int], list[int]]], window: int
) -> list[tuple[float, bool]]:
    """Log-likelihood and greediness of each pair's target, in the order of `pairs`."""
    import torch

    # the last target token is predicted, never read; window + 1 ids make a full input, as in lm-eval
    inputs = [(context + target)[-(window + 1) : -1] for context, target in pairs]
    scores: list[tuple[float, bool]] = [(0.0, False)] * len(pairs)
    with evaluation_mode(model):
        for batch in _by_length(inputs, batch_tokens(model)):
            width = len(inputs[batch[0]])
            ids = torch.zeros(len(batch), width, dtype=torch.int64)  # padded on the right
            mask = torch.zeros_like(ids)
            for row, index in enumerate(batch):
                ids[row, : len(inputs[index])] = torch.tensor(inputs[index])
                mask[row, : len(inputs[index])] = 1
            logits = model(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                use_cache=False,
            ).logits  # [B, width, V]
            found = []
            for row, index in enumerate(batch):
                end, target = (
                    len(inputs[index]),
                    torch.tensor(pairs[index][1], device=logits.device),
                )
                log_p = logits[row, end - len(target) : end].float().log_softmax(-1)  # [target, V]
                likelihood = log_p.gather(1, target[:, None]).sum()
                found.append(torch.stack([likelihood, (log_p.argmax(-1) == target).all().float()]))
            for index, (likelihood, greedy) in zip(batch, torch.stack(found).tolist(), strict=True):
                scores[index] = (likelihood, bool(greedy))
    return scores


def _by_length(inputs: Sequence[list[int]], budget: int) -> Iterator[list[int]]:
    """Indices of `inputs`, longest first, in batches of at most `budget` tokens with padding (at least one input)."""
    order = sorted(range(len(inputs)), key=lambda index: -len(inputs[index]))
    while order:
        size = max(1, budget // len(inputs[order[0]]))
        yield order[:size]
        order = order[size:]
