"""Uniform weights as they are quantized: integers in a dense stream of bits, a scale and a zero point a group.

    W[n, k] = s[n, k // g] * (codes[n, k] - zero_point[n, k // g])                                  LUT-GEMM Eq. 3
    W[n, k] = s[n, k // g] * codes[n, k] + offset[n, k // g]          where that is no multiple of s, GGUF's Q4_1

    qweight [N, ceil(K q / 32)] int32: a row's codes in a dense stream of bits (code_words.py)
    scale [N, G] float16 | float32          order [K] int32, or None
    qzero   [ceil(N G q / 32)] int32: zero points in q bits, row by row in one stream, where all are in 0 .. 2^q-1;
            else [N, G] int16; None where there is an offset
    offset  [N, G] float16 | float32, or None

RTN, GPTQ and AWQ at q = 4, g = 32 store 4 + (16 + 4) / 32 = 4.625 bits a weight, Q4_1 stores 5; their BCQ form (Eq. 5,
`to_bcq`) is what kernels with lookup tables read: the same values to the last bit in q alphas and one offset a group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lutlab.base.errors import LutlabError
from lutlab.base.groups import check_bits, group_count, group_length
from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.formats import bcq
from lutlab.formats.code_words import (
    WORD,
    pack_stream,
    pack_words,
    unpack_some,
    unpack_stream,
    unpack_words,
)
from lutlab.formats.contract import Choice, Choices, Format, check_layout, dtype_name

# Weights dequantized at a time: the float64 temporaries stay in a core's cache.
CHUNK_WEIGHTS = 2**17


@register("format", "uniform")
@dataclass(frozen=True)
class PackedUniform(Format):
    """qweight [N, W] int32, scale [N, G], qzero [Z] int32 or [N, G] int16; shape (N, K). The module draws the words.

    order: [K] int32, column j of the codes holds input channel order[j]; None: channel j.
    offset: [N, G] in the place of qzero, or None.
    """

    version: ClassVar[int] = 1
    tensor: ClassVar[type] = UniformTensor
    kernels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "cpu": ("uniform_gemv", "bcq_gemv"),
        "cuda": ("lut_gemv",),
    }
    scales: ClassVar[tuple[str, ...]] = ("scale", "offset")

    qweight: torch.Tensor
    scale: torch.Tensor
    qzero: torch.Tensor | None
    shape: tuple[int, int]
    bits: int
    group_size: int
    order: torch.Tensor | None = None
    offset: torch.Tensor | None = None

    @classmethod
    def pack(cls, tensor: UniformTensor) -> PackedUniform:
        """Codes and zero points to words; scale and offset as they are.

        Raises:
            LutlabError: a scale or an offset is inf or nan; there are zero points and offsets, or neither.
        """
        if (tensor.zero_point is None) == (tensor.offset is None):
            raise LutlabError(
                "uniform codes with both a zero_point and an offset, or neither: give one of them"
            )
        for what, values in (("scales", tensor.scale), ("offsets", tensor.offset)):
            if values is not None and (bad := int((~torch.isfinite(values)).sum())):
                raise LutlabError(
                    f"{bad} of {values.numel()} {what} are inf or nan: quantize finite weights, or keep {what} "
                    "beyond float16's 65504 in float32 (scale_dtype=fp32)"
                )
        (rows, columns), zero, top = tensor.codes.shape, tensor.zero_point, 2**tensor.bits - 1
        if zero is not None and bool(((zero >= 0) & (zero <= top)).all()):
            zero = pack_stream(zero, tensor.bits)
        return cls(
            qweight=pack_words(tensor.codes, tensor.bits),
            scale=tensor.scale,
            qzero=zero,
            shape=(rows, columns),
            bits=tensor.bits,
            group_size=tensor.group_size,
            order=tensor.order,
            offset=tensor.offset,
        )

    def unpack(self) -> UniformTensor:
        """The inverse of pack, bit for bit."""
        return UniformTensor(
            codes=unpack_words(self.qweight, self.bits, self.shape[1]),
            scale=self.scale,
            zero_point=self.zero_point,
            bits=self.bits,
            group_size=self.group_size,
            order=self.order,
            offset=self.offset,
        )

    @property
    def zero_point(self) -> torch.Tensor | None:
        """Zero points [N, G] int16; None where there is an offset."""
        if self.qzero is None or self.qzero.dtype == torch.int16:
            return self.qzero
        groups = group_count(self.group_size, self.shape[1])
        return unpack_stream(self.qzero, self.bits, self.shape[0] * groups).view(-1, groups)

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32, the nearest to scale * (codes - zero_point), or to the float64 of scale * codes + offset."""
        rows, in_features = self.shape
        out = torch.empty(rows, in_features, dtype=torch.float32, device=self.qweight.device)
        group = torch.arange(in_features, device=out.device)
        group = group // group_length(self.group_size, in_features)
        channels = slice(None) if self.order is None else self.order.long()
        scale, offset = self.scale.double(), self.offset
        shift = bcq.shifts(self.zero_point, offset).double()
        step = max(1, CHUNK_WEIGHTS // in_features)
        for first in range(0, rows, step):
            at = slice(first, first + step)
            values = unpack_words(self.qweight[at], self.bits, in_features).double()
            by, to = scale[at][:, group], shift[at][:, group]
            values = values.sub_(to).mul_(by) if offset is None else values.mul_(by).add_(to)
            out[at][:, channels] = values.add_(0.0).float()  # -0, of no or a negative scale, is 0
        return out

    def rows(self, ids: torch.Tensor) -> PackedUniform:
        """The weight [M, K] of some rows, ids [M] int64; nothing but them is read."""
        zero = self.qzero
        if zero is not None and zero.dtype == torch.int32:
            groups = group_count(self.group_size, self.shape[1])
            places = ids[:, None] * groups + torch.arange(groups, device=ids.device)
            zero = unpack_some(zero, self.bits, places)
        elif zero is not None:
            zero = zero[ids]
        return dataclasses.replace(
            self,
            qweight=self.qweight[ids],
            scale=self.scale[ids],
            qzero=zero,
            offset=None if self.offset is None else self.offset[ids],
            shape=(len(ids), self.shape[1]),
        )

    def layout(self) -> dict[str, Choice]:
        """Sizes, q, g, dtypes of scales and offsets, and whether zero points are in q bits; None: there are none."""
        shift: dict[str, Choice] = {"packed_zeros": dtype_name(self.qzero) == "int32"}
        if self.offset is not None:
            shift = {"packed_zeros": None, "offset_dtype": dtype_name(self.offset)}
        return {
            "out_features": self.shape[0],
            "in_features": self.shape[1],
            "q": self.bits,
            "g": self.group_size,
            "has_order": self.order is not None,
            "scale_dtype": dtype_name(self.scale),
            **shift,
        }

    @classmethod
    def from_layout(
        cls, layout: Mapping[str, Any], device: torch.device | str = "cpu"
    ) -> PackedUniform:
        """A weight without numbers; where `packed_zeros` is None it has offsets."""
        either, floats = (False, True), ("float16", "float32")
        choices: Choices = {"q": (), "g": (), "has_order": either, "scale_dtype": floats}
        choices |= {"packed_zeros": either}
        if "offset_dtype" in layout or layout.get("packed_zeros", False) is None:
            choices |= {"packed_zeros": (None,), "offset_dtype": floats}
        check_layout(layout, choices)
        rows, columns = shape = layout["out_features"], layout["in_features"]
        q, groups = check_bits(layout["q"]), group_count(layout["g"], columns)

        def empty(dtype: str, *shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=getattr(torch, dtype), device=device)

        zero = offset = None
        if layout["packed_zeros"] is None:
            offset = empty(layout["offset_dtype"], rows, groups)
        elif layout["packed_zeros"]:
            zero = empty("int32", -(-rows * groups * q // WORD))
        else:
            zero = empty("int16", rows, groups)
        return cls(
            qweight=empty("int32", rows, -(-columns * q // WORD)),
            scale=empty(layout["scale_dtype"], rows, groups),
            qzero=zero,
            shape=shape,
            bits=q,
            group_size=layout["g"],
            order=empty("int32", columns) if layout["has_order"] else None,
            offset=offset,
        )

    @property
    def bcq_bits(self) -> int | None:
        """Bits of to_bcq(), which is not made for it; None where Eq. 5 would not be exact."""
        try:
            return bcq.bits_of(bcq.from_uniform(self.unpack()))
        except LutlabError:
            return None

    def to_bcq(self) -> bcq.PackedBCQ:
        """The binary form of Eq. 5, equal to the last bit when dequantized.

        Raises:
            LutlabError: Eq. 5 would not be exact (bcq.from_uniform).
        """
        return bcq.pack(bcq.from_uniform(self.unpack()))


def to_uniform(tensor: BCQTensor) -> UniformTensor | None:
    """The inverse of formats.bcq.from_uniform: a weight with the same values to the last bit, or None if none has.

    It has a zero_point; an offset that is no multiple of the scale is not looked for.

    A scale of 0 fits any zero_point and gets 0. scale is float16 where that is exact, else float32.
    """
    half = tensor.alpha[0].double()
    powers = 2.0 ** torch.arange(tensor.bits, dtype=torch.float64, device=half.device)
    offset = torch.zeros_like(half) if tensor.offset is None else tensor.offset.double()
    scale = 2 * half
    middle = (2**tensor.bits - 1) / 2
    zero_point = torch.where(scale == 0, 0.0, (middle - offset / scale).round())
    uniform = (
        torch.equal(tensor.alpha.double(), half * powers.view(-1, 1, 1))
        and torch.equal(scale * torch.where(scale == 0, 0.0, middle - zero_point), offset)
        and bool((zero_point.abs() < 2**15).all())
    )
    if not uniform:
        return None
    for dtype in (torch.float16, torch.float32):
        if torch.equal(scale.to(dtype).double(), scale):
            return UniformTensor(
                codes=tensor.codes,
                scale=scale.to(dtype),
                zero_point=zero_point.to(torch.int16),
                bits=tensor.bits,
                group_size=tensor.group_size,
                order=tensor.order,
            )
    return None  # 2 alpha_0 is beyond float32
