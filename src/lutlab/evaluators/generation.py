"""Tokens a second of greedy decoding by an engine, a token at a time, with a key-value cache (QIGen section 4).

    ms_per_token   = median over the repeats of 1000 x seconds / steps      a step adds a token to each row
    tokens_per_s   = batch x 1000 / ms_per_token
    bandwidth_gb_s = gb_per_token / ms_per_token                            bytes that a step in the middle reads

A text begins with its prompt, one token by default, which is read before the clock starts: `tokens` are chosen, the
first by the prompt's logits and each other by a step. It is checked before it is timed: the model, seeing all tokens at
once and without a cache, must choose the same ones.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lutlab import generate
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, torch, transformers
from lutlab.base.limits import MOST, Count
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, Subject
from lutlab.evaluators import check_task, context_length, evaluation_mode
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.evaluators.depth import scaled_to_all_layers
from lutlab.generate.contract import Engine
from lutlab.kernels import ran
from lutlab.models.families import forward_with_cache

TRANSFORMERS = "transformers"  # the engine that is the model's own forward pass
# How far the chosen token's logit may lie below the largest, as a share of their range: rounding may differ between
# one token at a time and all at once.
NEAR = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


@register("evaluator", "generation")
@dataclass(frozen=True)
class Generation(Evaluator):
    """Metrics tokens_per_s, ms_per_token, bandwidth_gb_s and gb_per_token; samples are the seconds of each repeat.

    Attributes:
        tokens: number of tokens to decode; QIGen's Table 3 says 128.
        repeats: number of timed repeats, after one that is checked and not timed.
        prompt: number of tokens of the prompt.
        batch: number of texts that are decoded together.
        cache: dtype of cached keys and values, `float32`, `float16` or `bfloat16`. Empty: the engine's own choice.
        engine: name of the engine: `cpu_step`, `cuda_graph` or `transformers`, the model's own forward pass. Empty: the
            best that takes the model.
        attention: attention of engine=transformers: `eager`, in steps, or `sdpa`, torch's fused one, which is
            FlashAttention on a GPU in 16 bits. Empty: as the model was loaded.

    Raises:
        LutlabError: a number out of range, no such attention, or an attention of another engine.
    """

    version: ClassVar[int] = 2
    task: ClassVar[str] = "causal_lm"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("tokens_per_s", "tokens/s", "decoding", lower_is_better=False),
        Metric("ms_per_token", "ms/token", "decoding"),
        Metric("bandwidth_gb_s", "GB/s", "read while decoding", lower_is_better=False),
        Metric("gb_per_token", "GB", "read for a token"),
    )
    of_this_machine: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("transformers",)
    tokens: Annotated[int, Field(ge=2, le=MOST)] = 128
    repeats: Count = 5
    prompt: Count = 1
    batch: Count = 1
    cache: str = ""
    engine: str = ""
    attention: Literal["", "eager", "sdpa"] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention and self.engine != TRANSFORMERS:
            raise LutlabError(
                f"evaluator.generation.attention={self.attention} is how transformers attends, and other engines have "
                f"an attention of their own: set evaluator.generation.engine={TRANSFORMERS}, or no attention"
            )

    def measure(self, subject: Subject) -> Measurement:
        """Needs no text and no tokenizer."""
        rates = self._rates(subject)
        ms = self.batch * 1e3 / rates.values["tokens_per_s"]
        bandwidth = 1e3 * rates.values["gb_per_token"] / ms
        values = {**rates.values, "ms_per_token": ms, "bandwidth_gb_s": bandwidth}
        return dataclasses.replace(rates, values=values)

    @scaled_to_all_layers
    def _rates(self, subject: Subject) -> Measurement:
        """Rates that a cut model scales exactly: tokens_per_s and gb_per_token."""
        model = subject.model
        check_context(model, self.prompt - 1 + self.tokens)
        with evaluation_mode(model), _attending(model, self.attention) as attention:
            length = self.prompt - 1 + self.tokens
            engine = generate.engine(model, self.batch, length, self.cache, self.engine)
            texts = prompts(model, self.batch, self.prompt)
            check_engine(engine, texts, self.tokens)
            rate = timed(engine, texts, self.tokens, self.repeats)
        middle = self.prompt + self.tokens // 2
        read = engine.bytes_read(middle)
        values = {**rate.values, "gb_per_token": sum(read.values()) / 1e9}
        facts = {**rate.facts, **attention, "bytes_read": read, "bytes_read_at_context": middle}
        return dataclasses.replace(rate, values=values, facts=facts)


@contextmanager
def _attending(model: PreTrainedModel, attention: str) -> Iterator[dict[str, str]]:
    """A context in which the model attends by `attention`; yields a fact that names it, where it is given."""
    if not attention:
        yield {}
        return
    before = model.config._attn_implementation
    model.set_attn_implementation(attention)
    try:
        yield {"attention": attention}
    finally:
        model.set_attn_implementation(before)


def prompts(model: PreTrainedModel, rows: int, tokens: int) -> list[torch.Tensor]:
    """A prompt a row, [tokens] int64: the token that begins a text, or one behind it in other rows, then drawn ones."""
    first, vocabulary = _first(model), model.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(vocabulary, (rows, tokens - 1), generator=generator)
    return [
        torch.cat([torch.tensor([(first + row) % vocabulary]), drawn[row]]) for row in range(rows)
    ]


def decoded(engine: Engine, texts: Sequence[torch.Tensor], tokens: int) -> list[torch.Tensor]:
    """Greedy decoding behind the prompts: [prompt + tokens] int64 of each row. Ends are passed over."""
    first = engine.prefill(texts).argmax(-1)
    rows = torch.cat([first[:, None], engine.greedy(first, tokens - 1)], dim=1).cpu()
    return [torch.cat([text, row]) for text, row in zip(texts, rows, strict=True)]


def check_engine(engine: Engine, texts: Sequence[torch.Tensor], tokens: int) -> None:
    """Raises LutlabError unless the engine chooses the tokens that its model chooses without a cache."""
    for ids, text in zip(decoded(engine, texts, tokens), texts, strict=True):
        check_tokens(engine.model, ids, len(text), engine.facts()["cache"])


def check_tokens(
    model: PreTrainedModel, ids: torch.Tensor, prompt: int = 1, cache: str = ""
) -> None:
    """Raises LutlabError unless the model, without a cache, chooses the tokens that follow the prompt.

    Arguments are those of first_difference.
    """
    at = first_difference(model, ids, prompt, cache)
    if at is not None:
        raise LutlabError(
            f"decoding with a cache and without choose other tokens, first at {at} of {len(ids) - prompt}: the model "
            "is broken, or quantized beyond use; its speed would say nothing"
        )


def timed(engine: Engine, texts: Sequence[torch.Tensor], tokens: int, repeats: int) -> Measurement:
    """Metric tokens_per_s of the steps behind the prompts; samples are seconds."""
    seconds = [_seconds(engine, texts, tokens) for _ in range(repeats)]
    about = {"tokens": tokens, "prompt_tokens": len(texts[0]), "batch": engine.batch}
    facts = engine.facts() | about
    values = {"tokens_per_s": engine.batch * (tokens - 1) / statistics.median(seconds)}
    return Measurement(values=values, n=repeats, samples=tuple(seconds), facts=facts)


def _seconds(engine: Engine, texts: Sequence[torch.Tensor], tokens: int) -> float:
    """Seconds of all steps of one decoding together."""
    first = engine.prefill(texts).argmax(-1)
    wait(engine.model)
    began = time.perf_counter()
    engine.greedy(first, tokens - 1)
    wait(engine.model)
    return time.perf_counter() - began


def wait(model: PreTrainedModel) -> None:
    """Wait until a GPU has finished its queue; a CPU has none."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


# ---- the model's own loop, for what multiplies or is measured inside of its modules ----


def check_decoding(model: PreTrainedModel, tokens: int) -> None:
    """Decode, and raise LutlabError unless the context is long enough and the choices are those without a cache."""
    check_context(model, tokens)
    check_tokens(model, decode(model, tokens))


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
    last = torch.full((1, 1), _first(model), dtype=torch.int64, device=model.device)
    chosen, cache = [last], transformers.DynamicCache(config=model.config)
    for _ in range(tokens):
        out = forward_with_cache(model, cache, input_ids=last)
        last = out.logits[:, -1].argmax(-1, keepdim=True)
        chosen.append(last)
    return torch.tensor(torch.cat(chosen, dim=1)[0].tolist())


def _first(model: PreTrainedModel) -> int:
    return getattr(model.config, "bos_token_id", None) or 0


def kernels() -> list[str]:
    """Names of the kernels that have multiplied since the last call, the fact `kernel`; torch, if none is quantized."""
    return ran.take() or ["torch matmul"]


def first_difference(
    model: PreTrainedModel, ids: torch.Tensor, prompt: int = 1, cache: str = ""
) -> int | None:
    """First decoded token that the model, seeing all at once and without a cache, would not choose; None: no one.

    Args:
        model: model in evaluation mode.
        ids: [prompt + tokens] int64, the prompt first.
        prompt: tokens of the prompt.
        cache: dtype of the cache that chose them; empty: the model's.
    """
    seen, tokens = ids[None, :-1].to(model.device), len(ids) - prompt
    logits = model(input_ids=seen, use_cache=False, logits_to_keep=tokens).logits[0].float()
    largest, smallest = logits.amax(1), logits.amin(1)
    chosen = logits.gather(1, ids[prompt:, None].to(logits.device))[:, 0]
    dtype = str(model.dtype).removeprefix("torch.")
    near = max(NEAR[dtype], NEAR[cache or dtype])
    wrong = ~(largest - chosen <= near * (largest - smallest))  # true for nan as well
    return int(wrong.nonzero()[0]) if wrong.any() else None
