"""A quantized folder as a row of a table: method=stored, what the checkpoint holds and nothing else.

q of the row is the mean width of codes over the quantized linear layers of the blocks, g that of most of their weights;
both come from config.json and the headers of the files, so that a plan reads no weight.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.groups import Width, group_count, whole
from lutlab.base.kept.files import check_file, has_sums
from lutlab.base.lazy import torch
from lutlab.base.quiet import quiet
from lutlab.base.specs import LayerStats, ModelSpec
from lutlab.checkpoint.foreign import gguf_packed
from lutlab.checkpoint.foreign.reading import layout_in, layout_of, width_in
from lutlab.checkpoint.loading import load
from lutlab.checkpoint.transformers import CURE, METHOD
from lutlab.formats import name_of
from lutlab.models.families import linear_layers, size_of
from lutlab.models.files import Shards, quantization_of
from lutlab.models.load import LoadedModel, folder_of, gguf_of, load_tokenizer
from lutlab.models.resident import Resident
from lutlab.models.shape import linear_shapes
from lutlab.modules import QuantLinear


def stored_folder(spec: ModelSpec) -> Path:
    """The folder of a model's quantized weights; those of a GGUF file are unpacked as they are.

    Raises:
        LutlabError: no such folder, or a file that lutlab does not read so.
    """
    file = gguf_of(spec)
    return gguf_packed.unpacked(file) if file else folder_of(spec)


@functools.cache
def layer_widths(spec: ModelSpec) -> Mapping[str, Width]:
    """Path -> (q, g) of the linear layers that a folder holds quantized, no weight read.

    Raises:
        LutlabError: the model is no folder, holds no quantized weights, or a layout that lutlab does not read.
    """
    if spec.source not in ("folder", "package"):
        raise LutlabError(
            f"method=stored reads the quantized weights of a folder, and the model is of source {spec.source}: give "
            "model=folder model.id=<folder>, with a checkpoint that you downloaded or saved"
        )
    folder = stored_folder(spec)
    if has_sums(folder):
        check_file(folder, "config.json", CURE)  # loading compares the others
    sizes, quantization = linear_shapes(spec), quantization_of(folder)
    if quantization and quantization.get("quant_method") == METHOD:
        layouts = quantization["layers"]
        return {name: _width(layout) for name, layout in layouts.items() if name in sizes}
    shards = Shards(folder, next(iter(sizes)).partition(".")[0])
    layout, names = layout_in(folder, quantization, sizes, shards)
    return {name: width_in(folder, name, sizes[name], layout, shards) for name in names}


def _width(layout: Mapping[str, Any]) -> Width:
    """(q, g) of a layer that lutlab saved; of groups of 2, 3 and 4 bits the mean of q."""
    g = layout["g"]
    if "q" in layout:
        return layout["q"], g
    extra = layout["groups_3"] + 2 * layout["groups_4"]
    return whole(2 + extra / group_count(g, layout["in_features"])), g


def row_width(spec: ModelSpec) -> Width:
    """(q, g) by which a row of the folder is called; with the errors of layer_widths."""
    widths, sizes = layer_widths(spec), linear_shapes(spec)
    weights = {name: math.prod(sizes[name]) for name in widths}
    mean = sum(weights[name] * q for name, (q, _) in widths.items()) / sum(weights.values())
    of_size: Counter[int] = Counter()
    for name, (_, g) in widths.items():
        of_size[g] += weights[name]
    return whole(round(mean, 3)), of_size.most_common(1)[0][0]


def formats_of(spec: ModelSpec) -> tuple[str, ...]:
    """Names of the formats that hold the folder's weights once they are loaded, sorted; errors as of layer_widths."""
    layer_widths(spec)
    quantization = quantization_of(stored_folder(spec))
    if quantization and quantization.get("quant_method") == METHOD:
        return tuple(sorted({layout["format"] for layout in quantization["layers"].values()}))
    tensor = layout_of(quantization).tensor
    return tuple(name for name, cls in registry.classes("format").items() if cls.tensor is tensor)


def load_stored(
    spec: ModelSpec, dtype: torch.dtype, device: str
) -> tuple[LoadedModel, tuple[LayerStats, ...], dict[str, Any]]:
    """The model of a folder, the statistics of its linear layers in forward order, and facts of its record.

    Errors of weights are nan: the full-precision model is not in the folder.

    Raises:
        LutlabError: there is no tokenizer; a layout that lutlab does not read; files that are missing, damaged or of
            another model.
    """
    folder = stored_folder(spec)
    with quiet():
        model = load(folder, dtype, device)
        loaded = LoadedModel(model, load_tokenizer(folder), Resident(model))
    widths = layer_widths(spec)
    layers = tuple(
        stats_of_layer(name, module, widths.get(name, (16, -1)))
        for name, module in linear_layers(model)
    )
    if file := gguf_of(spec):
        return loaded, layers, {"stored_as": gguf_packed.stored_as(file)}
    quantization = quantization_of(folder) or {}
    keys = ("quant_method", "checkpoint_format", "packing_format", "version", "format")
    stated = {key: quantization[key] for key in keys if key in quantization}
    return loaded, layers, {"stored_as": stated or "EfficientQAT, 3 bits"}


def stats_of_layer(name: str, module: Any, width: Width) -> LayerStats:
    """Sizes of a layer of which nobody has the weights in full precision: errors and norms are nan.

    Of a layer in full precision its 16 bits are counted, as they are of one that lutlab leaves so.
    """
    packed = module.packed if isinstance(module, QuantLinear) else None
    rows, columns = packed.shape if packed else size_of(module)
    full = 16 * rows * columns
    return LayerStats(
        name,
        rows,
        columns,
        squared_error=math.nan,
        squared_norm=math.nan,
        bits_stored=packed.bits_stored if packed else full,
        q=width[0],
        g=width[1],
        format=name_of(packed) if packed else "dense",
        bits_bcq=packed.bcq_bits if packed else full,
        bits_average=packed.bits_average if packed else None,
    )
