"""Texts in, texts out, as they grow: tokenizer, engine, choice of tokens, tokenizer again.

    p = softmax(top_p(top_k(logits / temperature)))          in transformers' order, by its own warpers

for piece in lutlab.stream(model, tokenizer, "def main("): print(piece.text, end="")
lutlab.complete(model, tokenizer, ["One", "Another"], tokens=64, temperature=0.8, seed=1)
lutlab.complete(model, tokenizer, "What is the capital of France?", chat=True)         the answer, by the chat template
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, cast

import torch
from pydantic import Field
from tokenizers.decoders import DecodeStream

from lutlab.base import arguments
from lutlab.base.errors import LutlabError
from lutlab.base.fields import check
from lutlab.base.lazy import PreTrainedModel, PreTrainedTokenizerBase, transformers
from lutlab.base.limits import CountFrom0, a_seed
from lutlab.generate import engine as make_engine
from lutlab.generate.contract import Engine
from lutlab.models.families import ends_of_text

log = logging.getLogger(__name__)
# Keys of generation_config.json with which transformers' generate takes another token than the likeliest, or stops
# elsewhere; and the values at which they do not. How tokens are drawn is the caller's choice.
_CHANGING = (
    "repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens",
    "forced_bos_token_id", "forced_eos_token_id", "min_length", "min_new_tokens", "sequence_bias",
    "exponential_decay_length_penalty", "guidance_scale", "num_beams", "penalty_alpha", "stop_strings",
)  # fmt: skip
_NEUTRAL = (None, 0, 1)
# Characters that a chat template may put around a message: those of known models put some hundreds, a hostile one fills
# the memory of the tokenizer.
_AROUND = 2**20
# Messages with a role (system, user, assistant) and a content.
Conversation = list[dict[str, str]]


@dataclass(frozen=True)
class Piece:
    """Letters that one more token has completed; none where a letter takes several tokens.

    Attributes:
        row: index of the prompt.
        text: the letters.
        id: the token.
    """

    row: int
    text: str
    id: int


@dataclass(frozen=True)
class Chooser:
    """The next token of each row of one batch, call by call: its generators advance. Arguments as of stream.

    Raises:
        LutlabError: a value is out of range.
    """

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    top_k: CountFrom0 = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, a_seed] = 0

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Choose by float32 logits [B, V]: ids [B] int64 on the CPU.

        Raises:
            LutlabError: a row has NaN logits.
        """
        if not self.temperature:
            ids = logits.argmax(-1).cpu()
            _check(logits.gather(1, ids[:, None].to(logits.device)))
            return ids
        _check(logits)
        ids = cast("torch.LongTensor", None)  # which none of these warpers reads
        shares = self._warpers(ids, logits.float()).softmax(-1).cpu()
        for row in range(len(self._generators), len(shares)):
            self._generators.append(torch.Generator().manual_seed(self.seed + row))
        rows = zip(shares, self._generators, strict=True)
        return torch.cat([torch.multinomial(row, 1, generator=source) for row, source in rows])

    @cached_property
    def _generators(self) -> list[torch.Generator]:
        return []

    @cached_property
    def _warpers(self) -> transformers.LogitsProcessorList:
        warpers = transformers.LogitsProcessorList()
        if self.temperature != 1:
            warpers.append(transformers.TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k:
            warpers.append(transformers.TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            warpers.append(transformers.TopPLogitsWarper(float(self.top_p)))
        return warpers


def _check(logits: torch.Tensor) -> None:
    if logits.isnan().any():
        raise LutlabError(
            "the model's logits are NaN: it is broken, or quantized beyond use; no token can be chosen"
        )


def stream(
    model: PreTrainedModel | Engine,
    tokenizer: PreTrainedTokenizerBase,
    prompts: str | Sequence[str | Conversation],
    tokens: int = 128,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    cache: str = "",
    chat: bool = False,
) -> Iterator[Piece]:
    """Continue texts, yielding each row's letters as they come; a row ends with the model's own end of text.

    Args:
        model: a causal language model, quantized or not, or an engine made of one (`lutlab.engine`).
        tokenizer: the model's.
        prompts: one, or one a row; none of them empty.
        tokens: most tokens to generate in each row.
        temperature: divisor of the logits; 0 takes the largest.
        top_k: number of the likeliest tokens to draw from; 0: all.
        top_p: probability that the likeliest tokens to draw from have together; 1: all.
        seed: seed of all rows; each draws from a generator of its own, so that no row depends on the others.
        cache: dtype of keys and values, as of `lutlab.engine`.
        chat: whether prompts are a user's messages, or conversations [{"role": …, "content": …}, …], which the
            tokenizer's chat template frames, and rows the answers, which end with the tokenizer's end of text too.

    Raises:
        LutlabError: an argument is out of range, a prompt is empty, there is no chat template or it fails, or prompt
            and tokens exceed the context or the cache.
    """
    choose = Chooser(temperature, top_k, top_p, seed)
    arguments.integer("tokens", tokens, 1, "the tokens to generate, as 128")
    arguments.instance("chat", chat, bool, "True or False")
    ids = encoded(tokenizer, [prompts] if isinstance(prompts, str) else prompts, chat)
    if isinstance(model, torch.nn.Module):
        model = make_engine(model, len(ids), max(map(len, ids)) + tokens - 1, cache)
    if unread := _unread(model.model):
        _warn(unread)
    ends = ends_of_text(model.model) | ({tokenizer.eos_token_id} if chat else set())
    return continued(model, tokenizer, ids, tokens, choose, ends)


def complete(
    model: PreTrainedModel | Engine,
    tokenizer: PreTrainedTokenizerBase,
    prompts: str | Sequence[str],
    tokens: int = 128,
    **options: Any,
) -> str | list[str]:
    """Continue texts; the continuations alone, one for one prompt, a list for several. Arguments, errors: `stream`."""
    single = isinstance(prompts, str)
    texts = [""] * (1 if single else len(prompts))
    for piece in stream(model, tokenizer, prompts, tokens, **options):
        texts[piece.row] += piece.text
    return texts[0] if single else texts


def encoded(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str | Conversation],
    chat: bool = False,
) -> list[torch.Tensor]:
    """Token ids [T] int64 of each prompt, begun as the tokenizer begins texts, or framed by its chat template.

    With `chat` a prompt is a user's message, or a conversation, whose last message is answered.

    Raises:
        LutlabError: no prompt, an empty one, a tokenizer without a fast form, or none or a broken chat template.
    """
    arguments.tokenizer(tokenizer)
    if not tokenizer.is_fast:
        raise LutlabError(
            f"a {type(tokenizer).__name__} cannot decode a growing text: take the model's fast tokenizer "
            "(tokenizer.json)"
        )
    encodings = []
    if not chat or not all(isinstance(prompt, list) for prompt in prompts):
        arguments.strings("prompts", prompts, "texts, as ['Once']")
    for row, prompt in enumerate(prompts):
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        text = _framed(tokenizer, messages) if chat and prompt else prompt
        # A template writes the token that begins a text itself.
        ids = tokenizer(text, add_special_tokens=not chat).input_ids if text else []
        if not ids:
            raise LutlabError(f"prompt {row} is empty: give the text to continue")
        encodings.append(torch.tensor(ids))
    if not encodings:
        raise LutlabError("no prompt: give the text to continue")
    return encodings


def _framed(tokenizer: PreTrainedTokenizerBase, messages: Conversation) -> str:
    """Messages by the chat template, up to where the answer begins.

    A template is a program of whoever made the tokenizer. transformers runs it in Jinja's sandbox: it reaches no file
    and no module, and its time and memory are not bounded (docs/security.md).

    Raises:
        LutlabError: there is no template, it fails, or makes no text or far too long a one.
    """
    if not tokenizer.chat_template:
        raise LutlabError(
            "the tokenizer has no chat template (chat_template.jinja beside its files): the model was hardly trained "
            "to answer messages; drop chat (in `lutlab chat`, give raw=true) to continue a text, or put the template "
            "of the model's authors there"
        )
    try:
        framed = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        text = cast("str", framed)  # not tokenized
        text.encode()
    except Exception as error:  # whatever its program raises
        raise LutlabError(
            f"the tokenizer's chat template fails ({type(error).__name__}: {str(error).partition(chr(10))[0]}): fetch "
            "chat_template.jinja and tokenizer_config.json again, or drop chat to continue a text"
        ) from error
    length = sum(len(message["content"]) for message in messages)
    if not 0 < len(text) <= length + _AROUND:
        raise LutlabError(
            f"the tokenizer's chat template makes {len(text)} characters of messages of {length}: it is broken; "
            "fetch chat_template.jinja and tokenizer_config.json again"
        )
    return text


def continued(
    engine: Engine,
    tokenizer: Any,
    prompts: list[torch.Tensor],
    tokens: int,
    choose: Chooser,
    ends: set[int | None],
) -> Iterator[Piece]:
    """Continue token ids [T] int64, one a row of the engine; a row ends before one of the ids `ends`."""
    longest = max(map(len, prompts)) + tokens - 1  # the last token is chosen, and not read
    if longest > engine.length:
        raise LutlabError(
            f"a prompt of {max(map(len, prompts))} tokens and {tokens} to generate take {longest}, and a row of the "
            f"cache holds {engine.length}: give fewer tokens, or a longer cache"
        )
    decoders = [DecodeStream(ids.tolist(), skip_special_tokens=True) for ids in prompts]
    growing = set(range(engine.batch))
    logits = engine.prefill(prompts)
    for left in reversed(range(tokens)):
        ids = choose(logits)
        for row, token in enumerate(ids.tolist()):
            if row in growing and token in ends:
                growing.remove(row)
            elif row in growing:
                text = decoders[row].step(tokenizer.backend_tokenizer, token)
                yield Piece(row, text or "", token)
        if not growing or not left:
            return
        logits = engine.step(ids)


def _unread(model: PreTrainedModel) -> str:
    """What generation_config.json asks for and no choice of tokens here does, in words."""
    config = model.generation_config
    values = {key: getattr(config, key, None) for key in _CHANGING}
    return ", ".join(f"{key}={value!r}" for key, value in values.items() if value not in _NEUTRAL)


@functools.cache
def _warn(unread: str) -> None:
    """Say it once a process."""
    log.warning(
        "the model's generation_config.json asks for %s, which lutlab does not read: a text may go on otherwise than "
        "by transformers' generate",
        unread,
    )
