"""Shape of a model: parameters, widths and the matrices of its linear layers, no weight read.

Where its weights are files here, their headers and config.json say it in milliseconds, without transformers; else the
model is built from its config on the meta device, which imports transformers' modeling code.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lutlab.base.errors import WRONG_TYPE, LutlabError
from lutlab.base.lazy import torch
from lutlab.base.specs import ModelSpec
from lutlab.gguf.config import outline_of
from lutlab.models import hub
from lutlab.models.contract import Family
from lutlab.models.families import (
    evaluation_seqlen,
    family_named,
    family_of,
    family_written,
    linear_layers,
    model_class,
    size_of,
)
from lutlab.models.files import weight_files
from lutlab.models.load import IN_FOLDERS, folder_of, gguf_of
from lutlab.models.pretrained import check_heads, config_of

# Path of a linear layer that is quantized -> (N, K), in forward order.
Matrices = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model; the evaluation window `seqlen` in tokens.

    inputs: of a block: K, and the sum of N over the layers that share the input.
    """

    parameters: int
    linear_parameters: int
    hidden: int
    layers: int
    vocabulary: int
    seqlen: int
    inputs: tuple[tuple[int, int], ...]


def shape_of(spec: ModelSpec) -> ModelShape:
    """Sizes of a model; of one on the hub only the config is fetched.

    Raises:
        LutlabError: no such folder, embedded name or repository, or no network; config.json or the weights' headers are
            damaged.
    """
    return _read(spec)[0]


def linear_shapes(spec: ModelSpec) -> Matrices:
    """Path of every linear layer that is quantized -> (N, K), in forward order."""
    return _read(spec)[1]


@functools.cache
def _read(spec: ModelSpec) -> tuple[ModelShape, Matrices]:
    if (file := gguf_of(spec)) and (known := _from_gguf(file)):
        return known
    on_hub = spec.source == "hub"
    folder = hub.download(spec.id, spec.revision, weights=False) if on_hub else folder_of(spec)
    try:
        known = _from_files(folder) if spec.source in IN_FOLDERS else None
        return known or _from_config(folder, spec.layers)
    except LutlabError:
        raise
    except Exception as error:  # of many kinds: JSON, transformers' validators and torch
        reason = str(error).partition("\n")[0]
        raise LutlabError(
            f"{folder / 'config.json'} does not say the model's shape ({type(error).__name__}: {reason}): expected a "
            "transformers config with model_type and whole numbers, and safetensors that fit it; fetch both again"
        ) from error


def _from_gguf(file: Path) -> tuple[ModelShape, Matrices] | None:
    """The shape by the header of a GGUF file, which is not unpacked for it."""
    outline = outline_of(file)
    sizes = {place.name: place.shape for place in outline.places.values()}
    return _from_sizes(family_named(outline.config["model_type"]), outline.config, sizes)


def _from_files(folder: Path) -> tuple[ModelShape, Matrices] | None:
    """The shape by the headers of the weights; None where config.json leaves a field to transformers' default."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    family = family_written(folder / "config.json")
    check_heads(folder)
    if not {"vocab_size", family.seqlen} <= config.keys():
        return None
    if wrong := [k for k in ("vocab_size", family.seqlen) if type(config[k]) is not int]:
        raise TypeError(f"{wrong[0]} is {config[wrong[0]]!r}")
    return _from_sizes(family, config, _headers(folder))


def _from_sizes(
    family: Family, config: Mapping[str, Any], sizes: Mapping[str, tuple[int, ...]]
) -> tuple[ModelShape, Matrices] | None:
    """The shape by the sizes of all tensors; None where they are not those of the family's layers."""
    linears: Matrices = {}
    index = 0
    while _matrix(sizes, f"{family.blocks}.{index}.{family.linears[0]}"):
        for layer in family.linears:
            path = f"{family.blocks}.{index}.{layer}"
            if (size := _matrix(sizes, path)) is None:
                return None
            linears[path] = size
        index += 1
    if not linears:
        return None
    parameters = sum(map(math.prod, sizes.values()))
    seqlen = min(config[family.seqlen], family.longest)
    return _shape(family, linears, index, parameters, config["vocab_size"], seqlen), linears


def _shape(
    family: Family, linears: Matrices, layers: int, parameters: int, vocabulary: int, seqlen: int
) -> ModelShape:
    inputs = []
    for shared in family.inputs:
        shapes = [linears[f"{family.blocks}.0.{layer}"] for layer in shared.layers]
        inputs.append((shapes[0][1], sum(rows for rows, _ in shapes)))
    return ModelShape(
        parameters=parameters,
        linear_parameters=sum(rows * columns for rows, columns in linears.values()),
        hidden=inputs[0][0],  # the first layers of a block read the hidden state
        layers=layers,
        vocabulary=vocabulary,
        seqlen=seqlen,
        inputs=tuple(inputs),
    )


def _headers(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor in a folder's safetensors files: 8 bytes of length, then JSON."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in weight_files(folder):
        if path.suffix == ".safetensors":
            shapes |= _header(path)
    return shapes


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        return {name: tuple(map(int, entry["shape"])) for name, entry in header.items()}
    except (OSError, ValueError, *WRONG_TYPE) as error:
        raise LutlabError(
            f"cannot read {path} ({type(error).__name__}: {error}): the file is damaged or truncated, fetch it again"
        ) from error


def _matrix(sizes: Mapping[str, tuple[int, ...]], path: str) -> tuple[int, int] | None:
    """(N, K) of a layer: GPT-2 stores [K, N], and the bias, of N numbers, says so. None where it is not found.

    A checkpoint of the bare decoder leaves out the first part of a path.
    """
    for stored in (path, path.partition(".")[2]):
        if f"{stored}.weight" in sizes:
            first, second = sizes[f"{stored}.weight"]
            outputs = sizes.get(f"{stored}.bias", (first,))[0]
            return (first, second) if first == outputs else (second, first)
    return None


def _from_config(folder: Path, layers: int | None) -> tuple[ModelShape, Matrices]:
    """The shape by the model on the meta device, cut to its first `layers` where they are given."""
    config: Any = config_of(folder)
    if layers is not None:
        config.num_hidden_layers = layers
    with torch.device("meta"):
        model = model_class(config).from_config(config)
    linears = {name: size_of(module) for name, module in linear_layers(model)}
    parameters = sum(p.numel() for p in model.parameters())
    layers, seqlen = config.num_hidden_layers, evaluation_seqlen(config)
    shape = _shape(family_of(config), linears, layers, parameters, config.vocab_size, seqlen)
    return shape, linears
