"""compressed-tensors checkpoints (llm-compressor, vLLM) of weights in integers (compressed_tensors.py has the layout).

    pack-quantized    weight_packed, weight_shape, weight_scale, weight_zero_point (packed down N)
    int-quantized     weight [N, K] int8, weight_scale, weight_zero_point [N, G] int8

Symmetric weights have no zero points. Codes are counted from -2^(q-1), zero points as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lutlab.checkpoint.layout import (
    Layout,
    Shapes,
    check_groups,
    check_shape,
    exact_scale,
    group_size,
    int32,
)
from lutlab.errors import LutlabError
from lutlab.formats.code_words import WORD, unpack_words
from lutlab.groups import Width
from lutlab.lazy import torch
from lutlab.tensors import UniformTensor

PACKED, PLAIN = "pack-quantized", ("int-quantized", "naive-quantized")


@dataclass(frozen=True)
class _CompressedTensors(Layout):
    """bits, sizes: the widths and group sizes that the config names."""

    bits: tuple[int, ...]
    sizes: tuple[int, ...]

    def _uniform(
        self, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, width: Width
    ) -> UniformTensor:
        """Codes [N, K] and zero points [N, G], or None, from 0 on."""
        (rows, columns), (q, g) = codes.shape, width
        if scale.numel() == 1:  # of the whole weight
            scale = scale.expand(rows, 1)
        if len(scale) != rows:
            raise LutlabError(
                f"weight_scale is {list(scale.shape)} for N = {rows} rows (strategy block?), and lutlab reads scales "
                "by group, channel or tensor: quantize with one of these strategies"
            )
        scale = exact_scale(scale).contiguous()
        check_groups(g, columns, scale.shape[1])
        if zero is None:
            zero = torch.full(scale.shape, 2 ** (q - 1), dtype=torch.int16)
        zero = zero.expand(scale.shape).contiguous()
        return UniformTensor(codes.contiguous(), scale, zero, q, g)


class PackQuantized(_CompressedTensors):
    """Layout `pack-quantized`: codes packed into words of 32 bits."""

    mark: ClassVar[str] = "weight_packed"
    needed: ClassVar[tuple[str, ...]] = ("weight_packed", "weight_scale", "weight_shape")
    others: ClassVar[tuple[str, ...]] = ("weight_zero_point", "weight_g_idx")

    def width(self, shapes: Shapes, rows: int, columns: int) -> Width:
        """(q, g); see Layout."""
        _check_actorder(shapes)
        found = shapes["weight_packed"]
        fitting = [q for q in self.bits if found == (rows, -(-columns * q // WORD))]
        if len(fitting) != 1:
            raise LutlabError(
                f"weight_packed of {list(found)} for [N, K] = {[rows, columns]} fits "
                f"{'several' if fitting else 'none'} of the widths that config.json names "
                f"({', '.join(map(str, self.bits))} bits): the two belong to different models"
            )
        return fitting[0], group_size(columns, _groups(shapes), self.sizes)

    def read(self, tensors: Mapping[str, torch.Tensor], rows: int, columns: int) -> UniformTensor:
        """The weight; see Layout."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if tensors["weight_shape"].tolist() != [rows, columns]:
            raise LutlabError(
                f"weight_shape says [N, K] = {tensors['weight_shape'].tolist()}, and config.json {[rows, columns]}: "
                "the two belong to different models"
            )
        width = self.width(shapes, rows, columns)
        codes = unpack_words(int32(tensors, "weight_packed"), width[0], columns)
        zero = None
        if "weight_zero_point" in tensors:
            check_shape(tensors, "weight_zero_point", -(-rows * width[0] // WORD), _groups(shapes))
            words = int32(tensors, "weight_zero_point").T
            zero = unpack_words(words, width[0], rows).T.short()
        return self._uniform(codes, tensors["weight_scale"], zero, width)


class IntQuantized(_CompressedTensors):
    """Layout `int-quantized`: a byte for each code."""

    mark: ClassVar[str] = "weight_scale"
    needed: ClassVar[tuple[str, ...]] = ("weight", "weight_scale")
    others: ClassVar[tuple[str, ...]] = ("weight_zero_point", "weight_g_idx")

    def width(self, shapes: Shapes, rows: int, columns: int) -> Width:
        """(q, g); see Layout. Shapes do not tell which of several widths a layer has: it is read as it is held, 8."""
        _check_actorder(shapes)
        if shapes["weight"] != (rows, columns):
            raise LutlabError(
                f"weight is {list(shapes['weight'])} instead of [N, K] = {[rows, columns]}: the checkpoint belongs to "
                "another config"
            )
        q = self.bits[0] if len(self.bits) == 1 else 8
        return q, group_size(columns, _groups(shapes), self.sizes)

    def read(self, tensors: Mapping[str, torch.Tensor], rows: int, columns: int) -> UniformTensor:
        """The weight; see Layout."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        q, g = self.width(shapes, rows, columns)
        signed = [tensors[name] for name in ("weight", "weight_zero_point") if name in tensors]
        half = 2 ** (q - 1)
        for tensor in signed:
            if tensor.dtype != torch.int8 or int(tensor.min()) < -half or int(tensor.max()) >= half:
                raise LutlabError(
                    f"weight or weight_zero_point holds {tensor.dtype} from {tensor.min()} to {tensor.max()}, and its "
                    f"config says integers of {q} bits: the two belong to different models"
                )
        codes, *zero = (tensor.short() + half for tensor in signed)
        return self._uniform(
            codes.to(torch.uint8), tensors["weight_scale"], zero[0] if zero else None, (q, g)
        )


def _groups(shapes: Shapes) -> int:
    """G by the scales, [N, G], or one number of the whole weight."""
    scale = shapes["weight_scale"]
    return scale[1] if len(scale) == 2 else 1


def _check_actorder(shapes: Shapes) -> None:
    if "weight_g_idx" in shapes:
        raise LutlabError(
            "weight_g_idx, of groups of reordered channels (actorder: group), is not read from compressed-tensors: "
            "quantize with actorder static (or weight), or save as GPTQ"
        )


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
    bits = tuple(dict.fromkeys(int(one["num_bits"]) for one in weights))
    sizes = tuple(dict.fromkeys(int(one["group_size"]) for one in weights if one.get("group_size")))
    return (PackQuantized if formats == {PACKED} else IntQuantized)(bits, sizes)


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
