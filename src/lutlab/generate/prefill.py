"""The other way to read a prompt: weights become floats panel by panel, and torch multiplies (LUT-GEMM section 6).

    kernel       the engine's own: packed weights are read once for up to 64 tokens (kernels/cpu/rows/tile.h)
    dequantize   W[first : last] -> one buffer of PANEL_ROWS rows, which stays in the cache;  y[:, first : last] = x W^T
    race         both once for a model, a length of prompt and a machine; the faster is kept (kept/findings.py)

On the CPU seen the kernel is as fast as torch's product alone, so that dequantizing does not pay up to 2048 tokens
(benchmarks/bench_prefill.py). The two sum in different orders: logits agree within rounding, not bit for bit.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from lutlab.errors import LutlabError, nearest
from lutlab.generate.contract import Engine
from lutlab.generate.cpu import CpuStep
from lutlab.kept import findings
from lutlab.kernels.codegen import library
from lutlab.kernels.codegen.isa import features
from lutlab.kernels.cpu.bcq_gemv import PackedBCQRows
from lutlab.kernels.cpu.rows.linear import CpuLinear
from lutlab.kernels.cpu.rows.row_blocks import ROWS, blocks_of
from lutlab.kernels.cpu.uniform_gemv import PackedUniformRows
from lutlab.lazy import PreTrainedModel, transformers
from lutlab.models.families import forward_with_cache
from lutlab.modules import QuantLinear

KERNEL, DEQUANTIZE, RACE = WAYS = ("kernel", "dequantize", "race")
# Rows of W a panel: fewer slow torch's product down, more do not speed it up (bench_prefill.py --panels).
PANEL_ROWS = 256


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
        for layer, kept in enumerate(cache.layers):
            engine.write(layer, row, 0, kept.keys[0], kept.values[0])
    engine.positions = [len(ids) for ids in prompts]
    return torch.stack(logits)


# ---- products by dequantized weights ----


@contextmanager
def dequantized(model: PreTrainedModel) -> Iterator[None]:
    """Inside, every quantized layer of a model multiplies by floats, made for the call."""
    layers = [module for module in model.modules() if isinstance(module, QuantLinear)]
    size = max((layer.in_features for layer in layers), default=0)
    panel = torch.empty(PANEL_ROWS * size if model.device.type == "cpu" else 0)
    try:
        for layer in layers:
            layer.forward = functools.partial(_multiply, layer, panel)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _multiply(layer: QuantLinear, panel: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The product y [..., N] = x [..., K] W^T + b in x's dtype; panel: floats for PANEL_ROWS rows of W."""
    execution = layer.ready(1, x.dtype)
    bias = None if layer.bias is None else layer.bias.to(x)
    # Codes and planes, in the layout of a CPU kernel, can be cut into panels.
    kinds = PackedBCQRows | PackedUniformRows
    if not (isinstance(execution, CpuLinear) and isinstance(execution.rows, kinds)):
        return functional.linear(x, execution.dense().to(x), bias)
    rows = x.reshape(-1, layer.in_features).float()
    into = panel[: PANEL_ROWS * layer.in_features].view(PANEL_ROWS, layer.in_features)
    y = by_panels(rows, execution, into).view(*x.shape[:-1], layer.out_features).to(x.dtype)
    return y if bias is None else y + bias


def by_panels(x: torch.Tensor, linear: CpuLinear, panel: torch.Tensor) -> torch.Tensor:
    """The product x [M, K] float32 -> y [M, N] float32 of codes or planes, panel after panel.

    Each is written into `panel`, [rows, K] float32, of a multiple of 32 rows.
    """
    weight, (n, _) = linear.rows, linear.rows.shape
    y = torch.empty(n, len(x))
    for first in range(0, n, len(panel)):
        last = min(first + len(panel), n)
        dense = linear.kernel.dense(_rows(weight, first, last), panel[: last - first])
        torch.mm(dense, x.t(), out=y[first:last])
    return y.t().contiguous()


def _rows(
    weight: PackedBCQRows | PackedUniformRows, first: int, last: int
) -> PackedBCQRows | PackedUniformRows:
    """Rows of a weight, `first` a multiple of 32: of each panel of columns, the bytes of their blocks."""
    geo, blocks = weight.geometry, blocks_of(weight.shape[0])
    unit_bytes = weight.stream.numel() // (blocks * geo.units)
    wanted = slice(first // ROWS, blocks_of(last))
    parts = []
    for units in geo.panels():
        width = (units.stop - units.start) * unit_bytes
        begin = blocks * units.start * unit_bytes
        there = weight.stream[begin : begin + blocks * width].view(blocks, width)
        parts.append(there[wanted].flatten())
    stream = torch.cat(parts)
    return dataclasses.replace(weight, stream=stream, shape=(last - first, weight.shape[1]))


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

    def kept() -> dict[str, str]:
        return findings.kept(file, _checked, {})

    if found := kept().get(key):
        return found
    seconds = {way: _seconds(engine, model, prompts, way) for way in (KERNEL, DEQUANTIZE)}
    best = min(seconds, key=seconds.__getitem__)
    findings.keep(file, lambda: kept() | {key: best})
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


def _checked(found: dict[str, Any]) -> dict[str, str]:
    """Raises ValueError: a way that no race finds."""
    for key, way in found.items():
        if way not in (KERNEL, DEQUANTIZE):
            raise ValueError(f"{key}: {way} is none of the two ways")
    return found
