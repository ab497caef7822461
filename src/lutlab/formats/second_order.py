"""What formats share whose coefficients are of second order: each refines a format whose coefficients are floats.

    a[p, n, i] = step[p, n] * (code[p, n, i] + zero[p, n])          p of P coefficients of group i of row n

    scale_code [ceil(P N G b / 32)] int32: codes [P, N, G] of b bits in one stream
    scale_step [P, N] float16      scale_zero [P, N] int8

base/second_order.py has the arithmetic, which rounds nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from lutlab.base import second_order
from lutlab.base.groups import group_count
from lutlab.base.lazy import torch
from lutlab.formats import code_words
from lutlab.formats.contract import Format

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11, for type checkers only

SCALE_BITS = tuple(range(1, 8))  # of a code


class SecondOrder(Format):
    """A packed weight with the buffers of the module, and scale_bits, the bits of a code."""

    if TYPE_CHECKING:  # fields of every subclass
        scale_code: torch.Tensor
        scale_step: torch.Tensor
        scale_zero: torch.Tensor
        group_size: int
        scale_bits: int

    @abstractmethod
    def first_order(self) -> Any:
        """The same weight to the last bit, with its coefficients in float16, in the format that this one refines."""

    @staticmethod
    @abstractmethod
    def coefficients_of(first: Any) -> torch.Tensor:
        """Coefficients [P, N, G] of a weight of first order."""

    @classmethod
    def encoded(cls, first: Any, step: torch.Tensor, zero: torch.Tensor, scale_bits: int) -> Self:
        """The inverse of first_order, of coefficients on grids step [P, N] float16, zero [P, N] int8."""
        code = second_order.nearest(cls.coefficients_of(first), step, zero, scale_bits)
        return cls._of(first, code_words.pack_stream(code, scale_bits), step, zero, scale_bits)

    @classmethod
    def empty(cls, first: Any, scale_bits: int) -> Self:
        """A weight without numbers, of the sizes and the device of one of first order."""
        a = cls.coefficients_of(first)
        stream = a.new_empty(-(-a.numel() * scale_bits // code_words.WORD), dtype=torch.int32)
        step, zero = (a.new_empty(a.shape[:2], dtype=d) for d in (torch.float16, torch.int8))
        return cls._of(first, stream, step, zero, scale_bits)

    @classmethod
    def _of(
        cls, first: Any, code: torch.Tensor, step: torch.Tensor, zero: torch.Tensor, scale_bits: int
    ) -> Self:
        """All that a weight of first order has but its coefficients, and the module's buffers in their place."""
        names = {field.name for field in fields(cls)}
        own = {f.name: getattr(first, f.name) for f in fields(first) if f.name in names}
        own |= {"scale_code": code, "scale_step": step, "scale_zero": zero}
        return cls(**own | {"scale_bits": scale_bits})

    @property
    def grids(self) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Step, zero and bits, as `encoded` takes them."""
        return self.scale_step, self.scale_zero, self.scale_bits

    @property
    def coefficient_codes(self) -> torch.Tensor:
        """[P, N, G] uint8: the integers of the stream."""
        shape = *self.scale_step.shape, group_count(self.group_size, self.shape[1])
        count = shape[0] * shape[1] * shape[2]
        codes = code_words.unpack_stream(self.scale_code, self.scale_bits, count)
        return codes.to(torch.uint8).view(shape)

    @property
    def coefficients(self) -> torch.Tensor:
        """[P, N, G] float16, decoded."""
        return second_order.decoded(self.coefficient_codes, self.scale_step, self.scale_zero)

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32, as the format of first order has it."""
        return self.first_order().dequantize()
