"""Evaluators: a model, or products, in, a Measurement out. One file a metric; what several of them need stands here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lutlab.base import arguments, registry
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, PreTrainedTokenizerBase, torch
from lutlab.base.specs import Subject, Text
from lutlab.data.tokens import tokenizer_sha256
from lutlab.models.families import task_of

# Logits of one batch; larger ones were no faster on a CPU and cost memory on a GPU.
LOGITS_BYTES = 64 * 2**20
LARGEST_NLL = 700.0  # nats; exp of more is beyond a float


@contextmanager
def evaluation_mode(model: PreTrainedModel) -> Iterator[None]:
    """Dropout off and no autograd inside; the model's mode is put back (`from_config` makes training models)."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


def context_length(model: PreTrainedModel) -> int | None:
    """Longest sequence the model's config states, None where it states none."""
    return getattr(model.config, "max_position_embeddings", None)


def batch_tokens(model: PreTrainedModel) -> int:
    """Tokens of a batch whose logits [tokens, vocabulary] fill LOGITS_BYTES; at least one."""
    return max(1, LOGITS_BYTES // (model.config.vocab_size * model.dtype.itemsize))


def check_task(model: PreTrainedModel, evaluator: str, task: str) -> None:
    """A model of another task has no such number; one of no family of ours is taken at its word.

    Raises:
        LutlabError: the model's head is for another task.
    """
    if model.config.model_type not in registry.classes("family"):
        return
    actual = task_of(model)
    if actual != task:
        every = registry.classes("evaluator").items()
        known = " or ".join(name for name, cls in every if cls.task == actual and cls.reads)
        raise LutlabError(
            f"{evaluator} measures models for {task}, and this one is for {actual}: evaluate {known}"
        )


def check_evaluated(model: Any, tokenizer: Any) -> None:
    """Refuse what is no causal language model with a tokenizer, as a user's call may give it.

    Raises:
        LutlabError: a model of another kind or task, without weights or without a head.
    """
    arguments.model(model, streamed=True)
    arguments.tokenizer(tokenizer)
    check_task(model, "this", "causal_lm")
    if model.get_output_embeddings() is None:
        raise LutlabError(
            f"a {type(model).__name__} has no head that predicts tokens: load it by AutoModelForCausalLM"
        )


def exp_of_mean(nll: float) -> float:
    """Perplexity of a mean negative log-likelihood in nats; raises LutlabError beyond the range of a float."""
    if nll > LARGEST_NLL:
        raise LutlabError(
            f"the mean negative log-likelihood is {nll:.0f} nats, beyond what exp can express: "
            "the model is broken, or quantized beyond use"
        )
    return math.exp(nll)


def needed(subject: Subject, evaluator: str) -> tuple[Text, PreTrainedTokenizerBase]:
    """The subject's text and tokenizer; raises LutlabError where either is missing."""
    if subject.text is None or subject.tokenizer is None:
        lacking = "text" if subject.text is None else "tokenizer"
        raise LutlabError(
            f"{evaluator} needs a {lacking}, this cell has none: synthetic models have no tokenizer, and a text is "
            "named by the column (evaluate=[ppl:wikitext2])"
        )
    return subject.text, subject.tokenizer


def text_facts(text: Text, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Facts for repeating the measurement on the same rows with the same tokenizer."""
    return {
        "protocol": text.protocol,
        "origin": text.origin,
        "text_sha256": text.sha256,
        "limit": text.limit,
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
    }
