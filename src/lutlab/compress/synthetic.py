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
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lutlab.base import arguments
from lutlab.base.devices import device_named
from lutlab.base.errors import LutlabError
from lutlab.base.groups import Width
from lutlab.base.lazy import PreTrainedConfig, PreTrainedModel, transformers
from lutlab.base.quiet import quiet
from lutlab.base.specs import LayerStats, ModelRun, ModelSpec
from lutlab.checkpoint.stored import stats_of_layer
from lutlab.checkpoint.transformers import declare
from lutlab.compress.drawn import Bits, dense, drawn
from lutlab.compress.sizes import empty
from lutlab.compress.widths import widths
from lutlab.formats.contract import Format
from lutlab.formats.dense import PackedDense
from lutlab.models import fits, streamed
from lutlab.models.families import decoder_blocks, family_of, kinds, linear_layers, weight_of
from lutlab.models.files import check_shipped
from lutlab.models.load import EMBEDDED, LoadedModel, config_to_draw, cut, folder_of, load_tokenizer
from lutlab.models.resident import Resident
from lutlab.modules import QuantLinear
from lutlab.quantizers.contract import Method, make_method
from lutlab.quantizers.none import NoQuantization
from lutlab.quantizers.stored import STORED

FULL: Width = (16, -1)
DTYPES = ("float32", "float16", "bfloat16")


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
        config: a config of transformers; or a model's name (`llama-7b`, `opt-175b`, … of conf/shapes, an embedded
            model, a repository on the hub, of which the config alone is fetched), or a folder with config.json.
        method: name of the method whose layout the weights have; `none` gives dense weights of float16's values.
        q: bits a weight, 1-8; see quantize_tensor.
        g: weights that share a scale, at least 8, or -1 for one scale a row; see quantize_tensor.
        layers: cut the model to its first so many; None: all.
        skip: patterns (fnmatch) of layer names that stay dense.
        device: device of the model.
        dtype: dtype of everything that is not quantized: float32, float16, bfloat16; auto: float32 on a CPU, float16 on
            a GPU.
        seed: seed of all random numbers.
        **options: parameters of the method, as for quantize_tensor.

    Raises:
        LutlabError: no such model, method, option or device; q or g out of range; a layout that cannot be drawn.
        fits.TooLargeError: the device does not hold the model; nothing has been drawn then.
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
    model, stats = _all_of(Drawn(config, quantizer, chosen, getattr(torch, dtype), device, seed))
    if any(layer.format != "dense" for layer in stats):
        declare(model)  # so that save_pretrained says how to read the layers
    return model


def _config(config: PreTrainedConfig | str | Path, layers: int | None) -> PreTrainedConfig:
    if isinstance(config, transformers.PreTrainedConfig):
        return cut(copy.deepcopy(config), layers)
    expected = "a config of transformers, a model's name or its folder"
    name = str(arguments.instance("config", config, (str, Path), expected))
    return config_to_draw(ModelSpec(name, "synthetic", name, layers=layers))


def load_packed(run: ModelRun) -> tuple[LoadedModel, tuple[LayerStats, ...]]:
    """The model of a row with model.packed=true, and the sizes of its linear layers in forward order.

    Raises:
        LutlabError: no such model, method or device; q or g out of range; a layout that cannot be drawn.
        fits.TooLargeError: the device does not hold the model; nothing has been drawn then.
    """
    drawing = drawn_blocks(run, run.device)
    with quiet():
        tokenizer = load_tokenizer(folder_of(run.model), required=False)
    model, layers = _all_of(drawing)
    return LoadedModel(model, tokenizer, Resident(model)), layers


def drawn_blocks(run: ModelRun, device: str, ranks: int = 1) -> Drawn:
    """The model of a row with model.packed=true, whose blocks are drawn one by one.

    Args:
        run: the row.
        device: device on which it is drawn.
        ranks: number of ranks that share it; of the linear layers each keeps so much less.

    Raises:
        LutlabError: no such model, method or device; q or g out of range; a layout that cannot be drawn.
        fits.TooLargeError: the device does not hold the model; nothing has been drawn then.
    """
    check_shipped(folder_of(run.model), EMBEDDED)
    with quiet():
        config = config_to_draw(run.model)
    quantizer = make_method(run.method, **dict(run.options))
    chosen = widths(kinds(config), run.q, run.g, run.sublayers, run.skip, run.layers)
    dtype = getattr(torch, run.dtype)
    return Drawn(config, quantizer, chosen, dtype, device, run.seed, run.name, ranks)


def _all_of(drawing: Drawn) -> tuple[PreTrainedModel, tuple[LayerStats, ...]]:
    """A model with all its layers, each made ready on a CPU, where its kernel's layout replaces the stored one."""
    stats = []
    for path in drawing.plan:
        layer = drawing.draw(path)
        stats.append(stats_of_layer(path, layer, drawing.width(path)))
        if isinstance(layer, QuantLinear) and drawing.device == "cpu":
            layer.prepare(1, drawing.dtype)
            streamed.trim_heap()
    return drawing.model, tuple(stats)


class Drawn:
    """A model whose linear layers are drawn block by block: `open` draws one (Blocks of models/resident.py).

    Args:
        config: config with the number of layers that are wanted.
        method: the method whose layouts the layers have.
        chosen: layer name -> (q, g), None where it stays dense.
        dtype: dtype of everything that is not quantized.
        device: device of the model.
        seed: seed of all random numbers.
        name: name of the model, for a message.
        ranks: number of ranks that share the model, each of which keeps a part of every layer.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        method: Method,
        chosen: Mapping[str, Width | None],
        dtype: torch.dtype,
        device: str,
        seed: int,
        name: str = "",
        ranks: int = 1,
    ) -> None:
        if method == make_method(STORED):
            raise LutlabError(
                "method=stored is what a checkpoint holds, and nothing is stored of a drawn model: name another method"
            )
        streamed.return_freed_memory()
        self.model = streamed.skeleton(config, dtype)
        self.dtype, self.device, self._chosen, self._seed = dtype, device, chosen, seed
        linears = dict(linear_layers(self.model))
        self.plan = {
            path: _empty(method, chosen[path], *weight_of(module).shape)
            for path, module in linears.items()
        }
        layers = self.plan.values()
        weights = {"weights": sum(layer.bits_stored for layer in layers) // 8 // ranks}
        largest = max(math.prod(layer.shape) for layer in layers)
        # what a layer is packed, or dequantized to read a prompt in: 16 bits a weight
        parts = weights | fits.outside_parts(self.model) | {"scratch": 2 * largest}
        fits.check(name or config.model_type, parts, device)
        self._deviation = getattr(config, family_of(config).deviation)
        with torch.no_grad():
            _draw_others(self.model, set(linears.values()), self._deviation, device, seed)
        streamed.finish(self.model, device)

    def __len__(self) -> int:
        return len(decoder_blocks(self.model))

    @contextmanager
    def open(self, index: int) -> Iterator[nn.Module]:
        """A block with its layers; closed, they are shapes only."""
        family = family_of(self.model.config)
        block = decoder_blocks(self.model)[index]
        for layer in family.linears:
            self.draw(f"{family.blocks}.{index}.{layer}")
        try:
            yield block
        finally:
            for layer in family.linears:
                streamed.release(block.get_submodule(layer))

    def draw(self, path: str) -> nn.Module:
        """Put a layer in its place."""
        with torch.no_grad():
            made = drawn(self.plan[path], self._deviation, Bits(self._seed, path), self.device)
            layer = _layer(self.model.get_submodule(path), made, self.dtype, self.device)
        self.model.set_submodule(path, layer)
        return layer

    def width(self, path: str) -> Width:
        """Q and g of a layer."""
        chosen = self._chosen[path]
        return FULL if chosen is None or isinstance(self.plan[path], PackedDense) else chosen


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
    stored = module.get_parameter("weight")
    transposed = weight_of(module).stride() != stored.stride()  # GPT-2 stores [K, N]
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
        parameters = module._parameters
        if module in linears or not any(p is not None for p in parameters.values()):
            continue
        for key, meta in parameters.items():
            if meta is None or f"{path}.{key}" in tied:
                continue
            if meta.dim() == 2:
                made = dense(tuple(meta.shape), deviation, Bits(seed, f"{path}.{key}"), device)
            else:
                made = torch.zeros(meta.shape, device=device)
            parameters[key] = nn.Parameter(made.to(meta.dtype), requires_grad=False)
        if all(p is None or p.dim() < 2 for p in parameters.values()):
            model._init_weights(module)  # norms
