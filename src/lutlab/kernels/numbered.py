"""Executions behind operations of torch, which torch.compile and graphs see: one a product, whatever the device.

    torch.ops.lutlab.packed_linear    y [..., N] = x [..., K] W^T + b, by Numbered.multiply
    torch.ops.lutlab.packed_dense     W [N, K] float32, by Numbered.dequantize, for products that it does not take

An execution travels as a number: torch's schemas know no records. They pass no gradients.
"""

from __future__ import annotations

import itertools
import weakref
from abc import abstractmethod

import torch

from lutlab.errors import LutlabError
from lutlab.kernels.contract import Execution

_LIBRARY = torch.library.Library("lutlab", "FRAGMENT")
_LIBRARY.define("packed_linear(Tensor x, Tensor? bias, int execution, int rows) -> Tensor")
_LIBRARY.define("packed_dense(Tensor like, int execution, int rows, int columns) -> Tensor")
_EXECUTIONS: weakref.WeakValueDictionary[int, Numbered] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


class Numbered(Execution):
    """An execution that torch calls by its number.

    Attributes:
        number: in this process.
    """

    number: int

    def __post_init__(self) -> None:
        number = next(_NUMBERS)
        object.__setattr__(self, "number", number)  # of a frozen one, too
        _EXECUTIONS[number] = self

    @abstractmethod
    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product that the operation runs."""

    def dequantize(self) -> torch.Tensor:
        """W [N, K] float32, as the operation makes it."""
        return self.packed.dequantize()


def execution(number: int) -> Numbered:
    """An execution by its number.

    Raises:
        LutlabError: it is of another process, or gone.
    """
    try:
        return _EXECUTIONS[number]
    except KeyError:
        raise LutlabError(
            f"execution {number} of another process, or of a layer that is gone"
        ) from None


@torch.library.impl(_LIBRARY, "packed_linear", "CompositeExplicitAutograd")
def _packed_linear(
    x: torch.Tensor, bias: torch.Tensor | None, number: int, rows: int
) -> torch.Tensor:
    return execution(number).multiply(x, bias)


@torch.library.register_fake("lutlab::packed_linear")
def _packed_linear_shape(
    x: torch.Tensor, bias: torch.Tensor | None, number: int, rows: int
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], rows)


@torch.library.impl(_LIBRARY, "packed_dense", "CompositeExplicitAutograd")
def _packed_dense(like: torch.Tensor, number: int, rows: int, columns: int) -> torch.Tensor:
    return execution(number).dequantize()


@torch.library.register_fake("lutlab::packed_dense")
def _packed_dense_shape(like: torch.Tensor, number: int, rows: int, columns: int) -> torch.Tensor:
    return like.new_empty(rows, columns, dtype=torch.float32)
