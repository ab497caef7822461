"""Save a quantized model to a folder, from which it loads again bit for bit (loading.py).

    lutlab.save(model, "opt-3bit", tokenizer)

The folder is what transformers' save_pretrained writes: config.json, whose quantization_config names every quantized
layer (checkpoint/transformers.py), safetensors with the packed buffers, the tokenizer's files; and SHA256SUMS of them
all. AutoModelForCausalLM.from_pretrained loads it as well, once lutlab is imported; both compare the files first. What
exports to other projects' layouts share stands below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from lutlab.base import arguments
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import draft_beside, write_sums
from lutlab.base.lazy import PreTrainedModel, PreTrainedTokenizerBase, torch
from lutlab.base.tensors import UniformTensor
from lutlab.checkpoint.transformers import declare, quantized_layers
from lutlab.formats import name_of
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.second_order import SecondOrder
from lutlab.formats.uniform import PackedUniform, to_uniform
from lutlab.modules import QuantLinear

_SIZE = re.compile(r"[1-9]\d*(\.\d+)?[KMGT]i?B")  # as huggingface_hub reads it


def save(
    model: PreTrainedModel,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_shard_size: str = "5GB",
) -> None:
    """Write a quantized model. The folder appears when it is complete.

    Args:
        model: model with quantized layers, as lutlab.quantize leaves it.
        folder: new, or empty.
        tokenizer: saved beside the model.
        max_shard_size: largest size of one safetensors file, in transformers' notation: `500MB`, `5GB`.

    Raises:
        LutlabError: no layer is quantized, the folder is not empty, or it cannot be written.
    """
    check_saved(model, tokenizer)
    if not isinstance(max_shard_size, str) or not _SIZE.fullmatch(max_shard_size):
        raise LutlabError(
            f"max_shard_size is {arguments.described(max_shard_size)}: give a size with its unit, as 500MB or 5GB"
        )
    declare(model)
    with new_folder(folder) as draft:
        model.save_pretrained(draft, max_shard_size=max_shard_size)
        if tokenizer is not None:
            tokenizer.save_pretrained(draft)


def check_saved(model: Any, tokenizer: Any) -> None:
    """Refuse what is no model with weights, or no tokenizer where there is one."""
    arguments.model(model)
    if tokenizer is not None:
        arguments.tokenizer(tokenizer)


def check_new(folder: str | Path) -> Path:
    """The folder's whole path; raises LutlabError where there is a file, or a folder that is not empty."""
    folder = arguments.path("folder", folder).resolve()
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise LutlabError(
            f"{folder} is not empty: lutlab overwrites no model; give a new folder, or remove that one first"
        )
    return folder


@contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """A temporary folder to fill, which gets SHA256SUMS and its name at the end, or is removed after an error.

    Raises:
        LutlabError: the folder is not empty, or nothing can be written there.
    """
    folder = check_new(folder)
    try:
        with draft_beside(folder) as beside:
            draft = beside / folder.name  # beside is its user's alone, which the folder need not be
            draft.mkdir()
            yield draft
            for path in draft.iterdir():  # safetensors makes files that are their user's alone
                path.chmod(draft.stat().st_mode & 0o666)
            write_sums(draft)
            if folder.is_dir():
                folder.rmdir()
            draft.rename(folder)
    except (OSError, SafetensorError) as error:
        raise LutlabError(
            f"cannot write {folder} ({type(error).__name__}: {error}): check the disk's space and permissions"
        ) from error


# ---- in other projects' layouts ----


def as_uniform(name: str, layer: QuantLinear) -> UniformTensor:
    """A layer's weight as scale * (codes - zero_point), or scale * codes + offset.

    Raises:
        LutlabError: it has no such form.
    """
    packed, tensor = layer.packed, None
    if isinstance(packed, SecondOrder):
        packed = packed.first_order()
    if isinstance(packed, PackedUniform):
        tensor = packed.unpack()
    elif isinstance(packed, PackedBCQ):
        tensor = to_uniform(packed.unpack())
    if tensor is None:
        raise LutlabError(
            f"{name}: its codes are not uniform (those of format {name_of(packed)} are where alpha_b = 2^b alpha_0, "
            "with a matching offset, LUT-GEMM Eq. 5), and this layout can only hold uniform weights: export a model of "
            "method=rtn or gptq, or keep this one with lutlab.save"
        )
    return tensor


def uniform_of(name: str, layer: QuantLinear) -> UniformTensor:
    """A layer's weight as scale * (codes - zero_point), with zero_point in 0 .. 2^q-1.

    Raises:
        LutlabError: it has no such form; the message says why.
    """
    tensor = as_uniform(name, layer)
    if tensor.zero_point is None:
        raise LutlabError(
            f"{name}: its codes have a float offset a group, no multiple of the scale (as GGUF's Q4_1), and this "
            "layout has integer zero points only: keep this model with lutlab.save"
        )
    top = 2**tensor.bits - 1
    low, high = int(tensor.zero_point.min()), int(tensor.zero_point.max())
    if low < 0 or high > top:
        raise LutlabError(
            f"{name}: zero points from {low} to {high}, but this layout keeps them in {tensor.bits} bits, 0 to {top}: "
            "quantize with a grid that contains 0 (method=rtn method.variant=gptq), or keep this model with lutlab.save"
        )
    return tensor


def original_of(model: PreTrainedModel) -> PreTrainedModel:
    """What other readers make of the model's config.json: its architecture, on the meta device.

    Raises:
        LutlabError: a layer has a bias that the architecture has not, which they would leave out.
    """
    with torch.device("meta"):
        original = type(model)(model.config)
    known = dict(original.named_parameters())
    for name, layer in quantized_layers(model).items():
        if layer.bias is not None and f"{name}.bias" not in known:
            raise LutlabError(
                f"{name} has a bias, which a {type(model).__name__} of this config.json has not: readers of this "
                "layout would leave it out; keep this model with lutlab.save"
            )
    return original


def save_as(
    model: PreTrainedModel,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None,
    config: Mapping[str, Any],
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
) -> None:
    """Write the model with `tensors[layer][name]` in place of its quantized layers' buffers; biases stay.

    A quantized layer without such tensors, as a table of tokens, is written in the model's dtype.

    Raises:
        LutlabError: the folder is not empty, or cannot be written.
    """
    layers = list(quantized_layers(model).items())
    packed = {f"{name}.{buffer}" for name, layer in layers for buffer in layer.packed.buffers}
    state = {key: tensor for key, tensor in model.state_dict().items() if key not in packed}
    for name, layer in layers:
        if name not in tensors:
            state[f"{name}.weight"] = layer.packed.dequantize().to(model.dtype)
    for name, by_key in tensors.items():
        state |= {f"{name}.{key}": tensor.contiguous() for key, tensor in by_key.items()}
    ours = getattr(model.config, "quantization_config", None)
    # with it, transformers would write the buffers and the config of the folder that it loaded
    quantizer = vars(model).pop("hf_quantizer", None)
    try:
        with new_folder(folder) as draft:
            model.config.quantization_config = dict(config)
            model.save_pretrained(draft, state_dict=state)
            if tokenizer is not None:
                tokenizer.save_pretrained(draft)
    finally:
        if quantizer is not None:
            model.hf_quantizer = quantizer
        if ours is None:
            del model.config.quantization_config
        else:
            model.config.quantization_config = ours
