"""Tokens a second of greedy decoding: a token at a time, batch 1, with a key-value cache (QIGen section 4).

    tokens_per_s = tokens / median over the repeats of the seconds that decoding them took

Decoding begins with the one token that begins a text, so every step is the product of a matrix and a vector. It is
checked before it is timed: the model, seeing all tokens at once and without a cache, must choose the same ones.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lutlab.errors import LutlabError, nearest
from lutlab.evaluators import check_task, context_length, evaluation_mode
from lutlab.evaluators.contract import Evaluator, Metric, Work
from lutlab.evaluators.depth import scaled_to_all_layers
from lutlab.registry import register
from lutlab.specs import Measurement, RunSpec, Subject

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

ATTENTIONS = ("eager", "sdpa")
# How far the chosen token's logit may lie below the largest, as a share of their range: rounding may differ between
# one token at a time and all at once.
_NEAR = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


@register("evaluator", "generation")
@dataclass(frozen=True)
class Generation(Evaluator):
    """Metric `tokens_per_s`, higher is better; samples are the seconds of each repeat.

    Attributes:
        tokens: to decode; QIGen's Table 3 says 128.
        repeats: timed, after one that is checked and not timed.
        attention: of transformers: `eager`, in steps, or `sdpa`, torch's fused one, which is FlashAttention on a GPU in
            16 bits. Empty: as the model was loaded.

    Raises:
        LutlabError: no such attention.
    """

    version: ClassVar[int] = 1
    task: ClassVar[str] = "causal_lm"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("tokens_per_s", "tokens/s", "decoding", lower_is_better=False),
    )
    of_this_machine: ClassVar[bool] = True
    tokens: int = 128
    repeats: int = 5
    attention: str = ""

    def __post_init__(self) -> None:
        if self.attention not in ("", *ATTENTIONS):
            raise LutlabError(
                f"evaluator.generation.attention={self.attention}: {nearest(self.attention, ATTENTIONS)}"
            )

    def work(self, run: RunSpec) -> Work:
        """A decoding that is checked, and the timed ones."""
        return decoding(self.tokens, self.repeats)

    @scaled_to_all_layers
    def measure(self, subject: Subject) -> Measurement:
        """Needs no text and no tokenizer.

        Raises:
            LutlabError: the model's context is too short, or decoding with a cache chooses other tokens than without.
        """
        with _attending(subject.model, self.attention) as said:
            found = timed(subject.model, self.tokens, self.repeats)
        return dataclasses.replace(found, facts={**found.facts, **said})


@contextmanager
def _attending(model: PreTrainedModel, attention: str) -> Iterator[dict[str, str]]:
    """The model attends so inside; a fact says how, where it was asked for."""
    if not attention:
        yield {}
        return
    before = model.config._attn_implementation
    model.set_attn_implementation(attention)
    try:
        yield {"attention": attention}
    finally:
        model.set_attn_implementation(before)


def decoding(tokens: int, repeats: int) -> Work:
    """The cost of `timed`."""
    return Work(checked_tokens=tokens, decoded_tokens=(1 + repeats) * tokens)


def timed(model: PreTrainedModel, tokens: int, repeats: int) -> Measurement:
    """Decode, check, decode again and time it; arguments and errors are those of Generation."""
    import torch

    with evaluation_mode(model):
        check_decoding(model, tokens)
        kernels()  # of the check, which sees all tokens at once
        seconds = []
        for _ in range(repeats):
            began = time.perf_counter()
            decode(model, tokens)
            seconds.append(time.perf_counter() - began)
    facts = {
        "tokens": tokens,
        "prompt_tokens": 1,
        "kernel": kernels(),
        "threads": torch.get_num_threads(),
    }
    values = {"tokens_per_s": tokens / statistics.median(seconds)}
    return Measurement(values=values, n=repeats, samples=tuple(seconds), facts=facts)


def check_decoding(model: PreTrainedModel, tokens: int) -> None:
    """Decode, and raise LutlabError unless the context is long enough and the choices are those without a cache."""
    check_context(model, tokens)
    _check(model, decode(model, tokens))


def check_context(model: PreTrainedModel, tokens: int) -> None:
    """Raises LutlabError unless the model decodes and its context holds the first token and all but the last."""
    check_task(model, "decoding", "causal_lm")
    limit = context_length(model)
    if limit is not None and tokens > limit:
        raise LutlabError(
            f"a model with a context of {limit} tokens cannot decode {tokens}: choose a model with a longer one"
        )


def decode(model: PreTrainedModel, tokens: int) -> torch.Tensor:
    """Greedy decoding from the token that begins a text: [1 + tokens] int64, that token first. Ends are passed over."""
    import torch

    first = getattr(model.config, "bos_token_id", None) or 0
    last = torch.full((1, 1), first, dtype=torch.int64, device=model.device)
    chosen, cache = [last], None
    for _ in range(tokens):
        out = model(input_ids=last, past_key_values=cache, use_cache=True)
        last, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values
        chosen.append(last)
    return torch.tensor(torch.cat(chosen, dim=1)[0].tolist())


def kernels() -> list[str]:
    """Names of the kernels that have multiplied since the last call, the fact `kernel`; torch, if none is quantized."""
    from lutlab.kernels import ran

    return ran.take() or ["torch matmul"]


def first_difference(model: PreTrainedModel, ids: torch.Tensor) -> int | None:
    """First decoded token that the model, seeing all at once and without a cache, would not choose; None: no one.

    Args:
        model: in evaluation mode.
        ids: of `decode`, [1 + tokens].
    """
    logits = model(input_ids=ids[None, :-1].to(model.device), use_cache=False).logits[0].float()
    largest, smallest = logits.amax(1), logits.amin(1)
    chosen = logits.gather(1, ids[1:, None].to(logits.device))[:, 0]
    near = _NEAR[str(model.dtype).removeprefix("torch.")]
    wrong = ~(largest - chosen <= near * (largest - smallest))  # true for nan as well
    return int(wrong.nonzero()[0]) if wrong.any() else None


def _check(model: PreTrainedModel, ids: torch.Tensor) -> None:
    at = first_difference(model, ids)
    if at is not None:
        raise LutlabError(
            f"decoding with a cache and without choose other tokens, first at {at} of {len(ids) - 1}: the model is "
            "broken, or quantized beyond use; its speed would say nothing"
        )
