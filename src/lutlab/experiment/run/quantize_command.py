"""`lutlab quantize`: a model into a folder, smaller.

    lutlab quantize smollm2-135m method=hessian_bcq q=3 g=64 out=three
    lutlab quantize ../my-model method=gptq q=4 g=64 calibration.text=mine data.text.mine=notes.txt out=four check=true
    lutlab quantize owner/name method=bcq method.offset=true budget=3.5 out=small

Where the line names no text (calibration.text, data, scale), a calibrated method looks at one that the model writes by
itself, once a results folder.

The model is a preset's name, a folder, a GGUF file, or owner/name of the hub. `lutlab chat <folder>` talks with the
result, `lutlab export <folder>` writes it for others. What is not in the list below is a key of a sweep (--help).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.groups import check_bits
from lutlab.base.lazy import PreTrainedModel, nn, torch
from lutlab.base.quiet import quiet
from lutlab.base.specs import Subject, TextSpec
from lutlab.data.protocols import OWN
from lutlab.experiment.run.prepared import Planned
from lutlab.experiment.run.progress import shown
from lutlab.experiment.run.words import command
from lutlab.models.load import load_model, source_bytes, task_here

log = logging.getLogger(__name__)
# Windows of calibration are shorter than the model's own, so that they are many for their cost.
_WINDOW = "calibration.seqlen=512"
_NAMING_A_TEXT = ("calibration.text=", "data", "scale=")
_CHECKED = TextSpec("topics", "embedded", limit=8)
_CHECKED_WINDOW = 512  # tokens
_WORDS: dict[str, tuple[Any, str]] = {
    "out": ("", "new folder of the quantized model."),
    "embeddings": (8, "bits of the table of tokens and the output head; 0 keeps both in 16 bits."),
    "check": (False, "true: perplexity and KL divergence from full precision on a short text."),
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """The command; returns the exit code: 0, 2 for a mistake, 130 where Ctrl-C ended it."""
    return command("quantize", __doc__, _WORDS, _quantize, arguments)


def _quantize(words: dict[str, Any], rest: list[str]) -> int:
    from lutlab.checkpoint.saving import check_new, save
    from lutlab.embeddings import quantize_embeddings

    if not words["out"]:
        raise LutlabError("no place for the result: give a new folder, as out=small")
    check_new(words["out"])
    if not any(word.startswith("calibration.seqlen=") for word in rest):
        rest = [*rest, _WINDOW]
    if not any(word.startswith(_NAMING_A_TEXT) for word in rest):
        rest = [*rest, f"calibration.text={OWN}"]
    planned = Planned.from_line(rest, _WORDS)
    if words["embeddings"]:  # refused before a model is quantized, which may take hours
        check_bits(words["embeddings"])
        if (task := task_here(planned.run.model)) not in ("", "causal_lm"):
            raise LutlabError(
                f"embeddings={words['embeddings']} is of language models, and this one is for {task}: give embeddings=0"
            )
    with shown():
        subject = planned.prepared()
        rows = (
            [_full_precision(subject), ("its layers quantized", *_losses(subject))]
            if words["check"]
            else []
        )
        if words["embeddings"]:
            quantize_embeddings(subject.model, words["embeddings"])
        dtype = _round_to_16_bits(subject.model)
        if rows:
            rows.append(("as it is saved", *_losses(subject)))
        _convert(subject.model, dtype)
        with quiet():
            save(subject.model, words["out"], planned.tokenizer)
    print(_summary(subject, Path(words["out"])))
    if rows:
        print(_table(rows))
    return 0


def _round_to_16_bits(model: PreTrainedModel) -> torch.dtype:
    """Round what is not quantized to the dtype of the source, where that has 16 bits, else to float16.

    Returns:
        The dtype that now holds the model exactly; the model keeps its own, in which it computes. The model's own, with
        a warning, where a number is beyond float16.
    """
    halves, before = (torch.float16, torch.bfloat16), model.dtype
    dtype = model.config.dtype if model.config.dtype in halves else torch.float16
    large = [n for n, p in model.named_parameters() if not torch.isfinite(p.to(dtype)).all()]
    if large:
        log.warning(
            "%s has numbers beyond %s: what is not quantized stays in %s", large[0], dtype, before
        )
        return before
    _convert(model, dtype)
    model.config.dtype = dtype
    _convert(model, before)
    return dtype


def _convert(model: nn.Module, dtype: torch.dtype) -> None:
    model.to(dtype)  # in the signature of torch, which transformers' wrapper hides


def _summary(subject: Subject, folder: Path) -> str:
    """Sizes on disk, stored bits, error of the weights."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    layers = subject.layers
    weights = sum(layer.out_features * layer.in_features for layer in layers)
    bits = sum(layer.bits_stored for layer in layers) / weights
    norm = sum(layer.squared_norm for layer in layers)
    error = sum(layer.squared_error for layer in layers) / norm
    source = source_bytes(subject.run.model)
    calibrated = ""
    if read := subject.run.calibration:
        whose = "the model's own text" if read.text.protocol == OWN else f"'{read.text.protocol}'"
        calibrated = f"calibrated on {read.samples} windows of {whose}\n"
    return (
        f"{folder}: {size / 1e6:.1f} MB on disk; the files of {subject.run.name} have {source / 1e6:.1f} MB\n"
        f"linear layers: {bits:.2f} bits stored a weight, {weights / 1e6:.1f} million weights, relative squared error "
        f"{error:.4f}\n{calibrated}"
        f"talk with it: lutlab chat {folder}"
    )


# ---- check=true ----


def _checked(subject: Subject) -> Subject:
    """The subject with the short text and its windows."""
    from lutlab.data import load_text

    return dataclasses.replace(subject, text=load_text(_CHECKED), seqlen=_CHECKED_WINDOW)


def _losses(subject: Subject) -> tuple[float, float, float]:
    """Perplexity, KL divergence in nats, share of equal top tokens."""
    from lutlab.evaluators.kld import KLDivergence
    from lutlab.evaluators.perplexity import Perplexity

    checked = _checked(subject)
    values = KLDivergence().measure(checked).values
    perplexity = Perplexity().measure(checked).values["ppl"]
    return perplexity, values["kld_mean_nats"], values["top1_agreement"]


def _full_precision(subject: Subject) -> tuple[str, float]:
    """Perplexity of the model before it was quantized."""
    from lutlab.evaluators.perplexity import Perplexity

    run = subject.run
    model = load_model(run.model, getattr(torch, run.dtype), run.device, run.seed).model
    full = dataclasses.replace(_checked(subject), model=model)
    return "full precision", Perplexity().measure(full).values["ppl"]


def _table(rows: Sequence[tuple[Any, ...]]) -> str:
    """Lines of a name, a perplexity, and the distance from full precision, of which it has none itself."""
    text = f"{_CHECKED.limit} windows of {_CHECKED_WINDOW} tokens of Python's documentation"
    head = f"{'':24}{'perplexity':>11}{'KLD, nats a token':>19}{'same top token':>16}"
    lines = []
    for name, ppl, *distance in rows:
        shown_distance = f"{distance[0]:>19.4f}{distance[1]:>16.3f}" if distance else ""
        lines.append(f"{name:24}{ppl:>11.4g}{shown_distance}")
    return "\n".join([f"\non {text}:", head, *lines])
