"""A model whose linear layers are drawn as they are stored, straight from a config: no float weight is ever held.

    config ─ sizes.empty ─▶ layout of each layer ─ drawn.py ─▶ packed weight ─▶ QuantLinear, made ready, layer by layer

A model of any size is made in the memory that it runs in: on a CPU each layer is packed for its kernel (which replaces
the stored form) before the next one is drawn. Weights have mean 0 and the deviation of transformers' own
initialisation (the config's initializer_range or init_std), so that activations are finite and logits of ordinary size.
Embeddings and head are drawn likewise, in the model's dtype and of values that float16 holds; norms are 1, biases 0.

Numbers follow from the seed and each layer's name alone, whatever the device, the threads and the number of layers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lutlab import arguments
from lutlab.checkpoint.stored import stats_of_layer
from lutlab.checkpoint.transformers import declare
from lutlab.compress.drawn import Bits, dense, drawn
from lutlab.compress.sizes import empty
from lutlab.compress.widths import widths
from lutlab.devices import device_named
from lutlab.errors import LutlabError
from lutlab.formats.dense import PackedDense
from lutlab.groups import Width
from lutlab.models import fits, streamed
from lutlab.models.families import family_of, kinds, linear_layers, weight_of
from lutlab.models.files import check_shipped
from lutlab.models.load import (
    EMBEDDED,
    LoadedModel,
    config_to_draw,
    cut,
    folder_of,
    load_tokenizer,
    quiet,
)
from lutlab.models.resident import Resident
from lutlab.modules import QuantLinear
from lutlab.quantizers.contract import Method, make_method
from lutlab.quantizers.none import NoQuantization
from lutlab.quantizers.stored import STORED
from lutlab.specs import LayerStats, ModelRun, ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from lutlab.formats.contract import Format

DTYPES = ("float32", "float16", "bfloat16")
FULL: Width = (16, -1)


def synthetic(
    config: PreTrainedConfig | str | Path,
    method: str = "bcq",
    q: int | float = 3,
    g: int = 128,
    *,
    layers: int | None = None,
    skip: Sequence[str] = (),
    device: str = "cpu",
    dtype: str = "auto",
    seed: int = 0,
    **options: Any,
) -> PreTrainedModel:
    """A model of random weights in its quantized size, in evaluation mode, ready to decode.

    Examples:
        >>> model = synthetic("opt-embedded-s", method="bcq", q=3, g=128)
        >>> model.model.decoder.layers[0].fc1.packed.bits
        3

    Args:
        config: of transformers; or a model's name (`llama-7b`, `opt-175b`, … of conf/shapes, an embedded model, a
            repository on the hub, of which the config alone is fetched), or a folder with config.json.
        method: whose layout the weights have; `none` gives dense weights of float16's values.
        q: as in quantize_tensor.
        g: as in quantize_tensor.
        layers: cut the model to its first so many; None: all.
        skip: patterns (fnmatch) of layer names that stay dense.
        device: where the model is.
        dtype: of all that is not quantized: float32, float16, bfloat16; auto: float32 on a CPU, float16 on a GPU.
        seed: of all that is drawn.
        **options: of the method, as in quantize_tensor.

    Raises:
        LutlabError: no such model, method, option or device; q or g out of range; a layout that cannot be drawn.
        fits.TooLargeError: the device does not hold the model; said before anything is drawn, with the numbers.
    """
    device = device_named(device)
    quantizer = make_method(method, **options)
    width = quantizer.check_width(q, g) if quantizer.quantizes else FULL
    skip = arguments.strings("skip", skip, 'patterns of layer names, as ["*.fc2"]')
    if dtype not in (*DTYPES, "auto"):
        raise LutlabError(
            f"dtype is {arguments.described(dtype)}: give auto, or one of {', '.join(DTYPES)}"
        )
    dtype = ("float32" if device == "cpu" else "float16") if dtype == "auto" else dtype
    with quiet():
        config = _config(config, layers)
    chosen = widths(kinds(config), *width, skip=skip)
    model, stats = build(config, quantizer, chosen, getattr(torch, dtype), device, seed)
    if any(layer.format != "dense" for layer in stats):
        declare(model)  # so that save_pretrained says how to read the layers
    return model


def _config(given: PreTrainedConfig | str | Path, layers: int | None) -> PreTrainedConfig:
    from transformers import PreTrainedConfig

    if isinstance(given, PreTrainedConfig):
        return cut(copy.deepcopy(given), layers)
    expected = "a config of transformers, a model's name or its folder"
    name = str(arguments.instance("config", given, (str, Path), expected))
    return config_to_draw(ModelSpec(name, "synthetic", name, layers=layers))


def load_packed(run: ModelRun) -> tuple[LoadedModel, tuple[LayerStats, ...]]:
    """The model of a row with model.packed=true, and the sizes of its linear layers in forward order.

    Raises:
        LutlabError: as synthetic.
        fits.TooLargeError: as synthetic.
    """
    folder = folder_of(run.model)
    check_shipped(folder, EMBEDDED)
    with quiet():
        config = config_to_draw(run.model)
        tokenizer = load_tokenizer(folder, required=False)
    quantizer = make_method(run.method, **dict(run.options))
    chosen = widths(kinds(config), run.q, run.g, run.sublayers, run.skip, run.layers)
    dtype = getattr(torch, run.dtype)
    model, layers = build(config, quantizer, chosen, dtype, run.device, run.seed, run.name)
    return LoadedModel(model, tokenizer, Resident(model)), layers


def build(
    config: PreTrainedConfig,
    method: Method,
    chosen: Mapping[str, Width | None],
    dtype: torch.dtype,
    device: str,
    seed: int,
    name: str = "",
) -> tuple[PreTrainedModel, tuple[LayerStats, ...]]:
    """Draw a model.

    Args:
        config: with the number of layers that are wanted.
        method: whose layouts the layers have.
        chosen: layer name -> (q, g), None where it stays dense.
        dtype: of all that is not quantized.
        device: where the model is.
        seed: of all that is drawn.
        name: of the model, for a message.

    Returns:
        The model, and the sizes of its linear layers in forward order; errors and norms are nan.

    Raises:
        LutlabError: as synthetic.
    """
    if method == make_method(STORED):
        raise LutlabError(
            "method=stored is what a checkpoint holds, and nothing is stored of a drawn model: name another method"
        )
    streamed.return_freed_memory()
    model = streamed.skeleton(config, dtype)
    linears = dict(linear_layers(model))
    plan = {
        path: _empty(method, chosen[path], *weight_of(module).shape)
        for path, module in linears.items()
    }
    weights = {"weights": sum(one.bits_stored for one in plan.values()) // 8}
    # what a layer is packed or dequantized in: a matrix of 16 bits
    scratch = {
        "scratch": max(2 * rows * columns for rows, columns in (p.shape for p in plan.values()))
    }
    parts = weights | fits.outside_parts(model) | scratch
    fits.check(name or config.model_type, parts, device)
    deviation = getattr(config, family_of(config).deviation)
    with torch.no_grad():
        _draw_others(model, set(linears.values()), deviation, device, seed)
        stats = []
        for path, module in linears.items():
            width = FULL if isinstance(plan[path], PackedDense) else chosen[path]
            made = drawn(plan[path], deviation, Bits(seed, path), device)
            layer = _layer(module, made, dtype, device)
            model.set_submodule(path, layer)
            stats.append(stats_of_layer(path, layer, width))
            if isinstance(layer, QuantLinear) and device == "cpu":
                layer.prepare(1, dtype)  # the kernel's layout replaces the stored one
                streamed.trim_heap()
    return streamed.finish(model, device), tuple(stats)


def _empty(method: Method, width: Width | None, rows: int, columns: int) -> Format:
    """The layout of a layer, on the meta device."""
    if width is None or not method.quantizes:
        return empty(NoQuantization(), *FULL, rows, columns)
    return empty(method, *width, rows, columns)


def _layer(module: nn.Module, packed: Format, dtype: torch.dtype, device: str) -> nn.Module:
    """The module that takes the place of one on the meta device; its bias is 0."""
    bias = None
    if module.bias is not None:
        bias = torch.zeros(packed.shape[0], dtype=dtype, device=device)
    if not isinstance(packed, PackedDense):
        return QuantLinear(packed, bias)
    weight = packed.weight.to(dtype)
    transposed = weight_of(module).stride() != module.weight.stride()  # GPT-2 stores [K, N]
    module.weight = nn.Parameter(
        weight.T.contiguous() if transposed else weight, requires_grad=False
    )
    if bias is not None:
        module.bias = nn.Parameter(bias, requires_grad=False)
    return module


def _draw_others(
    model: PreTrainedModel, linears: set[nn.Module], deviation: float, device: str, seed: int
) -> None:
    """Embeddings and head as dense weights, the rest as the model initialises it; what is tied is drawn once."""
    tied = model.all_tied_weights_keys
    for path, module in model.named_modules():
        own = module._parameters
        if module in linears or not any(one is not None for one in own.values()):
            continue
        for key, meta in own.items():
            if meta is None or f"{path}.{key}" in tied:
                continue
            if meta.dim() == 2:
                made = dense(tuple(meta.shape), deviation, Bits(seed, f"{path}.{key}"), device)
            else:
                made = torch.zeros(meta.shape, device=device)
            own[key] = nn.Parameter(made.to(meta.dtype), requires_grad=False)
        if all(one is None or one.dim() < 2 for one in own.values()):
            model._init_weights(module)  # norms
