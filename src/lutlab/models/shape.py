"""Shape of a model: parameters, widths and the matrices of its linear layers, no weight read.

Where its weights are files here, their headers say it in milliseconds; else the model is built from its config on the
meta device, which imports transformers' modeling code.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lutlab.models import hub
from lutlab.models.families import (
    evaluation_seqlen,
    family_of,
    kinds,
    linear_layers,
    model_class,
    weight_of,
)
from lutlab.models.files import weight_files
from lutlab.models.load import folder_of
from lutlab.specs import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

Sizes = dict[str, tuple[int, ...]]


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


@functools.cache
def shape_of(spec: ModelSpec) -> ModelShape:
    """Sizes of a model; of one on the hub only the config is fetched.

    Raises:
        LutlabError: as models.load.folder_of.
    """
    config, parameters, linears = _read(spec)
    family = family_of(config)
    inputs = []
    for shared in family.inputs:
        shapes = [linears[f"{family.blocks}.0.{layer}"] for layer in shared.layers]
        inputs.append((shapes[0][1], sum(rows for rows, _ in shapes)))
    return ModelShape(
        parameters=parameters,
        linear_parameters=sum(rows * columns for rows, columns in linears.values()),
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        vocabulary=config.vocab_size,
        seqlen=evaluation_seqlen(config),
        inputs=tuple(inputs),
    )


def linear_shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """Path of every linear layer that is quantized -> (N, K), in forward order."""
    return _read(spec)[2]


@functools.cache
def _read(spec: ModelSpec) -> tuple[PreTrainedConfig, int, dict[str, tuple[int, int]]]:
    """The config, the number of parameters, and (N, K) of every linear layer."""
    from transformers import AutoConfig

    on_hub = spec.source == "hub"
    folder = hub.download(spec.id, spec.revision, weights=False) if on_hub else folder_of(spec)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if spec.layers is not None:
        config.num_hidden_layers = spec.layers
    if spec.source in ("embedded", "folder"):
        sizes = _headers(folder)
        base = family_of(config).blocks.partition(".")[0]
        linears = {name: _out_first(sizes, name, base) for name in kinds(config)}
        if all(linears.values()):
            return config, sum(map(math.prod, sizes.values())), linears
    return config, *_skeleton(config)


def _headers(folder: Path) -> Sizes:
    """Name -> shape of every tensor in a folder's safetensors files: 8 bytes of length, then JSON."""
    found: Sizes = {}
    for path in weight_files(folder):
        if path.suffix == ".safetensors":
            with path.open("rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            header.pop("__metadata__", None)
            found |= {name: tuple(entry["shape"]) for name, entry in header.items()}
    return found


def _out_first(sizes: Sizes, name: str, base: str) -> tuple[int, int] | None:
    """(N, K) of a layer: GPT-2 stores [K, N], and the bias, of N numbers, says so. None where it is not found.

    A checkpoint of the bare decoder leaves out `base`.
    """
    for stored in (name, name.removeprefix(f"{base}.")):
        if f"{stored}.weight" in sizes:
            first, second = sizes[f"{stored}.weight"]
            outputs = sizes.get(f"{stored}.bias", (first,))[0]
            return (first, second) if first == outputs else (second, first)
    return None


def _skeleton(config: PreTrainedConfig) -> tuple[int, dict[str, tuple[int, int]]]:
    """The same of the model on the meta device, without weights."""
    import torch

    with torch.device("meta"):
        model = model_class(config).from_config(config)
    linears = {name: tuple(weight_of(module).shape) for name, module in linear_layers(model)}
    return sum(p.numel() for p in model.parameters()), linears
