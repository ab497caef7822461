"""GPTQ checkpoints of others: AutoGPTQ, GPTQModel, AutoRound's and EfficientQAT's (gptq.py has the layout).

What stands in qzeros depends on who wrote it; z is the zero point, f the field of q bits in the file:

    gptq_v2, AutoRound's own packing, EfficientQAT    z = f
    gptq (v1) of GPTQModel                            z by whole words: qzeros + 0b…01…01 modulo 2^32, carries included,
                                                      the inverse of its writer; at q = 3 z = f + 1 modulo 2^3
    gptq (v1) of others, AutoRound's auto_gptq        z = f + 1; f = 2^q - 1 is ambiguous (z = 0, or 2^q?) and refused
    AutoRound, symmetric                              z = 2^(q-1), which the constant f tells, whatever the key says

EfficientQAT packs 3 bits its own way, 10 codes a word, the upper 2 bits unused: qweight [ceil(K / 10), N].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lutlab.checkpoint.gptq import BITS
from lutlab.checkpoint.layout import (
    Layout,
    Shapes,
    check_shape,
    exact_scale,
    group_size,
    int32,
)
from lutlab.errors import LutlabError
from lutlab.formats.code_words import WORD, unpack_words
from lutlab.groups import Width, group_length
from lutlab.lazy import torch
from lutlab.tensors import UniformTensor

TENS = 10  # codes of 3 bits in a word of EfficientQAT's
FIELD, WORDS, PLUS_ONE = "field", "words", "plus_one"  # of z, in the order of the table above


@dataclass(frozen=True)
class GPTQLayout(Layout):
    """Layout of one checkpoint of GPTQ's kind.

    Attributes:
        zeros: FIELD, WORDS or PLUS_ONE.
        stated: the bits that the config names, which decide where shapes fit several.
        sizes: the group sizes that it names.
        symmetric: AutoRound says that all zero points are 2^(q-1).
    """

    mark: ClassVar[str] = "qweight"
    needed: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales")
    others: ClassVar[tuple[str, ...]] = ("g_idx",)

    zeros: str
    stated: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    symmetric: bool = False

    def width(self, shapes: Shapes, rows: int, columns: int) -> Width:
        """(q, g); see Layout."""
        q, _ = self._packing(shapes, rows, columns)
        return q, group_size(columns, shapes["scales"][0], self.sizes)

    def read(self, tensors: Mapping[str, torch.Tensor], rows: int, columns: int) -> UniformTensor:
        """The weight; see Layout."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        q, g = self.width(shapes, rows, columns)
        _, tens = self._packing(shapes, rows, columns)
        unpack = _unpack_tens if tens else unpack_words
        groups = shapes["scales"][0]
        scale = check_shape(tensors, "scales", groups, rows)
        check_shape(tensors, "qzeros", groups, shapes["qzeros"][1])
        words = int32(tensors, "qzeros")
        if self.zeros == WORDS and q != 3 and not self.symmetric:
            zero = unpack(words + sum(1 << at for at in range(0, WORD, q)), q, rows).short()
        else:
            zero = self._zero_points(unpack(words, q, rows).short(), q, tens)
        codes = unpack(int32(tensors, "qweight").T, q, columns)
        order = _order(tensors, g, columns)
        return UniformTensor(
            codes=codes if order is None else codes[:, order.long()],
            scale=exact_scale(scale).T.contiguous(),
            zero_point=zero.T.contiguous(),
            bits=q,
            group_size=g,
            order=order,
        )

    def _packing(self, shapes: Shapes, rows: int, columns: int) -> tuple[int, bool]:
        """q, and whether 10 codes are in a word."""
        found = shapes["qweight"][0], shapes["qzeros"][1]
        fitting = [
            (q, False) for q in BITS if found == (-(-columns * q // WORD), -(-rows * q // WORD))
        ]
        if found == (-(-columns // TENS), -(-rows // TENS)):
            fitting.append((3, True))
        if len(fitting) > 1:
            fitting = [(q, tens) for q, tens in fitting if q in self.stated] or fitting
        if len(fitting) != 1:
            raise LutlabError(
                f"qweight and qzeros of {found[0]} rows and {found[1]} columns for [N, K] = {[rows, columns]} are of "
                f"{'several widths' if fitting else 'no width'} in the GPTQ layout ({', '.join(map(str, BITS))} bits; "
                "GPTQModel's planar gptq_p is another): say `bits` in quantization_config, or write the checkpoint "
                "with format gptq_v2"
            )
        return fitting[0]

    def _zero_points(self, field: torch.Tensor, q: int, tens: bool) -> torch.Tensor:
        """Zero points of fields [G, N] int16, one by one."""
        top, middle = 2**q - 1, 2 ** (q - 1)
        if self.symmetric:
            if not any(bool((field == constant).all()) for constant in (middle, middle - 1)):
                raise LutlabError(
                    f"config.json says that the weights are symmetric, and zero points are not all stored as {middle} "
                    f"or all as {middle - 1}: the two belong to different models, or sym is false"
                )
            return field.clone().fill_(middle)
        if self.zeros == FIELD or tens:
            return field
        if self.zeros == WORDS:
            return (field + 1) % 2**q
        if bool((field == top).any()):
            raise LutlabError(
                f"a zero point is stored as {top}, which in format gptq (v1) is 0 to some readers and {top + 1} to "
                "others, and its writers damaged the fields beside it: lutlab does not guess; quantize again, and "
                "save as gptq_v2 (GPTQModel: format=gptq_v2)"
            )
        return field + 1


def _order(tensors: Mapping[str, torch.Tensor], g: int, columns: int) -> torch.Tensor | None:
    """[K] int32, the channel of each column where groups are of columns; None: they are of channels.

    By g_idx alone: what a config says under desc_act is also true of sorted groups (static_groups).
    """
    if "g_idx" not in tensors:
        return None
    of_channel = check_shape(tensors, "g_idx", columns).long()
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
    overrides = [one for one in (config.get("dynamic") or {}).values() if isinstance(one, dict)]
    return GPTQLayout(
        zeros=v1 if written == "gptq" else FIELD,
        stated=_numbers("bits", config, *overrides),
        sizes=_numbers("group_size", config, *overrides),
    )


def auto_round_layout(config: Mapping[str, Any], packing: str) -> GPTQLayout:
    """AutoRound's layout, for a packing_format `auto_round…` that is neither AWQ's nor compressed-tensors'."""
    overrides = [
        one for one in (config.get("extra_config") or {}).values() if isinstance(one, dict)
    ]
    return GPTQLayout(
        zeros=PLUS_ONE if "gptq" in packing else FIELD,
        stated=_numbers("bits", config, *overrides),
        sizes=_numbers("group_size", config, *overrides),
        symmetric=bool(config.get("sym")) and all(one.get("sym", True) for one in overrides),
    )


def _numbers(key: str, *configs: Mapping[str, Any]) -> tuple[int, ...]:
    """The whole numbers that configs give for a key, each once."""
    found = [config.get(key) for config in configs]
    return tuple(dict.fromkeys(number for number in found if isinstance(number, int)))
