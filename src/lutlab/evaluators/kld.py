"""Divergence of a model's next-token distributions from those of its full-precision model, on the windows of `ppl`.

    KL_t = sum over the vocabulary of p* (log p* - log p), in nats      p*: full precision, p: the model; t: a token
    kld_mean_nats, kld_median_nats, kld_p90_nats, kld_p99_nats          mean and percentiles over t
    top1_agreement = share of t where argmax p* = argmax p

t runs over the positions whose next token `ppl` scores, all but the last of each window; llama.cpp's
`--kl-divergence` reads the second half of each window only. Percentiles are numpy's `linear`: between the two nearest
ranks. Distributions are computed in float64, of logits in the model's dtype: a token's KL is a sum of terms of both
signs, and in float32 rounding alone is 1e-7. It takes 13 % of a forward pass of SmolLM2-135M, float32 9 %.

The full-precision model is the row's own, in the row's dtype; a table has many rows of it, so its pass is kept in the
cache folder, and the rows after the first do without. Kept are the inputs of its head, in the model's dtype, and the
head multiplies them again: of SmolLM2-135M 4.7 MB a window of 2,048 tokens, where logits in half precision are 201 MB.
That costs 11 % of a pass (reading such logits: 7 %), and no digit: the same weights have a KL of exactly 0, where
log-probabilities rounded to float16 would add 4e-7 nats a token.

    <cache>/full-precision/<key>/window-0000.safetensors    a file a batch of windows (compress/kept_blocks.py)

The key is of all that decides them: weights, tokens, dtype, versions. Folders that were not used for longest are
removed before another is filled, until all others hold KEPT_BYTES at most.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lutlab import models
from lutlab.base.errors import LutlabError
from lutlab.base.kept.findings import cache_folder, make_room, writable
from lutlab.base.lazy import PreTrainedModel, np, torch, transformers
from lutlab.base.progress import steps
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, ModelRun, Subject
from lutlab.data.tokens import token_sha256, token_stream
from lutlab.evaluators import check_task, evaluation_mode, needed
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.evaluators.noise import ratio_error
from lutlab.evaluators.perplexity import stream_facts, window_batches
from lutlab.evaluators.weight_error import WeightError
from lutlab.models.load import fingerprint, load_model
from lutlab.models.streamed import Streamed

if TYPE_CHECKING:  # it imports torch, which naming an evaluator does not
    from lutlab.compress.kept_blocks import KeptFiles

KEPT_BYTES = 4 * 2**30  # 900 windows of 2,048 tokens of SmolLM2-135M, 64 of LLaMA-7B in float32
_CHUNK_BYTES = 8 * 2**20  # float64 of one chunk's logits, as perplexity.py has float32
_PERCENTILES = {"kld_median_nats": 50, "kld_p90_nats": 90, "kld_p99_nats": 99}
# More nats than bfloat16 takes a model from float32, 1e-3 of SmolLM2; a head whose outputs are capped differs by more.
_MOST_OF_HEAD = 0.01
_TOKENS_OF_CHECK = 64


@register("evaluator", "kld")
@dataclass(frozen=True)
class KLDivergence(Evaluator):
    """Metrics `kld_mean_nats`, `kld_median_nats`, `kld_p90_nats`, `kld_p99_nats`, `top1_agreement` (0 to 1).

    Samples are the windows' means, in nats.
    """

    version: ClassVar[int] = 1
    relative: ClassVar[bool] = True
    task: ClassVar[str] = "causal_lm"
    reads: ClassVar[tuple[str, ...]] = ("stream",)
    golden: ClassVar[str] = "docstrings"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("kld_mean_nats", "nats", "KLD"),
        Metric("kld_median_nats", "nats", "KLD median"),
        Metric("kld_p90_nats", "nats", "KLD 90 %"),
        Metric("kld_p99_nats", "nats", "KLD 99 %"),
        Metric("top1_agreement", "share", "same top-1", lower_is_better=False),
    )

    @classmethod
    def obstacle(cls, run: ModelRun) -> str:
        """Empty where the weights in full precision are known."""
        return WeightError.obstacle(run)

    def measure(self, subject: Subject) -> Measurement:
        """Divergence on subject.text in windows of subject.seqlen tokens; memory for two models and their logits."""
        text, tokenizer = needed(subject, "kld")
        check_task(subject.model, "kld", "causal_lm")
        run, model, seqlen = subject.run, subject.model, subject.seqlen
        ids = token_stream(text, tokenizer, seqlen)
        windows = window_batches(model, ids, seqlen)
        origin = fingerprint(run.model)
        files = _files(run, origin, windows)
        full = _full_precision(run, streamed=any(p.is_meta for p in model.parameters()))
        divergences, agreeing = [], []
        with evaluation_mode(model), evaluation_mode(full):
            for index, batch in enumerate(steps(windows, "measuring batch")):
                exact = full_logits(full, files, index, batch)
                logits = model(input_ids=batch.to(model.device), use_cache=False).logits
                divergence, same = token_kl(exact, logits.to(exact.device))
                del exact, logits  # before the next batch's are made
                divergences.append(divergence[:, :-1].cpu())
                agreeing.append(same[:, :-1].double().mean(1).cpu())
        divergence, agreement = torch.cat(divergences), torch.cat(agreeing)
        means = divergence.mean(1).tolist()
        _check_finite(means, model)
        values = {"kld_mean_nats": sum(means) / len(means)}
        percentiles = np.percentile(divergence.numpy(), [*_PERCENTILES.values()])
        values |= dict(zip(_PERCENTILES, percentiles.tolist(), strict=True))
        values["top1_agreement"] = agreement.mean().item()
        ones = [1.0] * len(means)
        errors = {
            "kld_mean_nats": ratio_error(means, ones),
            "top1_agreement": ratio_error(agreement.tolist(), ones),
        }
        errors = {name: error for name, error in errors.items() if math.isfinite(error)}
        facts = stream_facts(text, tokenizer, ids, seqlen)
        facts |= {"full_precision": origin, "percentile": "linear"}
        return Measurement(values, len(means), tuple(means), facts, errors)


def token_kl(exact: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """KL(exact || logits) of each token in nats [B, S] float64, and whether both have the same most likely next one.

    Args:
        exact: logits [B, S, V] of the full-precision model.
        logits: logits [B, S, V] of the other one.
    """
    rows = max(1, _CHUNK_BYTES // (8 * exact.shape[-1]))
    divergences, agreeing = [], []
    chunks = (tensor.flatten(0, 1).split(rows) for tensor in (exact, logits))
    for full, other in zip(*chunks, strict=True):
        log_p = full.log_softmax(-1, dtype=torch.float64)
        difference = log_p - other.log_softmax(-1, dtype=torch.float64)
        divergences.append((log_p.exp_() * difference).sum(-1))
        agreeing.append(full.argmax(-1) == other.argmax(-1))
    shape = exact.shape[:2]
    return torch.cat(divergences).view(shape), torch.cat(agreeing).view(shape)


def _check_finite(means: Sequence[float], model: PreTrainedModel) -> None:
    for window, value in enumerate(means):
        if not math.isfinite(value):
            raise LutlabError(
                f"the KL of window {window} of {len(means)} is {value}: the logits overflow {model.dtype} or the "
                "weights are broken; try dtype=float32"
            )


# ---- the full-precision model, whose pass over the windows is kept ----


def _full_precision(run: ModelRun, *, streamed: bool) -> PreTrainedModel:
    """The model of a row before it is quantized; streamed, a block at a time, where the quantized one is."""
    dtype = getattr(torch, run.dtype)
    loaded = load_model(run.model, dtype, run.device, run.seed, stream=streamed)
    if isinstance(loaded.blocks, Streamed):
        loaded.blocks.serve()
    return loaded.model


def _files(run: ModelRun, origin: str, windows: tuple[torch.Tensor, ...]) -> KeptFiles:
    """The files of a full-precision model's pass over some windows; origin: the model's fingerprint."""
    decides = [
        *(KLDivergence.version, models.VERSION, torch.__version__, transformers.__version__),
        *(origin, run.seed if run.model.source == "synthetic" else None, run.dtype, run.device),
        *(list(windows[0].shape), token_sha256(torch.cat(windows))),
    ]
    key = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:32]
    folder = writable(cache_folder("full-precision")) / key
    make_room(folder.parent, KEPT_BYTES, used=folder)
    folder.mkdir(mode=0o700, exist_ok=True)
    os.utime(folder)
    from lutlab.compress.kept_blocks import KeptFiles

    return KeptFiles(folder, "window")


def full_logits(
    full: PreTrainedModel, files: KeptFiles, index: int, batch: torch.Tensor
) -> torch.Tensor:
    """Logits [B, S, V] of a full-precision model on a batch [B, S] of windows.

    Its blocks are not run where its files have what they put out.

    Raises:
        LutlabError: the model's logits are not what its head puts out; or the files cannot be written.
    """
    head = full.get_output_embeddings()
    if content := files.intact(index):
        return head(content[0]["states"].to(head.weight.device))
    states = full.base_model(input_ids=batch.to(full.device), use_cache=False).last_hidden_state
    logits = head(states)
    if index == 0:
        _check_head(full, batch[:, :_TOKENS_OF_CHECK], logits[:, :_TOKENS_OF_CHECK])
    files.write(index, {"states": states}, {})
    return logits


def _check_head(full: PreTrainedModel, tokens: torch.Tensor, of_head: torch.Tensor) -> None:
    """Refuse a model whose logits are not what its head puts out.

    Args:
        full: full-precision model.
        tokens: first tokens [B, S] of the first windows.
        of_head: logits [B, S, V] of its head.
    """
    logits = full(input_ids=tokens.to(full.device), use_cache=False).logits
    distance = token_kl(of_head, logits.to(of_head.device))[0].mean().item()
    if not distance <= _MOST_OF_HEAD:
        raise LutlabError(
            f"the logits of a {type(full).__name__} are {distance:.1e} nats from what its head puts out: they are "
            f"changed behind it, or overflow {full.dtype}, and kld keeps what the head reads"
        )
