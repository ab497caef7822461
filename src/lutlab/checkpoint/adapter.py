"""Adapters: the scales of a quantized model and the head of a task in a small folder of their own, over shared planes.

    lutlab.save_adapter(model, "mnli")            after tuning.trains=scales; again for every task
    lutlab.load_adapter(model, "mnli")            at run time, in place: the codes stay where they are

Kwon et al., "AlphaTuning" (EMNLP 2022 Findings): several tasks share one set of planes, and each has its own alphas.

    adapter.json          the version, the digest of the planes, the head's path and its classes
    adapter.safetensors   <layer>.alpha, .offset | .scale of every quantized layer; <head>.weight, .bias
    SHA256SUMS            of the two

The digest is over the names and layouts of all quantized layers and the bytes of everything in them that is no scale:
an adapter over other planes is refused by it. Taking it reads all planes once, about a second for 2 GB.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lutlab.base import arguments
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import check_sums
from lutlab.base.lazy import PreTrainedModel
from lutlab.checkpoint.saving import new_folder
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.formats import name_of
from lutlab.formats.contract import Format
from lutlab.models.contract import CLASSIFIES
from lutlab.models.families import task_of, weight_of
from lutlab.models.new_head import head_of
from lutlab.modules import QuantLinear

FORMAT = 1
_FACTS, _TENSORS = "adapter.json", "adapter.safetensors"
_CURE = "the adapter is damaged, or was changed after lutlab.save_adapter: copy its folder again"


def save_adapter(model: PreTrainedModel, folder: str | Path) -> int:
    """Write the scales of a quantized model, and of a classifier its head. The folder appears when it is complete.

    Args:
        model: model with quantized layers, as lutlab.quantize leaves it.
        folder: new, or empty.

    Returns:
        The bytes of its tensors; the planes, which it does not hold, stay with the model.

    Raises:
        LutlabError: no layer is quantized, a layer's format has no scales of its own, the folder is not empty, or it
            cannot be written.
    """
    arguments.model(model)
    layers = quantized_layers(model)
    head = head_of(model) if task_of(model) == CLASSIFIES else None
    tensors = {
        f"{name}.{key}": scale
        for name, layer in layers.items()
        for key, scale in _scales(name, layer).items()
    }
    facts: dict[str, Any] = {"format": FORMAT, "planes_sha256": planes_sha256(layers), "head": head}
    if head:
        state = model.get_submodule(head).state_dict()
        tensors |= {f"{head}.{key}": tensor for key, tensor in state.items()}
        facts["classes"] = [name for _, name in sorted((model.config.id2label or {}).items())]
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with new_folder(folder) as draft:
        save_file(tensors, draft / _TENSORS)
        (draft / _FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return sum(tensor.nbytes for tensor in tensors.values())


def load_adapter(model: PreTrainedModel, folder: str | Path) -> PreTrainedModel:
    """Put the scales and the head of an adapter in the place of a model's own; planes and all else stay.

    Everything is checked before anything is changed. An engine that exists already keeps the scales it has.

    Args:
        model: model with the planes that the adapter was tuned over.
        folder: folder that save_adapter wrote.

    Returns:
        The same model, for chaining.

    Raises:
        LutlabError: files are missing or damaged, of another version, over other planes, or the model has no head.
    """
    arguments.model(model)
    folder = arguments.path("folder", folder)
    if not (folder / _FACTS).is_file():
        raise LutlabError(f"no {_FACTS} in {folder}: give a folder that lutlab.save_adapter wrote")
    check_sums(folder, _CURE, used=[_FACTS, _TENSORS])
    facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    if facts.get("format") != FORMAT:
        raise LutlabError(
            f"{folder} is an adapter of format {facts.get('format')!r}, this lutlab reads {FORMAT}: use the version "
            "that wrote it, and save it again"
        )
    tensors = load_file(folder / _TENSORS)
    layers = quantized_layers(model)
    digest = planes_sha256(layers)
    if digest != facts["planes_sha256"]:
        raise LutlabError(
            f"{folder} is an adapter over planes {facts['planes_sha256'][:16]}, and this model has {digest[:16]}: its "
            "scales mean nothing over other codes; load it over the model that was tuned, or one of the same "
            "checkpoint, method, q and g"
        )
    packed = {name: _with_scales(name, layer, tensors, folder) for name, layer in layers.items()}
    head = _head(model, facts, tensors, folder)
    for name, layer in layers.items():
        layer.repack(packed[name])
    if head is not None:
        model.set_submodule(facts["head"], head)
        model.config.id2label = dict(enumerate(facts["classes"]))
        model.config.label2id = {name: index for index, name in enumerate(facts["classes"])}
        vars(model)["num_labels"] = len(facts["classes"])
    return model


def planes_sha256(layers: Mapping[str, QuantLinear]) -> str:
    """The digest of the names, layouts and codes of quantized layers, whatever their scales."""
    digest = hashlib.sha256()
    for name, layer in sorted(layers.items()):
        digest.update(f"{name} {json.dumps(layer.layout(), sort_keys=True)}\n".encode())
        packed = layer.packed
        for key, buffer in packed.buffers.items():
            if buffer is not None and key not in packed.scales:
                plain = buffer.detach().cpu().contiguous().reshape(-1)
                digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _scales(name: str, layer: QuantLinear) -> dict[str, torch.Tensor]:
    packed = layer.packed
    if not packed.scales:
        raise LutlabError(
            f"{name} is stored as {name_of(packed)}, which has no scales apart from its codes: adapters are of binary "
            "codes and of uniform ones"
        )
    buffers = packed.buffers
    return {key: scale for key in packed.scales if (scale := buffers[key]) is not None}


def _with_scales(
    name: str, layer: QuantLinear, tensors: Mapping[str, torch.Tensor], folder: Path
) -> Format:
    """The layer's packed weight with an adapter's scales."""
    scales = {}
    for key, scale in _scales(name, layer).items():
        stored = tensors.get(f"{name}.{key}")
        if stored is None or (stored.shape, stored.dtype) != (scale.shape, scale.dtype):
            raise LutlabError(
                f"{folder / _TENSORS}: {name}.{key} is not {list(scale.shape)} {scale.dtype}: {_CURE}"
            )
        scales[key] = stored.to(scale.device)
    return layer.packed.with_buffers(layer.packed.buffers | scales)


def _head(
    model: PreTrainedModel,
    facts: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    folder: Path,
) -> nn.Linear | None:
    """The adapter's head in the place of the model's, which may have another number of classes."""
    name = facts["head"]
    classifies = task_of(model) == CLASSIFIES
    if (name is not None) != classifies or (classifies and head_of(model) != name):
        has = f"a head '{name}' of classes" if name else "no head of classes"
        raise LutlabError(
            f"{folder} has {has}, and this {type(model).__name__} is for {task_of(model)}: load the model for the task "
            "that the adapter was tuned on"
        )
    if name is None:
        return None
    replaced, weight = weight_of(model.get_submodule(name)), tensors[f"{name}.weight"]
    bias = tensors.get(f"{name}.bias")
    if weight.shape != (len(facts["classes"]), replaced.shape[1]):
        raise LutlabError(f"{folder / _TENSORS}: {name}.weight is {list(weight.shape)}: {_CURE}")
    head = nn.Linear(replaced.shape[1], len(weight), bias is not None).to(replaced)
    head.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return head.requires_grad_(False)
