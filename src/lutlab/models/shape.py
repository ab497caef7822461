"""Shape of a model from its config alone: parameters, widths and the matrices of its linear layers, no weight read."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lutlab.models import hub
from lutlab.models.families import (
    decoder_blocks,
    evaluation_seqlen,
    family_of,
    linear_layers,
    weight_of,
)
from lutlab.models.load import folder_of
from lutlab.specs import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
    model = _skeleton(spec)
    config, block = model.config, decoder_blocks(model)[0]
    inputs = []
    for shared in family_of(config).inputs:
        shapes = [weight_of(block.get_submodule(layer)).shape for layer in shared.layers]
        inputs.append((shapes[0][1], sum(rows for rows, _ in shapes)))
    return ModelShape(
        parameters=sum(p.numel() for p in model.parameters()),
        linear_parameters=sum(rows * columns for rows, columns in linear_shapes(spec).values()),
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        vocabulary=config.vocab_size,
        seqlen=evaluation_seqlen(config),
        inputs=tuple(inputs),
    )


@functools.cache
def linear_shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """Path of every linear layer that is quantized -> (N, K), in forward order."""
    return {name: tuple(weight_of(m).shape) for name, m in linear_layers(_skeleton(spec))}


@functools.cache
def _skeleton(spec: ModelSpec) -> PreTrainedModel:
    """The model on the meta device, without weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    on_hub = spec.source == "hub"
    folder = hub.download(spec.id, spec.revision, weights=False) if on_hub else folder_of(spec)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if spec.layers is not None:
        config.num_hidden_layers = spec.layers
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)
