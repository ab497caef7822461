"""End-to-end tuning of scales alone: codes stay, so do bits, layout and kernels; one set of planes serves many tasks.

    bcq       W = sum_b alpha_b B_b + z     dL/dalpha_b = sum_group B_b dL/dW     dL/dz = sum_group dL/dW
    uniform   W = s (codes - zero_point)    dL/ds = sum_group (codes - zero_point) dL/dW
              W = s codes + offset          dL/ds = sum_group codes dL/dW     dL/doffset = sum_group dL/dW

Kwon et al., "AlphaTuning" (EMNLP 2022 Findings), train alpha of binary codes so; here every offset moves too, and of
uniform codes the scale, whose zero points stay. Their learning rate is absolute. Where none is given, it counts in what
rounding errs by: the deviation of a group's codewords over 2^q, which is s / sqrt(12) of evenly spaced ones. A uniform
scale moves its codewords so far by moving s / 2^q. So one rate fits every layer and width; where it is still too high,
loop.py halves it.

Adam's masters are float32 (float64 where what is stored is), and every forward pass multiplies by the weight as it
would be stored: masters rounded to the stored dtype, decoded by the format. So there is no gap between what was trained
and what is saved; the rounding passes gradients straight through. Scales of second order are rounded to the grids of
their rows, which stay.

Memory: the model as it came, which teaches, a float32 copy whose linear weights are decoded in each pass, and a byte a
weight of its codes. What Adam holds is (q + 1) / g of the weights.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lutlab.base.errors import LutlabError
from lutlab.base.groups import group_length
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.formats import pack
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.second_order import SecondOrder
from lutlab.formats.uniform import PackedUniform
from lutlab.quantizers.contract import Method

Coded = PackedBCQ | PackedUniform
Stored = Coded | SecondOrder
_LEAST_GROUP = 8  # that a format stores
_FORMATS = ("bcq", "uniform", "bcq_second_order", "uniform_second_order")


def check_tunable(quantizer: Method) -> None:
    """Raise LutlabError unless a method gives weights whose scales can be trained."""
    check_coded(quantizer, "tuning.trains=scales moves the scales")


def check_coded(quantizer: Method, moves: str) -> None:
    """Raise LutlabError, whose text begins with what moves, unless a method gives binary or uniform codes."""
    if not quantizer.quantizes or quantizer.format not in _FORMATS:
        raise LutlabError(
            f"{moves} of binary or uniform codes, which this method does not give: drop it, or take "
            "gptq_bcq, bcq, gptq or rtn; mixed groups are tuned by tuning.trains=weights"
        )


def first_order(packed: Stored) -> Coded:
    """A weight with its scales decoded, where they are of second order."""
    return packed.first_order() if isinstance(packed, SecondOrder) else packed


class Decoded(torch.autograd.Function):
    """The weight [N, K] float32 that a layer decodes from some of its parameters, to which it hands the gradient."""

    @staticmethod
    def forward(ctx: Any, layer: Any, *parameters: torch.Tensor) -> torch.Tensor:
        """Decode the weight."""
        ctx.layer, ctx.dtypes = layer, [parameter.dtype for parameter in parameters]
        return layer.decoded()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Hand dL/dW to the parameters."""
        gradients = ctx.layer.gradients(gradient)
        return None, *(g.to(dtype) for g, dtype in zip(gradients, ctx.dtypes, strict=True))


class ScaledLinear(nn.Module):
    """A linear layer of fixed codes; the scales [.., N, G] of a packed weight are its parameters.

    Attributes:
        scales: scales by the names of the packed weight's buffers, in float32, or float64 where that is stored.
        packed: the weight before, its scales of first order.
        on_grids: the weight before, where its scales are of second order.
    """

    packed: Coded

    def __init__(self, packed: Stored, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.on_grids = packed if isinstance(packed, SecondOrder) else None
        packed = first_order(packed)
        buffers = packed.stored_buffers
        stored = {n: buffers[n] for n in packed.scales if n in buffers}
        masters = {n: b if b.dtype == torch.float64 else b.float() for n, b in stored.items()}
        self.scales = nn.ParameterDict({n: nn.Parameter(m.clone()) for n, m in masters.items()})
        self.packed, self.bias = packed, bias
        self.codes = packed.unpack().codes

    def trained(self) -> dict[str, nn.Parameter]:
        """Parameters that move, by name."""
        return dict(self.scales)

    def units(self) -> dict[str, torch.Tensor]:
        """How far each of what is trained moves at a rate of 1, by name: [N, G], at least 0."""
        deviation = codewords(self.packed.unpack()).std(2, correction=0)
        moved = {n: s.detach().abs() if n == "scale" else deviation for n, s in self.scales.items()}
        return {name: values / 2**self.packed.bits for name, values in moved.items()}

    def rounded(self) -> Stored:
        """The weight as it would be stored now: the same codes, and scales of the same dtypes and grids."""
        before = self.packed.stored_buffers
        rounded = {n: scale.detach().to(before[n].dtype) for n, scale in self.scales.items()}
        return self.stored(self.packed.with_buffers(rounded))

    def stored(self, packed: Coded) -> Stored:
        """A weight of first order in the format of the weight before."""
        return (
            packed if self.on_grids is None else self.on_grids.encoded(packed, *self.on_grids.grids)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [..., K] -> [..., N] by the weight as it would be stored."""
        return functional.linear(x, self.weight().to(x.dtype), self.bias)

    def weight(self) -> torch.Tensor:
        """[N, K] float32, as it would be stored now; its gradient goes to what is trained."""
        return Decoded.apply(self, *self.trained().values())

    def decoded(self) -> torch.Tensor:
        """The same without gradients."""
        return self.rounded().dequantize()

    def gradients(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        """dL/dW [N, K] -> dL/d of each of the scales: sums over groups of columns."""
        order = self.packed.order
        gradient = gradient if order is None else gradient[:, order.long()]

        def by_group(values: torch.Tensor) -> torch.Tensor:
            return self._grouped(values).sum(2)

        total = by_group(gradient)
        if isinstance(self.packed, PackedUniform):
            scale, zero = by_group(gradient * self.codes), self.packed.zero_point
            by_name = {"scale": scale if zero is None else scale - zero * total, "offset": total}
        else:
            bits = range(self.packed.bits)
            ones = torch.stack([by_group(gradient * (self.codes >> b & 1)) for b in bits])
            by_name = {"alpha": 2 * ones - total, "offset": total}
        return [by_name[name] for name in self.scales]

    def _grouped(self, columns: torch.Tensor) -> torch.Tensor:
        """[N, K] -> [N, G, g]; a ragged last group is filled with zeros."""
        rows, width = columns.shape
        length = group_length(self.packed.group_size, width)
        return functional.pad(columns, (0, -width % length)).view(rows, -1, length)


def codewords(tensor: BCQTensor | UniformTensor) -> torch.Tensor:
    """The values a weight of each group can have, as its format decodes them: [N, G, 2^q] float32, by code."""
    scale = tensor.scale if isinstance(tensor, UniformTensor) else tensor.alpha[0]
    rows, groups = scale.shape
    levels = 2**tensor.bits
    length = max(levels, _LEAST_GROUP)
    codes = torch.arange(length, device=scale.device).remainder(levels).to(torch.uint8)
    each = dataclasses.replace(
        tensor, codes=codes.repeat(rows, groups), group_size=length, order=None
    )
    return pack(each).dequantize().view(rows, groups, length)[..., :levels]
