"""The GPTQ checkpoint layout (AutoGPTQ, GPTQModel, vLLM), written in format `gptq_v2`, read in all.

    W[n, k] = scales[g_idx[k], n] * (codes[n, k] - zero_point[g_idx[k], n])

    qweight [ceil(K q / 32), N] int32   column n: the codes of row n as a stream of bits (formats/code_words.py)
    qzeros  [G, ceil(N q / 32)] int32   row j: the zero points of group j as a stream of bits
    scales  [G, N] float16              g_idx [K] int32: the group of input channel k

`gptq` (v1) stores zero_point - 1, which has no place for a zero point of 0; v2 stores zero_point itself. GPTQModel 7.7
reads g of -1, 16, 32, 64, … 1024 only.

What stands in the qzeros of others depends on who wrote it; z is the zero point, f the field of q bits in the file:

    gptq_v2, AutoRound's own packing, EfficientQAT    z = f
    gptq (v1) of GPTQModel                            z by whole words: qzeros + 0b…01…01 modulo 2^32, carries included,
                                                      the inverse of its writer; at q = 3 z = f + 1 modulo 2^3
    gptq (v1) of others, AutoRound's auto_gptq        z = f + 1; f = 2^q - 1 is ambiguous (z = 0, or 2^q?) and refused
    of symmetric weights (`sym`), of whomever         z = 2^(q-1), where f is that or one less, whatever the format says

EfficientQAT packs 3 bits its own way, 10 codes a word, the upper 2 bits unused: qweight [ceil(K / 10), N].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from lutlab.base.errors import LutlabError
from lutlab.base.groups import group_length
from lutlab.base.lazy import PreTrainedModel, PreTrainedTokenizerBase
from lutlab.base.tensors import UniformTensor
from lutlab.checkpoint.foreign.layout import Layout, Numbers, Shapes, Size, Tensors, Width
from lutlab.checkpoint.saving import check_saved, original_of, save_as, uniform_of
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.formats.code_words import WORD, pack_words, unpack_words
from lutlab.models.families import kinds

BITS = (2, 3, 4, 8)
TENS = 10  # codes of 3 bits in a word of EfficientQAT's
FIELD, WORDS, PLUS_ONE = "field", "words", "plus_one"  # of z, in the order of the table above


def export_gptq(
    model: PreTrainedModel, folder: str | Path, tokenizer: PreTrainedTokenizerBase | None = None
) -> None:
    """Write a uniformly quantized model as a GPTQ checkpoint of format gptq_v2.

    Args:
        model: all linear layers of its decoder blocks quantized, with one q (2, 3, 4, 8) and one g.
        folder: new, or empty.
        tokenizer: saved beside the model.

    Raises:
        LutlabError: the layout cannot hold this model; the message says why. Or the folder cannot be written.
    """
    check_saved(model, tokenizer)
    in_blocks, layers = kinds(model.config), quantized_layers(model)
    original_of(model)
    left = [name for name in in_blocks if name not in layers]
    layers = {name: layer for name, layer in layers.items() if name in in_blocks}
    uniform = {name: uniform_of(name, layer) for name, layer in layers.items()}
    widths = {(tensor.bits, tensor.group_size) for tensor in uniform.values()}
    if left or len(widths) > 1:
        cause = f"{left[0]} is not" if left else f"these have (q, g) = {sorted(widths)}"
        raise LutlabError(
            f"{cause}: a GPTQ checkpoint has one q and one g for all linear layers of the blocks; quantize them alike, "
            "or use export_compressed_tensors"
        )
    ((q, g),) = widths
    if q not in BITS:
        raise LutlabError(f"q={q}: the GPTQ layout is defined for q of {BITS} only")
    tensors = {name: pack(name, tensor) for name, tensor in uniform.items()}
    config = {
        "quant_method": "gptq",
        "checkpoint_format": "gptq_v2",
        "bits": q,
        "group_size": g,
        "sym": False,
        "desc_act": any(tensor.order is not None for tensor in uniform.values()),
        "lm_head": False,
        "meta": {"quantizer": ["lutlab"]},
    }
    save_as(model, folder, tokenizer, config, tensors)


def pack(name: str, tensor: UniformTensor) -> dict[str, torch.Tensor]:
    """The four buffers of a layer.

    Raises:
        LutlabError: rows or columns do not fill whole words, or a scale is not a float16.
    """
    q, (rows, columns) = tensor.bits, tensor.codes.shape
    if rows * q % WORD or columns * q % WORD:
        raise LutlabError(
            f"{name}: [N, K] = {[rows, columns]} at q={q} do not fill whole 32-bit words, which readers of the GPTQ "
            "layout count on: use export_compressed_tensors or lutlab.save"
        )
    scale = tensor.scale.half()
    if not torch.equal(scale.double(), tensor.scale.double()):
        raise LutlabError(
            f"{name}: its scales are {tensor.scale.dtype}, and the GPTQ layout holds float16: quantize with "
            "scale_dtype=fp16, or use export_compressed_tensors or lutlab.save"
        )
    group = torch.arange(columns, dtype=torch.int32) // group_length(tensor.group_size, columns)
    codes, order = tensor.codes.cpu(), torch.arange(columns)
    if tensor.order is not None:
        order = tensor.order.long().cpu()
    place = torch.argsort(order)  # input channel k is column place[k]
    assert tensor.zero_point is not None  # as uniform_of gives it
    return {
        "qweight": pack_words(codes[:, place], q).T,
        "qzeros": pack_words(tensor.zero_point.cpu().T, q),
        "scales": scale.cpu().T,
        "g_idx": group[place],
    }


# ---- what others wrote ----


class GPTQLayout(Layout):
    """Layout of one checkpoint of GPTQ's kind.

    Args beside a Layout's:
        zeros: FIELD, WORDS or PLUS_ONE.
        bits: widths that the config states, which decide where shapes fit several.
        symmetric: whether config.json says that zero points are 2^(q-1); None: of some layers.
        reordered: whether config.json says that groups are of reordered channels (desc_act).
    """

    mark = "qweight"
    needed = ("qweight", "qzeros", "scales")
    others = ("g_idx",)

    def __init__(
        self,
        zeros: str,
        bits: Iterable[int] = (),
        sizes: Iterable[int] = (),
        symmetric: bool | None = False,
        reordered: bool = False,
    ) -> None:
        super().__init__(bits, sizes)
        self._zeros, self._symmetric, self._reordered = zeros, symmetric, reordered

    def bits_of(self, shapes: Shapes, size: Size) -> int:
        """By the shapes of qweight and qzeros together."""
        return self._packing(shapes, size)[0]

    def unpack(self, tensors: Tensors, size: Size, width: Width) -> Numbers:
        """Zero points by whoever wrote them, as the table above says; the order of channels by g_idx."""
        (rows, columns), (q, g), shapes = size, width, self.shapes_of(tensors)
        _, tens = self._packing(shapes, size)
        unpack = _unpack_tens if tens else unpack_words
        groups = self.groups(shapes)
        self.shaped(tensors, "scales", groups, rows)
        self.shaped(tensors, "qzeros", groups, shapes["qzeros"][1])
        words = self.words(tensors, "qzeros")
        if self._symmetric:
            zero = _of_symmetric(unpack(words, q, rows).short(), q)
        elif self._zeros == WORDS and q != 3:
            zero = unpack(words + sum(1 << at for at in range(0, WORD, q)), q, rows)
        else:
            zero = self._zero_points(unpack(words, q, rows).short(), q, tens)
        if self._symmetric is None:
            _check_some_symmetric(zero, q)
        if self._reordered and groups > 1 and "g_idx" not in tensors:
            raise LutlabError(
                "config.json says that groups are of reordered channels (desc_act), and there is no g_idx, which says "
                "of which: copy the checkpoint again, or set desc_act to false where groups are of neighbours"
            )
        codes = unpack(self.words(tensors, "qweight").T, q, columns)
        order = _order(tensors, g, columns)
        if order is not None:
            codes = codes[:, order.long()]
        return codes, self.floats(tensors, "scales").T, zero.T, order

    def _packing(self, shapes: Shapes, size: Size) -> tuple[int, bool]:
        """q, and whether 10 codes are in a word."""
        rows, columns = size
        sizes = shapes["qweight"][0], shapes["qzeros"][1]
        fitting = [
            (q, False) for q in BITS if sizes == (-(-columns * q // WORD), -(-rows * q // WORD))
        ]
        if sizes == (-(-columns // TENS), -(-rows // TENS)):
            fitting.append((3, True))
        if len(fitting) > 1:
            fitting = [(q, tens) for q, tens in fitting if q in self.bits] or fitting
        if len(fitting) != 1:
            raise LutlabError(
                f"qweight and qzeros of {sizes[0]} rows and {sizes[1]} columns for [N, K] = {[rows, columns]} are of "
                f"{'several widths' if fitting else 'no width'} in the GPTQ layout ({', '.join(map(str, BITS))} bits; "
                "GPTQModel's planar gptq_p is another): say `bits` in quantization_config, or write the checkpoint "
                "with format gptq_v2"
            )
        return fitting[0]

    def _zero_points(self, field: torch.Tensor, q: int, tens: bool) -> torch.Tensor:
        """Zero points of fields [G, N] int16, one by one."""
        top = 2**q - 1
        if self._zeros == FIELD or tens:
            return field
        if self._zeros == WORDS:
            return (field + 1) % 2**q
        if bool((field == top).any()):
            raise LutlabError(
                f"a zero point is stored as {top}, which in format gptq (v1) is 0 to some readers and {top + 1} to "
                "others, and its writers damaged the fields beside it: lutlab does not guess; quantize again, and "
                "save as gptq_v2 (GPTQModel: format=gptq_v2)"
            )
        return field + 1


def _of_symmetric(field: torch.Tensor, q: int) -> torch.Tensor:
    """Zero points, all 2^(q-1), of fields [G, N]."""
    middle = 2 ** (q - 1)
    if not any(bool((field == constant).all()) for constant in (middle, middle - 1)):
        raise LutlabError(
            f"config.json says that the weights are symmetric (sym), and zero points are not all stored as {middle} or "
            f"all as {middle - 1}: the two belong to different models; if the zero points are meant, set sym to false"
        )
    return torch.full_like(field, middle)


def _check_some_symmetric(zero: torch.Tensor, q: int) -> None:
    """Refuse zero points that are one off from those of symmetric weights, where some layers have such."""
    middle = 2 ** (q - 1)
    if bool((zero == zero[0, 0]).all()) and abs(int(zero[0, 0]) - middle) == 1:
        raise LutlabError(
            f"all zero points are {int(zero[0, 0])} by config.json's format, and some layers are symmetric by its sym, "
            f"whose zero points are {middle}: one of the two is wrong; correct checkpoint_format, or save the model "
            "anew"
        )


def _order(tensors: Tensors, g: int, columns: int) -> torch.Tensor | None:
    """[K] int32, the channel of each column where groups are of columns; None: they are of channels.

    By g_idx alone: what a config says under desc_act is also true of sorted groups (static_groups).
    """
    if "g_idx" not in tensors:
        return None
    of_channel = Layout.shaped(tensors, "g_idx", columns).long()
    order = torch.argsort(of_channel, stable=True)
    length = group_length(g, columns)
    if not torch.equal(of_channel[order], torch.arange(columns) // length):
        raise LutlabError(
            f"g_idx does not share K = {columns} channels out into groups of {length}: lutlab holds groups of one "
            "size; save the checkpoint again with a current GPTQModel, which writes its groups there"
        )
    return None if torch.equal(order, torch.arange(columns)) else order.int()


def _unpack_tens(words: torch.Tensor, q: int, columns: int) -> torch.Tensor:
    """[rows, ceil(columns / 10)] int32 -> [rows, columns] uint8 of 3 bits."""
    shifts = torch.arange(0, q * TENS, q, dtype=torch.int32)
    values = (words.unsqueeze(2) >> shifts) & (2**q - 1)
    return values.flatten(1)[:, :columns].to(torch.uint8)


def gptq_layout(config: Mapping[str, Any]) -> GPTQLayout:
    """The layout of quant_method gptq.

    Raises:
        LutlabError: a format that lutlab does not read.
    """
    written = str(config.get("checkpoint_format") or config.get("format") or "gptq")
    if config.get("is_marlin_format"):
        written = "marlin"
    if written not in ("gptq", "gptq_v2"):
        what = "GPTQModel's planar layout" if written == "gptq_p" else "another layout"
        raise LutlabError(
            f"a GPTQ checkpoint of format {written!r} is {what}, and lutlab reads gptq and gptq_v2: write it again "
            "with format gptq_v2 (GPTQModel: QuantizeConfig(format='gptq_v2'))"
        )
    quantizer = (config.get("meta") or {}).get("quantizer") or ()
    quantizer = " ".join([quantizer] if isinstance(quantizer, str) else map(str, quantizer))
    v1 = WORDS if "gptqmodel" in quantizer.lower() else PLUS_ONE
    return _layout(config, config.get("dynamic"), v1 if written == "gptq" else FIELD)


def auto_round_layout(config: Mapping[str, Any], packing: str) -> GPTQLayout:
    """AutoRound's layout, for a packing_format `auto_round…` that is neither AWQ's nor compressed-tensors'."""
    zeros = PLUS_ONE if "gptq" in packing else FIELD
    return _layout(config, config.get("extra_config"), zeros)


def _layout(
    config: Mapping[str, Any], of_layers: Mapping[str, Any] | None, zeros: str
) -> GPTQLayout:
    """The layout of a config that some layers override."""
    overrides = [layer for layer in (of_layers or {}).values() if isinstance(layer, dict)]
    stated = bool(config.get("sym"))
    symmetric = {stated, *(bool(layer.get("sym", stated)) for layer in overrides)}
    return GPTQLayout(
        zeros,
        _numbers("bits", config, *overrides),
        _numbers("group_size", config, *overrides),
        stated if len(symmetric) == 1 else None,
        any(bool(layer.get("desc_act")) for layer in (config, *overrides)),
    )


def _numbers(key: str, *configs: Mapping[str, Any]) -> list[int]:
    """The whole numbers that configs give for a key."""
    return [config[key] for config in configs if isinstance(config.get(key), int)]
