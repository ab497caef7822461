"""Masked-language modelling on a text, and how far a quantized model's predictions moved from full precision.

Of the tokens that data/masking.py chooses, with p the model's and p* the full-precision model's distribution:

    masked_loss       mean of -log p(token that stood there), in nats; masked_perplexity is its exponential
    masked_agreement  share where argmax p = argmax p*
    masked_kl         mean of KL(p* || p) = sum over the vocabulary of p* (log p* - log p), in nats
    masked_bits_per_byte  sum of -log2 p over the chosen tokens / UTF-8 bytes that they spell (data/extents.py)

The last compares tokenizers; of words there is no such number, since chosen tokens are pieces of them.
The full-precision model is the row's own, loaded once more, in the row's dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, torch
from lutlab.base.limits import a_seed
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, ModelRun, Subject
from lutlab.data.masking import MaskedWindows, masked_stream
from lutlab.data.tokens import token_sha256
from lutlab.evaluators import (
    batch_tokens,
    check_task,
    context_length,
    evaluation_mode,
    exp_of_mean,
    needed,
    text_facts,
)
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.evaluators.noise import ratio_error
from lutlab.models.load import load_model

# Sums over the chosen tokens of a window: their number, nll and KL in nats, and where both models agree.
Sums = tuple[int, float, float, int]


@register("evaluator", "masked_lm")
@dataclass(frozen=True)
class MaskedLM(Evaluator):
    """Metrics `masked_loss`, `masked_perplexity`, `masked_agreement` (0 to 1), `masked_kl`, `masked_bits_per_byte`.

    Samples are the windows' mean nll, of those with a chosen token.

    Attributes:
        seed: seed by which masked tokens are chosen.
    """

    version: ClassVar[int] = 2
    task: ClassVar[str] = "masked_lm"
    reads: ClassVar[tuple[str, ...]] = ("stream",)
    golden: ClassVar[str] = "docstrings"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("masked_loss", "nats/token", "masked-token loss"),
        Metric("masked_perplexity", "perplexity", "masked-token ppl"),
        Metric("masked_agreement", "share", "agreement", lower_is_better=False),
        Metric("masked_kl", "nats/token", "KL from full precision"),
        Metric("masked_bits_per_byte", "bits/byte", "masked bits per byte"),
    )

    seed: Annotated[int, a_seed] = 1

    def measure(self, subject: Subject) -> Measurement:
        """Predictions of subject.text's tokens in windows of subject.seqlen."""
        text, tokenizer = needed(subject, "masked_lm")
        check_task(subject.model, "masked_lm", "masked_lm")
        limit = context_length(subject.model)
        if limit is not None and subject.seqlen > limit:
            raise LutlabError(f"a window of {subject.seqlen} tokens exceeds the context of {limit}")
        windows = masked_stream(text, tokenizer, subject.seqlen, self.seed)
        sums = masked_predictions(subject.model, _full_precision(subject.run), windows)
        sizes = (windows.sizes * windows.chosen).sum(1).tolist()
        tokens, nll, kl, agreeing = zip(*sums, strict=True)
        ratios = {
            "masked_loss": (nll, tokens),
            "masked_agreement": (agreeing, tokens),
            "masked_kl": (kl, tokens),
            "masked_bits_per_byte": ([nats / math.log(2) for nats in nll], sizes),
        }
        values = {name: sum(parts) / sum(wholes) for name, (parts, wholes) in ratios.items()}
        errors = {name: ratio_error(*parts) for name, parts in ratios.items()}
        values["masked_perplexity"] = exp_of_mean(values["masked_loss"])
        errors["masked_perplexity"] = values["masked_perplexity"] * errors["masked_loss"]
        facts = text_facts(text, tokenizer) | {
            "token_sha256": token_sha256(windows.read),
            "seqlen": subject.seqlen,
            "windows": len(sums),
            "tokens": sum(tokens),
            "scored_bytes": sum(sizes),
            "seed": self.seed,
            "loss_dtype": "float32",
        }
        samples = tuple(nats / n for nats, n in zip(nll, tokens, strict=True) if n)
        errors = {name: error for name, error in errors.items() if math.isfinite(error)}
        return Measurement(values, sum(tokens), samples, facts, errors)


def _full_precision(run: ModelRun) -> PreTrainedModel:
    """The model of a row before it is quantized."""
    return load_model(run.model, getattr(torch, run.dtype), run.device, run.seed).model


def masked_predictions(
    model: PreTrainedModel, reference: PreTrainedModel, windows: MaskedWindows
) -> list[Sums]:
    """Predictions of the chosen tokens, window by window, beside those of a model of the same vocabulary and device.

    Raises:
        LutlabError: a loss or a KL that is not finite.
    """
    size = max(1, batch_tokens(model) // windows.ids.shape[1])
    parts = (part.split(size) for part in (windows.ids, windows.read, windows.chosen))
    sums: list[Sums] = []
    with evaluation_mode(model), evaluation_mode(reference):
        for ids, read, chosen in zip(*parts, strict=True):
            chosen = chosen.to(model.device)
            sums += _sums(
                _log_p(model, read, chosen),
                _log_p(reference, read, chosen),
                ids.to(model.device)[chosen],
                chosen.sum(1).tolist(),
            )
    for window, (_, nll, kl, _) in enumerate(sums):
        if not math.isfinite(nll + kl):
            raise LutlabError(
                f"the loss of window {window} is {nll}, its KL {kl}: the logits overflow {model.dtype} or the weights "
                "are broken; try dtype=float32"
            )
    return sums


def _log_p(model: PreTrainedModel, read: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [n, V] of the n chosen tokens of windows [B, S]."""
    return model(input_ids=read.to(model.device)).logits[chosen].float().log_softmax(-1)


def _sums(
    log_p: torch.Tensor, full: torch.Tensor, ids: torch.Tensor, counts: list[int]
) -> list[Sums]:
    """Sums a window of log-probabilities [n, V] against ids [n] and the reference's; counts: chosen tokens of each."""
    nll = -log_p.gather(1, ids[:, None])[:, 0]
    kl = (full.exp() * (full - log_p)).sum(-1)
    agreeing = log_p.argmax(-1) == full.argmax(-1)
    parts = (part.split(counts) for part in (nll.double(), kl.double(), agreeing))
    return [
        (len(losses), losses.sum().item(), divergences.sum().item(), int(same.sum()))
        for losses, divergences, same in zip(*parts, strict=True)
    ]
