"""Models that other projects quantized: which layout a folder has, and the model with its weights packed as ours.

    GPTQ (AutoGPTQ, GPTQModel, EfficientQAT, AutoRound)   gptq.py
    AWQ gemm (AutoAWQ, GPTQModel)                         awq.py
    compressed-tensors, weights in integers               compressed_tensors.py
    BPDQ, AnyBCQ: bit planes with an offset               planes.py

The last are binary codes and become BCQTensors, all others uniform ones and UniformTensors, one layer at a time: the
dense model is never there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Width
from lutlab.base.lazy import PreTrainedConfig, PreTrainedModel, nn, torch
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.checkpoint.foreign.awq import awq_layout
from lutlab.checkpoint.foreign.compressed_tensors import compressed_tensors_layout
from lutlab.checkpoint.foreign.gptq import FIELD, TENS, GPTQLayout, auto_round_layout, gptq_layout
from lutlab.checkpoint.foreign.keys import READ, check_keys
from lutlab.checkpoint.foreign.layout import Layout
from lutlab.checkpoint.foreign.planes import anybcq_layout, bpdq_layout
from lutlab.checkpoint.transformers import declare
from lutlab.formats import pack
from lutlab.models.families import family_of, size_of, weight_of
from lutlab.models.files import Shards
from lutlab.models.resident import placed
from lutlab.models.streamed import assign, check_tied, finish, skeleton
from lutlab.modules import QuantLinear


def layout_of(config: Mapping[str, Any] | None) -> Layout:
    """The layout that a quantization config names; without one EfficientQAT's, whose shapes `layout_in` looks at.

    Raises:
        LutlabError: it names none that lutlab reads.
    """
    if config is None:
        return GPTQLayout(FIELD)
    method = str(config.get("quant_method")).lower().removeprefix("intel/")
    if method not in READ:
        raise LutlabError(
            f"quant_method {config.get('quant_method')!r} is not read by lutlab, which reads {', '.join(READ)}, and "
            "what lutlab.save wrote: give a checkpoint of one of these, or quantize the full-precision model with "
            "lutlab.quantize"
        )
    if method == "gptq" and "bpdq" in (config.get("checkpoint_format"), config.get("format")):
        method = "bpdq"
    layout = _LAYOUTS[method](config)
    check_keys(method, config)
    return layout


def _auto_round(config: Mapping[str, Any]) -> Layout:
    """Another project's layout, or AutoRound's own."""
    packing = str(config.get("packing_format") or config.get("backend") or "auto_round")
    if "awq" in packing:
        symmetric = config.get("sym") and not config.get("extra_config")
        return awq_layout({"group_size": config.get("group_size"), "zero_point": not symmetric})
    if "llm_compressor" in packing:
        return compressed_tensors_layout(config)
    return auto_round_layout(config, packing)


_LAYOUTS: Mapping[str, Callable[[Mapping[str, Any]], Layout]] = {
    "gptq": gptq_layout,
    "bpdq": bpdq_layout,
    "awq": awq_layout,
    "auto-round": _auto_round,
    "compressed-tensors": compressed_tensors_layout,
    "anybcq": anybcq_layout,
}


def load_foreign(
    folder: Path,
    config: PreTrainedConfig,
    quantization: Mapping[str, Any] | None,
    dtype: torch.dtype,
    device: str,
) -> PreTrainedModel:
    """The model of a folder, in evaluation mode, its quantized layers read as QuantLinears.

    Args:
        folder: folder with config.json and safetensors.
        config: architecture, without `quantization`, which EfficientQAT's folders lack.
        quantization: `quantization_config` of the folder's config.json, or None.
        dtype: dtype of everything that is not quantized.
        device: device of the model.

    Raises:
        LutlabError: a layout that lutlab does not read, ambiguous zero points, files that are missing, damaged or of
            another model.
    """
    model = skeleton(config, dtype, folder)
    sizes = _sizes(model)
    shards = Shards(folder, model.base_model_prefix)
    layout, names = layout_in(folder, quantization, sizes, shards)
    tied = model.all_tied_weights_keys
    claimed, buffers = [], set()
    for name in names:
        if f"{name}.weight" in tied:
            raise LutlabError(
                f"{folder}: {name} is quantized, and config.json ties its weight to {tied[f'{name}.weight']}: set "
                "tie_word_embeddings to false there if the file holds both"
            )
        module = model.get_submodule(name)
        packed = pack(_read(folder, name, sizes[name], layout, shards))
        model.set_submodule(name, QuantLinear(packed, _bias(name, module, shards)))
        suffixes = (*layout.needed, *layout.others, *layout.unread, "bias")
        claimed += [f"{name}.{suffix}" for suffix in suffixes]
        buffers |= {f"{name}.{buffer}" for buffer in packed.buffers}
    rest = {n: t for n, t in model.state_dict().items() if n not in tied and n not in buffers}
    shards.check([*rest, *(n for n in claimed if n in shards)], family_of(config).blocks)
    check_tied(folder, model, shards)
    assign(model, "", shards.read(rest, dtype, "cpu"))
    declare(model)  # so that model.save_pretrained writes what lutlab.save does
    return placed(finish(model, "cpu"), device)


def _sizes(model: PreTrainedModel) -> dict[str, tuple[int, int]]:
    """Path of every linear layer, the head's too -> (N, K)."""
    from transformers.pytorch_utils import Conv1D

    return {
        name: size_of(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    }


def layout_in(
    folder: Path,
    quantization: Mapping[str, Any] | None,
    sizes: Mapping[str, tuple[int, int]],
    shards: Shards,
) -> tuple[Layout, list[str]]:
    """The layout by the config, else by shapes, and names of the linear layers that are quantized.

    Nobody but EfficientQAT writes the shapes of its files of 3 bits.

    Raises:
        LutlabError: no layout that lutlab reads, or none of the linear layers (path -> (N, K)) is quantized.
    """
    layout = layout_of(quantization)
    names = [name for name in sizes if f"{name}.{layout.mark}" in shards]
    if not names:
        raise LutlabError(
            f"{folder} holds no quantized weights{f' (<layer>.{layout.mark})' if quantization else ''}: load a model "
            "in full precision with transformers' AutoModelForCausalLM.from_pretrained, or in a table with method=none"
        )
    if quantization is None and not all(
        shards.shape(f"{name}.qweight")[0] == -(-sizes[name][1] // TENS) for name in names
    ):
        raise LutlabError(
            f"{folder} holds GPTQ-like weights ({names[0]}.qweight), and no file says what their zero points mean: "
            'add to config.json "quantization_config": {"quant_method": "gptq", "bits": <bits>, "group_size": <g>, '
            "\"checkpoint_format\": <format>}, with gptq_v2 for EfficientQAT's own files, gptq for GPTQ-for-LLaMa's"
        )
    return layout, names


def width_in(
    folder: Path, name: str, size: tuple[int, int], layout: Layout, shards: Shards
) -> Width:
    """(q, g) of a layer by the shapes of its tensors in the files, no weight read.

    Raises:
        LutlabError: a tensor is missing, or they are of no width that the layout has; the message names the layer.
    """
    suffixes = _suffixes(folder, name, layout, shards)
    shapes = {suffix: shards.shape(f"{name}.{suffix}") for suffix in suffixes}
    with _naming(folder, name):
        return layout.width(shapes, *size)


def _read(
    folder: Path, name: str, size: tuple[int, int], layout: Layout, shards: Shards
) -> UniformTensor | BCQTensor:
    """The weight of a layer, out of the files; errors as of width_in."""
    suffixes = _suffixes(folder, name, layout, shards)
    tensors = {suffix: shards.as_stored(f"{name}.{suffix}") for suffix in suffixes}
    with _naming(folder, name):
        return layout.read(tensors, *size)


def _suffixes(folder: Path, name: str, layout: Layout, shards: Shards) -> list[str]:
    """Suffixes of the tensors of a layer. Raises LutlabError: one that the layout needs is missing."""
    suffixes = layout.suffixes(name, shards)
    lacking = [suffix for suffix in layout.needed if suffix not in suffixes]
    if lacking:
        raise LutlabError(
            f"{folder} lacks {name}.{lacking[0]} beside {name}.{layout.mark}: files are incomplete, or of another "
            "layout than config.json names; copy the folder again"
        )
    return suffixes


@contextmanager
def _naming(folder: Path, name: str) -> Iterator[None]:
    """Errors name the layer."""
    try:
        yield
    except LutlabError as error:
        raise LutlabError(f"{folder}, layer {name}: {error}") from error


def _bias(name: str, module: nn.Module, shards: Shards) -> torch.Tensor | None:
    """An empty bias where the architecture has one, or the files do; one of zeros alone, as AutoGPTQ once gave every
    layer, only where the architecture has it.
    """
    if getattr(module, "bias", None) is None:
        key = f"{name}.bias"
        if key not in shards or not shards.as_stored(key).any():
            return None
    weight = weight_of(module)
    return torch.empty(len(weight), dtype=weight.dtype, device="meta")
