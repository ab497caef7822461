"""Two ways to read a prompt, and a race between them.

    kernel       the engine's own: packed weights are read once for up to 64 tokens (kernels/cpu/rows/tile.h)
    dequantize   weights become floats panel by panel, and torch multiplies (panels.py)
    race         both once for a model, a length of prompt and a machine; the faster is kept (base/kept/findings.py)

On the CPU seen the kernel is as fast as torch's product alone, so that dequantizing does not pay up to 2048 tokens
(benchmarks/bench_prefill.py). The two sum in different orders: logits agree within rounding, not bit for bit.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from typing import Any

import torch

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.kept import findings
from lutlab.base.lazy import PreTrainedModel, transformers
from lutlab.generate.contract import Engine
from lutlab.generate.cpu import CpuStep
from lutlab.generate.panels import dequantized
from lutlab.kernels.codegen import library
from lutlab.kernels.codegen.isa import features
from lutlab.models.families import forward_with_cache
from lutlab.modules import QuantLinear

KERNEL, DEQUANTIZE, RACE = WAYS = ("kernel", "dequantize", "race")


def prefill(
    engine: Engine, model: PreTrainedModel, prompts: Sequence[torch.Tensor], way: str = KERNEL
) -> torch.Tensor:
    """Empty an engine's cache and read a prompt in every row, one way or the other.

    Args:
        engine: engine whose cache is filled.
        model: the engine's.
        prompts: [T] int64 of each row, as Engine.prefill has them.
        way: `kernel`, `dequantize` or `race`.

    Returns:
        The float32 logits [B, V] after each prompt's last token.

    Raises:
        LutlabError: no such way; the prompts are not as Engine.prefill has them.
    """
    if way not in WAYS:
        raise LutlabError(f"way={way} of reading a prompt: {nearest(way, WAYS)}")
    if way == RACE:
        way = _winner(engine, model, prompts)
    if way == KERNEL:
        return engine.prefill(prompts)
    with torch.inference_mode(), dequantized(model):
        if isinstance(engine, CpuStep):
            return _through_the_model(engine, model, prompts)
        return engine.prefill(prompts)  # the others read prompts by the model's own modules


def _through_the_model(
    engine: CpuStep, model: PreTrainedModel, prompts: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The model's own modules read the prompts; their keys and values become the engine's."""
    engine.check_prompts(prompts)
    engine.positions = [0] * engine.batch
    logits = []
    for row, ids in enumerate(prompts):
        # without a config: layers whose window slides keep all tokens too
        cache = transformers.DynamicCache()
        out = forward_with_cache(model, cache, input_ids=ids[None], logits_to_keep=1)
        logits.append(out.logits[0, -1].float())
        layers: list[Any] = cache.layers  # full after a pass, which their types do not say
        for index, layer in enumerate(layers):
            engine.write(index, row, 0, layer.keys[0], layer.values[0])
    engine.positions = [len(ids) for ids in prompts]
    return torch.stack(logits)


# ---- the race ----


def _winner(engine: Engine, model: PreTrainedModel, prompts: Sequence[torch.Tensor]) -> str:
    """The way that was faster for such a model and so many tokens, to a power of two; tried now if it never was."""
    tokens = sum(map(len, prompts))
    key = f"{_weights(model)}, {1 << (tokens - 1).bit_length()} tokens, {torch.get_num_threads()} threads"
    about = sorted(features())
    if model.device.type == "cuda":
        about = [torch.cuda.get_device_name(model.device)]
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    file = library.cache_folder() / f"prefill-{digest}.sealed"

    def winners() -> dict[str, str]:
        return findings.kept(file, _checked, {})

    if known := winners().get(key):
        return known
    seconds = {way: _seconds(engine, model, prompts, way) for way in (KERNEL, DEQUANTIZE)}
    best = min(seconds, key=seconds.__getitem__)
    findings.keep(file, lambda: winners() | {key: best})
    return best


def _seconds(
    engine: Engine, model: PreTrainedModel, prompts: Sequence[torch.Tensor], way: str
) -> float:
    """Seconds of reading the prompts once, after one that allocates what it needs."""
    short = [ids[:1] for ids in prompts]
    for texts in (short, prompts):
        began = time.perf_counter()
        prefill(engine, model, texts, way).tolist()  # waits for a GPU
    return time.perf_counter() - began


def _weights(model: PreTrainedModel) -> str:
    """A digest of the shapes and layouts of all quantized layers."""
    layers = [
        (layer.in_features, layer.out_features, layer.layout())
        for layer in model.modules()
        if isinstance(layer, QuantLinear)
    ]
    return hashlib.sha256(json.dumps(layers, sort_keys=True).encode()).hexdigest()[:16]


def _checked(winners: dict[str, Any]) -> dict[str, str]:
    """Raises ValueError: a way that no race finds."""
    for key, way in winners.items():
        if way not in (KERNEL, DEQUANTIZE):
            raise ValueError(f"{key}: {way} is none of the two ways")
    return winners
