"""The engine: a quantized model generates text, a token a call (contract.py).

    engine = lutlab.engine(model, batch=1, length=512)      the best that takes the model, which facts()["engine"] names
    logits = engine.prefill([ids]); logits = engine.step(logits.argmax(-1))

    cpu     cpu_step (one call a step into generated C), else transformers
    cuda    cuda_graph (one graph a step), else transformers

Where the first does not take a model, a warning says why.
"""

from __future__ import annotations

import logging

from lutlab.base import arguments, registry
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, torch
from lutlab.generate.contract import Engine
from lutlab.models import fits
from lutlab.models.families import family_of, task_of

log = logging.getLogger(__name__)
CACHES = ("", "float32", "float16", "bfloat16")


def engine(
    model: PreTrainedModel,
    batch: int = 1,
    length: int | None = None,
    cache: str = "",
    name: str = "",
) -> Engine:
    """The best engine that takes a model; a warning says why a better one does not.

    Args:
        model: a causal language model of a known family, quantized or not, whose weights are in memory.
        batch: rows, each a text of its own.
        length: tokens of a row, prompt included; None: the model's context, of rotations of type longrope the first.
        cache: dtype of cached keys and values: `float32`, `float16` or `bfloat16`; empty: the engine's own choice.
        name: name of the engine, which must take the model then; empty: the best.

    Raises:
        LutlabError: the model is no causal language model, the cache is longer than its context, or the engine that was
            named does not take it.
        fits.TooLargeError: the device has less memory free than the cache takes; no cache has been made then.
    """
    if cache not in CACHES:
        raise LutlabError(f"cache={cache}: give one of {', '.join(CACHES[1:])}, or none")
    batch, length = _sizes(model, batch, length)
    names = (name,) if name else engines_of(model.device.type)
    reasons: list[str] = []
    for candidate in names:
        kind = registry.lookup("engine", candidate)
        why = kind.obstacle(model, cache)
        if not why:
            dtype = getattr(torch, cache) if cache else model.dtype
            needed = fits.cache_bytes(model.config, batch, length, dtype.itemsize)
            what = f"a cache of {batch} x {length} tokens"
            fits.check(what, {"cache": needed}, str(model.device))
            if reasons:
                log.warning("decoding by engine %s: %s", candidate, "; ".join(reasons))
            return kind(model, batch, length, cache)
        reasons.append(f"{candidate}: {why}")
    raise LutlabError(f"no engine decodes this model: {'; '.join(reasons)}")


def engines_of(device: str) -> list[str]:
    """Names of the engines of a kind of device, one that was made for fewer kinds before one for more."""
    engines = registry.classes("engine").items()
    return [n for _, n in sorted((len(e.devices), n) for n, e in engines if device in e.devices)]


def _sizes(model: PreTrainedModel, batch: int, length: int | None) -> tuple[int, int]:
    """Rows of a cache and tokens of a row, with the errors of engine."""
    arguments.model(model)
    if (task := task_of(model)) != "causal_lm":
        raise LutlabError(
            f"the model is for {task}, and only a causal language model generates text"
        )
    batch = arguments.integer("batch", batch, 1, "rows of the cache, as 1")
    context, why = context_of(model)
    if length is None:
        return batch, context
    arguments.integer("length", length, 1, "tokens of a row of the cache, as 512")
    if length > context:
        raise LutlabError(
            f"length={length}: the model's context is {context} tokens{why}; give at most as many"
        )
    return batch, length


def context_of(model: PreTrainedModel) -> tuple[int, str]:
    """Tokens that a cache may hold, and why these are fewer than the model reads at once; empty where they are not."""
    context = getattr(model.config, family_of(model.config).seqlen)
    rope = getattr(model.config, "rope_parameters", None) or {}
    first = rope.get("original_max_position_embeddings") or context
    if rope.get("rope_type") != "longrope" or first >= context:
        return context, ""
    return first, (
        f" of {context}: beyond them its rotation (longrope) is another one, also of the keys that are in the cache "
        "already"
    )
