"""A linear layer whose codes can be trained: a latent weight, whose nearest codeword is taken in every pass.

    W[n, k] = the codeword of row n's group nearest to V[n, k]        dL/dV = dL/dW, straight through

Scales move as in scales.py. V and scales are what they began as plus a move in units of the deviation of their group's
codewords (a uniform scale: in units of itself), so that one rate of AdamW fits every layer, width and model, and codes
and scales alike. V begins at the stored weight, so that step 0 is the layer as it came. It does not begin at the weight
in full precision, nor where coordinate descent would put each weight, r_k / H_kk from the stored one: both lie at or
behind the edges of most cells, where the first steps turn many codes at once (docs/how-to/tune.md has by how much).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lutlab.formats import pack
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.uniform import PackedUniform
from lutlab.groups import group_length
from lutlab.tensors import BCQTensor, UniformTensor
from lutlab.tuning.scales import ScaledLinear

_LEAST_GROUP = 8  # that a format stores


class CodedLinear(ScaledLinear):
    """A linear layer of codes and scales that can be trained.

    Args:
        packed: the weight [N, K].
        bias: [N] or None.

    Attributes:
        moves: parameters, all 0 at first: of each of the scales, by its name, and `latent` [N, G, g].
    """

    def __init__(self, packed: PackedBCQ | PackedUniform, bias: torch.Tensor | None) -> None:
        super().__init__(packed, bias)
        self.scales.requires_grad_(False)
        self.tensor = packed.unpack()
        deviation = codewords(self.tensor).std(2, correction=0)
        self.units = {n: s if n == "scale" else deviation for n, s in self.scales.items()}
        self.units["latent"] = deviation.unsqueeze(2)
        self.latent = self._by_group(packed.dequantize())
        began = {**self.scales, "latent": self.latent}
        self.moves = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros_like(one)) for name, one in began.items()}
        )

    def rounded(self) -> PackedBCQ | PackedUniform:
        """The weight as it would be stored now: of the same layout."""
        return pack(self._chosen()[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [..., K] -> [..., N] by the weight as it would be stored."""
        return functional.linear(x, self.weight().to(x.dtype), self.bias)

    def weight(self) -> torch.Tensor:
        """[N, K] float32, as it would be stored now; its gradient goes to the moves."""
        return _Chosen.apply(self, *self.moves.values())

    @torch.no_grad()
    def _chosen(self) -> tuple[BCQTensor | UniformTensor, torch.Tensor]:
        """The moves as they are: codes and scales as stored, and the weight [N, K] float32 by input channels."""
        stored = self.packed.buffers
        scales = {n: self._moved(n, one).to(stored[n].dtype) for n, one in self.scales.items()}
        tensor = dataclasses.replace(self.tensor, **scales)
        words, code_of = codewords(tensor).sort(2)
        edges = (words[..., 1:] + words[..., :-1]) / 2
        level = torch.searchsorted(edges, self._moved("latent", self.latent))
        self.codes = self._columns(code_of.gather(2, level)).to(torch.uint8)
        weight = self._columns(words.gather(2, level))
        if tensor.order is not None:
            weight = torch.empty_like(weight).index_copy_(1, tensor.order.long(), weight)
        return dataclasses.replace(tensor, codes=self.codes), weight

    def _moved(self, name: str, began: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(began, self.units[name].to(began.dtype), self.moves[name])

    def gradients_of_moves(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        """dL/dW [N, K] -> dL/d of each of the moves."""
        found = dict(zip(self.scales, self.gradients(gradient), strict=True))
        found["latent"] = self._by_group(gradient)
        return [self.units[name] * found[name] for name in self.moves]

    def _by_group(self, weight: torch.Tensor) -> torch.Tensor:
        """[N, K] by input channels -> [N, G, g] by columns."""
        order = self.packed.order
        return self._grouped(weight if order is None else weight[:, order.long()])

    def _grouped(self, columns: torch.Tensor) -> torch.Tensor:
        """[N, K] -> [N, G, g]; a ragged last group is filled with zeros."""
        rows, width = columns.shape
        length = group_length(self.packed.group_size, width)
        return functional.pad(columns, (0, -width % length)).view(rows, -1, length)

    def _columns(self, grouped: torch.Tensor) -> torch.Tensor:
        """[N, G, g] -> [N, K]."""
        return grouped.flatten(1)[:, : self.packed.shape[1]]


class _Chosen(torch.autograd.Function):
    """The weight [N, K] float32 of a CodedLinear's moves, whose gradient goes to the moves."""

    @staticmethod
    def forward(ctx: Any, layer: CodedLinear, *moves: torch.Tensor) -> torch.Tensor:
        ctx.layer = layer
        return layer._chosen()[1]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *ctx.layer.gradients_of_moves(gradient)


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
