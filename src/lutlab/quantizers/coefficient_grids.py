"""Coefficients of few bits, as methods make them: options, and the grids of second order that coefficients move to.

A method fits its coefficients freely, makes grids of each row from them (base/second_order.py), and fits codes once
more, to coefficients that lie on the grids.

A step of 4 bits is about 1/15 of the range of a row's scales. Where a group's own scale is smaller than that it gets a
step, and its weights err by 1/225 of the variance that those of the largest group have: with a group 50 times as large
as the others a row of uniform codes errs by a tenth more at most, one of binary codes, whose alphas may become 0, by a
third (tests/quantizers/test_second_order.py).
"""

from __future__ import annotations

import copy
from typing import Annotated

from lutlab.base import second_order
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch
from lutlab.base.tensors import BCQTensor, SecondOrderTensor
from lutlab.quantizers.contract import Method


def _check(name: str, value: int) -> None:
    """Refuse a number of bits that no stored coefficient has."""
    if value != 16 and not 4 <= value <= 7:
        raise LutlabError(f"{name}={value}: give 4 to 7, or 16 for coefficients without a grid")


CodeBits = Annotated[int, _check]  # 4 to 7 of a code on a grid, or 16, of a float


def take_bits(method: Method, bits: int, dtype: str, kind: str) -> None:
    """Of a method whose coefficients, of this kind, alpha or scale, have few bits: the format that holds them.

    Raises:
        LutlabError: they are asked for in float32.
    """
    if bits == 16:
        return
    if dtype == "fp32":
        raise LutlabError(
            f"{kind}_bits={bits} gives coefficients in float16: take {kind}_dtype=fp16, or {kind}_bits=16"
        )
    object.__setattr__(method, "format", method.format + "_second_order")  # of a frozen instance


class Grids:
    """The grids of N rows that a method moves coefficients to: fitted to a [P, N, G], codes of some bits.

    step: [P, N] float16; zero: [P, N] int8.
    """

    def __init__(self, a: torch.Tensor, bits: int) -> None:
        self.bits, (self.step, self.zero) = bits, second_order.grid(a, bits)

    def rows(self, rows: slice) -> Grids:
        """The grids of some rows."""
        part = copy.copy(self)
        part.step, part.zero = self.step[:, rows], self.zero[:, rows]
        return part

    def codes(self, a: torch.Tensor) -> torch.Tensor:
        """Codes [P, N, G] uint8 of coefficients [P, N, G]."""
        return second_order.nearest(a, self.step, self.zero, self.bits)

    def nearest(self, a: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Coefficients a [p, N] of a group, from the one numbered `first` on, moved to their grids; in their dtype."""
        step, zero = (values[first : first + len(a)] for values in (self.step, self.zero))
        code = second_order.nearest(a.unsqueeze(2), step, zero, self.bits)
        return second_order.decoded(code, step, zero).squeeze(2).to(a.dtype)


def on_grids(tensor: BCQTensor, grids: Grids) -> SecondOrderTensor:
    """A tensor whose coefficients lie on grids, or next to them, with these as integers."""
    code = grids.codes(second_order.coefficients(tensor.alpha, tensor.offset))
    q, g = tensor.bits, tensor.group_size
    return SecondOrderTensor(
        tensor.codes, code, grids.step, grids.zero, q, g, grids.bits, tensor.order
    )
