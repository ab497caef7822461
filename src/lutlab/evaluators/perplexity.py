"""Perplexity by the GPTQ protocol: disjoint full windows of one token stream, the remainder dropped.

    nll_i = seqlen * mean over the seqlen - 1 predictions of window i of -log p(token | tokens before it in the window)
    ppl   = exp(sum_i nll_i / (n * seqlen))

A token is as much text as its tokenizer makes it; models with different tokenizers are compared by

    bits_per_byte   = sum of -log2 p over the predicted tokens / UTF-8 bytes that they spell
    word_perplexity = exp(sum of -log p over the predicted tokens / words that end in them)

Neither counts the first token of a window (BOS, of the first one), which is not predicted, nor the remainder
(data/extents.py). lm-evaluation-harness reads every token of disjoint documents, so its numbers are others.

GPTQ repository, commit 2d65066, opt.py `opt_eval`; LUT-GEMM used it "without any modification" (v3, section 4.2).
Memory is constant in the text's length: the logits of one batch of windows exist at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from lutlab.base import arguments
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, PreTrainedTokenizerBase, torch
from lutlab.base.progress import steps
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, Subject, Text
from lutlab.data import user
from lutlab.data.extents import stream_extents
from lutlab.data.tokens import begin_id, encode, token_sha256, token_stream
from lutlab.evaluators import (
    LARGEST_NLL,
    batch_tokens,
    check_evaluated,
    check_task,
    context_length,
    evaluation_mode,
    exp_of_mean,
    needed,
    text_facts,
)
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.evaluators.noise import ratio_error

LossDtype = Literal["float32", "float16"]
LOSS_DTYPES = get_args(LossDtype)
# Float32 logits of one cross entropy: stays in a CPU's cache, a fraction of the batch's own.
_CHUNK_BYTES = 8 * 2**20


@register("evaluator", "ppl")
@dataclass(frozen=True)
class Perplexity(Evaluator):
    """Metrics `ppl`, `bits_per_byte`, `word_perplexity`; samples are the nll of each window, in nats.

    Attributes:
        loss_dtype: dtype of the log-softmax. GPTQ's is `float16` (OPT-125M: 27.65), AWQ's and ours `float32` (27.66).
    """

    version: ClassVar[int] = 2
    task: ClassVar[str] = "causal_lm"
    reads: ClassVar[tuple[str, ...]] = ("stream",)
    golden: ClassVar[str] = "docstrings"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("ppl", "perplexity", "ppl"),
        Metric("bits_per_byte", "bits/byte", "bits per byte"),
        Metric("word_perplexity", "perplexity per word", "word ppl"),
    )

    loss_dtype: LossDtype = "float32"

    def measure(self, subject: Subject) -> Measurement:
        """Perplexity of subject.text in windows of subject.seqlen tokens, per token, byte and word.

        A text without white space, as Chinese, has next to no words: where exp cannot express `word_perplexity`, the
        measurement is without it.
        """
        text, tokenizer = needed(subject, "ppl")
        ids = token_stream(text, tokenizer, subject.seqlen)
        nll = window_nll(subject.model, ids, subject.seqlen, self.loss_dtype)
        facts = stream_facts(text, tokenizer, ids, subject.seqlen)
        facts["loss_dtype"] = self.loss_dtype
        size = len(nll) * subject.seqlen
        scored = stream_extents(text, tokenizer, subject.seqlen)[:, :size]
        scored = scored.view(2, -1, subject.seqlen)[:, :, 1:].sum(2)  # [2, windows]: bytes, words
        facts |= dict(zip(("scored_bytes", "scored_words"), scored.sum(1).tolist(), strict=True))
        values, errors = per_unit(nll, subject.seqlen, *scored.tolist())
        return Measurement(values, len(nll), tuple(nll), facts, errors)


def stream_facts(
    text: Text, tokenizer: PreTrainedTokenizerBase, ids: torch.Tensor, seqlen: int
) -> dict[str, Any]:
    """Facts for repeating a measurement on the same windows of a text, of token ids [T]."""
    return text_facts(text, tokenizer) | {
        "token_sha256": token_sha256(ids),
        "tokens": len(ids),
        "seqlen": seqlen,
        "windows": len(ids) // seqlen,
        "bos": begin_id(tokenizer),
    }


def per_unit(
    nll: Sequence[float], seqlen: int, sizes: Sequence[int], words: Sequence[int]
) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics of Perplexity and their standard errors (delta method over windows).

    Args:
        nll: negative log-likelihood of each window in nats, as window_nll returns it.
        seqlen: tokens of a window, of which all but the first are predicted.
        sizes: UTF-8 bytes that the predicted tokens of each window spell.
        words: number of words that end in each window.
    """
    tokens = [float(seqlen)] * len(nll)
    nats = [value * (seqlen - 1) / seqlen for value in nll]  # summed over the predictions
    bits = [value / math.log(2) for value in nats]
    ppl = exp_of_mean(sum(nll) / sum(tokens))
    values = {"ppl": ppl}
    errors = {"ppl": ppl * ratio_error(nll, tokens)}
    if sum(sizes):
        values["bits_per_byte"] = sum(bits) / sum(sizes)
        errors["bits_per_byte"] = ratio_error(bits, sizes)
    if sum(words) and sum(nats) / sum(words) <= LARGEST_NLL:
        values["word_perplexity"] = math.exp(sum(nats) / sum(words))
        errors["word_perplexity"] = values["word_perplexity"] * ratio_error(nats, words)
    return values, {name: error for name, error in errors.items() if math.isfinite(error)}


def perplexity(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str | Path,
    seqlen: int = 2048,
) -> float:
    """Perplexity per token of one text, by the GPTQ protocol.

    Args:
        model: a transformers causal language model, quantized or not, on any device.
        tokenizer: its tokenizer.
        text: one text, or the Path of a file or folder (data/user.py), tokenised in one piece; what does not fill a
            window of `seqlen` tokens at its end is not counted.
        seqlen: window length. The papers' is 2048 (GPT-2: 1024); numbers of two lengths cannot be compared, so a
            model with a shorter context is an error rather than a shorter window.

    Returns:
        exp of the mean negative log-likelihood in nats.

    Raises:
        LutlabError: seqlen exceeds the model's context, the text is shorter than one window, the tokenizer promises
            BOS but does not set it, or a loss is not finite.
    """
    check_evaluated(model, tokenizer)
    if isinstance(text, Path):
        text = "\n\n".join(user.read(text)[0])
    arguments.text("text", text, "one string, or the pathlib.Path of a file")
    arguments.instance("seqlen", seqlen, int, "the tokens of a window, at least 2")
    ids = torch.tensor(encode(tokenizer, text), dtype=torch.int64)
    if len(ids):
        arguments.token_ids("text", ids[None], model.config.vocab_size)
    nll = window_nll(model, ids, seqlen)
    return exp_of_mean(sum(nll) / (len(nll) * seqlen))


def window_nll(
    model: PreTrainedModel, ids: torch.Tensor, seqlen: int, loss_dtype: str = "float32"
) -> list[float]:
    """Negative log-likelihood of every full window of a token stream.

    Args:
        model: a transformers causal language model.
        ids: [T] int64, T >= seqlen.
        seqlen: window length, at least 2.
        loss_dtype: `float32` or `float16`.

    Returns:
        T // seqlen numbers, in nats.

    Raises:
        LutlabError: a window is longer than the model's context, or a loss is not finite.
    """
    check_task(model, "ppl", "causal_lm")
    if loss_dtype not in LOSS_DTYPES:
        raise LutlabError(f"loss_dtype '{loss_dtype}' is none of {', '.join(LOSS_DTYPES)}")
    nll: list[float] = []
    with evaluation_mode(model):
        for batch in steps(window_batches(model, ids, seqlen), "measuring batch"):
            batch = batch.to(model.device)
            logits = model(input_ids=batch, use_cache=False).logits  # [size, seqlen, V]
            losses = _mean_loss(logits, batch, loss_dtype).tolist()
            del logits  # before the next batch's are made
            for loss in losses:
                if not math.isfinite(value := loss * seqlen):
                    raise LutlabError(
                        f"the loss of window {len(nll)} of {len(ids) // seqlen} (tokens {len(nll) * seqlen} to "
                        f"{(len(nll) + 1) * seqlen - 1}) is {value}: the logits overflow {model.dtype} or the weights "
                        "are broken; try dtype=float32"
                    )
                nll.append(value)
    return nll


def window_batches(
    model: PreTrainedModel, ids: torch.Tensor, seqlen: int
) -> tuple[torch.Tensor, ...]:
    """The full windows of token ids [T], in batches [B, seqlen] of which the model's logits are LOGITS_BYTES.

    Raises:
        LutlabError: a window is longer than the model's context, or there is none.
    """
    limit = context_length(model)
    if limit is not None and seqlen > limit:
        raise LutlabError(
            f"a window of {seqlen} tokens exceeds the model's context of {limit}: pass seqlen={limit} or less"
        )
    if not 2 <= seqlen <= len(ids):
        raise LutlabError(
            f"a text of {len(ids)} tokens has no window of {seqlen}: pass a longer text or seqlen from 2 to {len(ids)}"
        )
    windows = ids[: len(ids) // seqlen * seqlen].view(-1, seqlen)
    return windows.split(max(1, batch_tokens(model) // seqlen))


def _mean_loss(logits: torch.Tensor, ids: torch.Tensor, loss_dtype: str) -> torch.Tensor:
    """Mean cross entropy [B] of logits [B, S, V] against ids [B, S] one position later.

    Rows run over all windows at once: slicing off each window's last position would copy the logits.
    """
    dtype = getattr(torch, loss_dtype)
    # -100 is cross_entropy's ignore_index: a last position predicts nothing
    targets = torch.full_like(ids, -100)
    targets[:, :-1] = ids[:, 1:]
    rows = max(1, _CHUNK_BYTES // (4 * logits.shape[-1]))
    chunks = zip(logits.flatten(0, 1).split(rows), targets.flatten().split(rows), strict=True)
    losses = [
        torch.nn.functional.cross_entropy(chunk.to(dtype), expected, reduction="none").float()
        for chunk, expected in chunks
    ]
    return (torch.cat(losses).view(ids.shape).sum(1) / (ids.shape[1] - 1)).to(dtype)
