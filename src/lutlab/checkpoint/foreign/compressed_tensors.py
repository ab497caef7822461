"""compressed-tensors (llm-compressor, vLLM): integers by group or by row, packed or a byte each.

    W[n, k] = weight_scale[n, k // g] * (codes[n, k] - zero_point[n, k // g])

    pack-quantized
    weight_packed     [N, ceil(K q / 32)] int32   row n: its codes as a stream of bits (formats/code_words.py)
    weight_zero_point [ceil(N q / 32), G] int32   column j: the zero points of group j as a stream of bits
    weight_scale      [N, G]                      weight_shape [2] int64: N, K

    int-quantized     weight [N, K] int8, weight_zero_point [N, G] int8, both less 2^(q-1); weight_scale [N, G]

Its readers of packed fields take 2^(q-1) from codes and zero points alike. Where all zero points are 2^(q-1) the
weights are symmetric, and there is no weight_zero_point. Checkpoints of others (llm-compressor) are read in the same
two layouts, the second also by its older name, naive-quantized.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.lazy import PreTrainedModel, PreTrainedTokenizerBase
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.checkpoint.foreign.layout import Layout, Numbers, Shapes, Size, Tensors, Width
from lutlab.checkpoint.saving import check_saved, original_of, save_as, uniform_of
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.embeddings import QuantEmbedding
from lutlab.formats.code_words import WORD, pack_words, unpack_words

log = logging.getLogger(__name__)
PACKED, BYTES = "pack-quantized", "int-quantized"
PLAIN = (BYTES, "naive-quantized")  # names of one layout
# codes, and zero points where weights are not symmetric
_Integers = tuple[torch.Tensor, torch.Tensor | None]


def export_compressed_tensors(
    model: PreTrainedModel,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    format: str = PACKED,
) -> None:
    """Write a uniformly quantized model in a format of compressed-tensors.

    What transformers 5.23 needs to read the folder, beside the package compressed-tensors:

    | format         | weights                 | AutoModelForCausalLM.from_pretrained(folder)                     |
    |----------------|-------------------------|------------------------------------------------------------------|
    | pack-quantized | symmetric               | loads it packed, layers of several (q, g) too                    |
    | pack-quantized | asymmetric, one (q, g)  | loads it dequantized: config.json says `dequantize`              |
    | pack-quantized | asymmetric, several     | does not (it expects zero points unpacked); vLLM's reader may    |
    | int-quantized  | any                     | loads it, layers of several (q, g) too; 8 bits a weight on disk  |

    lutlab.load reads all four.

    Args:
        model: any of its nn.Linear layers quantized, each with its own q and g.
        folder: new, or empty.
        tokenizer: saved beside the model.
        format: `pack-quantized` or `int-quantized`.

    Raises:
        LutlabError: the layout cannot hold this model; the message says why. Or the folder cannot be written.
    """
    if not isinstance(format, str) or format not in (PACKED, BYTES):
        raise LutlabError(
            f"unknown format '{format}' of compressed-tensors: {nearest(format, (PACKED, BYTES))}"
        )
    check_saved(model, tokenizer)
    layers = {
        name: layer
        for name, layer in quantized_layers(model).items()
        if not isinstance(layer, QuantEmbedding)
    }
    _check_linear(model, list(layers))
    uniform = {name: uniform_of(name, layer) for name, layer in layers.items()}
    symmetric = all(bool((t.zero_point == 2 ** (t.bits - 1)).all()) for t in uniform.values())
    make = pack if format == PACKED else _bytes
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    groups: dict[tuple[int, int | None], list[str]] = {}
    for name, tensor in uniform.items():
        tensors[name] = make(name, tensor, model.dtype)
        if symmetric:
            del tensors[name]["weight_zero_point"]
        groups.setdefault((tensor.bits, _group_size(tensor)), []).append(name)
    config: dict[str, Any] = {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{i}": _scheme(width, names, format, symmetric)
            for i, (width, names) in enumerate(groups.items())
        },
        "ignore": [],
    }
    if format == PACKED and not symmetric:
        if len(groups) == 1:
            config["dequantize"] = True
        else:
            log.warning(
                "%s: transformers does not read asymmetric %s weights of several (q, g), lutlab.load does: "
                "format='%s' writes what transformers reads",
                folder,
                PACKED,
                BYTES,
            )
    save_as(model, folder, tokenizer, config, tensors)


def pack(name: str, tensor: UniformTensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The four tensors of a layer; scales in the model's dtype, to which readers convert them.

    Raises:
        LutlabError: channels are in another order, the last group is shorter, or the dtype cannot hold the scales.
    """
    assert tensor.zero_point is not None  # as uniform_of gives it
    return {
        "weight_packed": pack_words(tensor.codes, tensor.bits),
        "weight_zero_point": pack_words(tensor.zero_point.T, tensor.bits).T,
        "weight_scale": _scale(name, tensor, dtype),
        "weight_shape": torch.tensor(tensor.codes.shape),
    }


def _bytes(name: str, tensor: UniformTensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The three tensors of a layer of int-quantized; as pack."""
    half = 2 ** (tensor.bits - 1)
    return {
        "weight": (tensor.codes.short() - half).to(torch.int8),
        "weight_zero_point": (tensor.zero_point - half).to(torch.int8),
        "weight_scale": _scale(name, tensor, dtype),
    }


def _scale(name: str, tensor: UniformTensor, dtype: torch.dtype) -> torch.Tensor:
    """Scales [N, G] of a layer that the format can say, in the model's dtype."""
    columns = tensor.codes.shape[1]
    g = _group_size(tensor)
    if tensor.order is not None or (g is not None and columns % g):
        what = f"groups of {g} do not divide K = {columns}"
        if tensor.order is not None:
            what = "groups are of reordered channels (act_order)"
        raise LutlabError(
            f"{name}: {what}, which compressed-tensors cannot say: quantize with static groups and a g that divides K, "
            "or use lutlab.save"
        )
    scale = tensor.scale.to(dtype)
    if not torch.equal(scale.double(), tensor.scale.double()):
        raise LutlabError(
            f"{name}: {dtype}, the model's dtype, cannot hold its scales, and readers would round them: export the "
            "model in float32 (model.float())"
        )
    return scale


def _group_size(tensor: UniformTensor) -> int | None:
    """Group size in the config; None for one group a row, which the format calls `channel`."""
    return None if tensor.scale.shape[1] == 1 else tensor.group_size


def _scheme(
    width: tuple[int, int | None], names: list[str], format: str, symmetric: bool
) -> dict[str, Any]:
    q, g = width
    weights = {"num_bits": q, "type": "int", "symmetric": symmetric, "group_size": g}
    weights |= {"dynamic": False, "strategy": "channel" if g is None else "group"}
    return {"targets": names, "weights": weights, "format": format}


def _check_linear(model: PreTrainedModel, names: list[str]) -> None:
    """compressed-tensors has no place for GPT-2's Conv1D."""
    original = original_of(model)
    for name in names:
        module = original.get_submodule(name)
        if not isinstance(module, nn.Linear):
            raise LutlabError(
                f"{name} is a {type(module).__name__} in this architecture, and compressed-tensors replaces nn.Linear "
                "only: use export_gptq or lutlab.save"
            )


# ---- what others wrote ----


class _CompressedTensors(Layout):
    """Codes and zero points as integers that are counted from -2^(q-1), or packed from 0 on.

    Args beside a Layout's:
        symmetric: whether config.json says that there are no zero points; None: of some layers, or nothing.
        reordered: whether config.json says that groups are of reordered channels (actorder: group).
    """

    others = ("weight_zero_point", "weight_g_idx")

    def __init__(
        self,
        bits: Iterable[int],
        sizes: Iterable[int],
        symmetric: bool | None = None,
        reordered: bool = False,
    ) -> None:
        super().__init__(bits, sizes)
        self._symmetric, self._reordered = symmetric, reordered

    def groups(self, shapes: Shapes) -> int:
        """G by the scales, [N, G], or one number of the whole weight."""
        scale = shapes["weight_scale"]
        return scale[1] if len(scale) == 2 else 1

    def bits_of(self, shapes: Shapes, size: Size) -> int:
        """By the packing; groups of reordered channels are refused."""
        if "weight_g_idx" in shapes or self._reordered:
            raise LutlabError(
                "weight_g_idx, of groups of reordered channels (actorder: group), is not read from compressed-tensors: "
                "quantize with actorder static (or weight), or save as GPTQ"
            )
        return self._stored_bits(shapes, *size)

    @abstractmethod
    def _stored_bits(self, shapes: Shapes, rows: int, columns: int) -> int:
        """Bits of a layer's codes, with the errors of width."""

    @abstractmethod
    def _integers(self, tensors: Tensors, size: Size, q: int) -> _Integers:
        """Codes of a layer, and its zero points where it has them, counted from 0 on."""

    def unpack(self, tensors: Tensors, size: Size, width: Width) -> Numbers:
        """Scales by group, by row or of the whole weight; zero points, where there are none, are 2^(q-1)."""
        (rows, _), (q, _) = size, width
        codes, zero = self._integers(tensors, size, q)
        scale = self.floats(tensors, "weight_scale")
        if scale.numel() == 1:  # of the whole weight
            scale = scale.expand(rows, 1)
        if scale.ndim != 2 or len(scale) != rows:
            raise LutlabError(
                f"weight_scale is {list(scale.shape)} for N = {rows} rows (strategy block?), and lutlab reads scales "
                "by group, channel or tensor: quantize with one of these strategies"
            )
        if self._symmetric and zero is not None:
            self.check_symmetric(zero, q, "symmetric is true")
        if self._symmetric is False and zero is None:
            raise LutlabError(
                "config.json says that weights are asymmetric (symmetric is false), and there is no weight_zero_point: "
                "files are incomplete, or of another model; copy the folder again"
            )
        if zero is None:
            zero = torch.full(scale.shape, 2 ** (q - 1), dtype=torch.int16)
        return codes, scale, zero.expand(scale.shape), None


class PackQuantized(_CompressedTensors):
    """Layout `pack-quantized`: codes packed into words of 32 bits."""

    mark = "weight_packed"
    needed = ("weight_packed", "weight_scale", "weight_shape")

    def _stored_bits(self, shapes: Shapes, rows: int, columns: int) -> int:
        shape = shapes["weight_packed"]
        fitting = [q for q in self.bits if shape == (rows, -(-columns * q // WORD))]
        if len(fitting) != 1:
            raise LutlabError(
                f"weight_packed of {list(shape)} for [N, K] = {[rows, columns]} fits "
                f"{'several' if fitting else 'none'} of the widths that config.json names "
                f"({', '.join(map(str, self.bits))} bits): the two belong to different models"
            )
        return fitting[0]

    def read(self, tensors: Tensors, rows: int, columns: int) -> UniformTensor | BCQTensor:
        """First of all weight_shape is compared with the layer's own."""
        if (stated := tensors["weight_shape"].tolist()) != [rows, columns]:
            raise LutlabError(
                f"weight_shape says [N, K] = {stated}, and config.json {[rows, columns]}: the two belong to different "
                "models"
            )
        return super().read(tensors, rows, columns)

    def _integers(self, tensors: Tensors, size: Size, q: int) -> _Integers:
        rows, columns = size
        codes = unpack_words(self.words(tensors, "weight_packed"), q, columns)
        if "weight_zero_point" not in tensors:
            return codes, None
        groups = self.groups(self.shapes_of(tensors))
        self.shaped(tensors, "weight_zero_point", -(-rows * q // WORD), groups)
        return codes, unpack_words(self.words(tensors, "weight_zero_point").T, q, rows).T


class IntQuantized(_CompressedTensors):
    """Layout `int-quantized`: a byte for each code."""

    mark = "weight_scale"
    needed = ("weight", "weight_scale")

    def _stored_bits(self, shapes: Shapes, rows: int, columns: int) -> int:
        """Shapes do not tell which of several widths a layer has: it is read as it is held, 8."""
        if shapes["weight"] != (rows, columns):
            raise LutlabError(
                f"weight is {list(shapes['weight'])} instead of [N, K] = {[rows, columns]}: the checkpoint belongs to "
                "another config"
            )
        return self.bits[0] if len(self.bits) == 1 else 8

    def _integers(self, tensors: Tensors, size: Size, q: int) -> _Integers:
        half = 2 ** (q - 1)
        signed = [tensors[name] for name in ("weight", "weight_zero_point") if name in tensors]
        for tensor in signed:
            if tensor.dtype != torch.int8 or int(tensor.min()) < -half or int(tensor.max()) >= half:
                raise LutlabError(
                    f"weight or weight_zero_point holds {tensor.dtype} from {tensor.min()} to {tensor.max()}, and its "
                    f"config says integers of {q} bits: the two belong to different models"
                )
        codes, *zero = (tensor.short() + half for tensor in signed)
        return codes.to(torch.uint8), zero[0] if zero else None


def compressed_tensors_layout(config: Mapping[str, Any]) -> Layout:
    """The layout of quant_method compressed-tensors.

    Raises:
        LutlabError: a format that lutlab does not read, activations that are quantized as well, sparse weights.
    """
    groups = list((config.get("config_groups") or {}).values())
    if not all(
        isinstance(group, dict) and isinstance(group.get("weights"), dict) for group in groups
    ):
        raise LutlabError(
            f"config_groups of quantization_config is {config['config_groups']}, and lutlab reads schemes of weights "
            "that are written out: save the model with compressed-tensors, which writes them so"
        )
    formats = {str(group.get("format") or config.get("format")) for group in groups}
    for what in _beyond_weights(config, groups):
        raise LutlabError(
            f"the checkpoint's config.json asks for {what}, and lutlab reads quantized weights only: its numbers would "
            "be of another model; give a weight-only checkpoint (as W4A16)"
        )
    known = formats == {PACKED} or (formats and formats <= set(PLAIN))
    integers = all((group.get("weights") or {}).get("type", "int") == "int" for group in groups)
    if not known or not integers:
        raise LutlabError(
            f"a compressed-tensors checkpoint of format {', '.join(sorted(formats)) or config.get('format')} with "
            f"{'integers' if integers else 'floating-point codes'} is not read: lutlab reads weights in integers as "
            f"{PACKED}, {PLAIN[0]} or {PLAIN[1]}, one format a checkpoint"
        )
    weights = [group["weights"] for group in groups]
    bits = [int(scheme["num_bits"]) for scheme in weights]
    sizes = [int(scheme["group_size"]) for scheme in weights if scheme.get("group_size")]
    symmetric = {scheme.get("symmetric") for scheme in weights}
    return (PackQuantized if formats == {PACKED} else IntQuantized)(
        bits,
        sizes,
        symmetric.pop() if len(symmetric) == 1 else None,
        any(scheme.get("actorder") == "group" for scheme in weights),
    )


def _beyond_weights(config: Mapping[str, Any], groups: list[Mapping[str, Any]]) -> Iterator[str]:
    """Features beside quantized weights that a config requires, in words."""
    if any(group.get("input_activations") or group.get("output_activations") for group in groups):
        yield "quantized activations (input_activations)"
    if config.get("kv_cache_scheme"):
        yield "a quantized cache of keys and values (kv_cache_scheme)"
    if (config.get("sparsity_config") or {}).get("format", "dense") != "dense":
        yield "sparse weights (sparsity_config)"
    if config.get("transform_config"):
        yield "rotated activations (transform_config)"
