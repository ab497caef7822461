"""Executions behind operations of torch, which torch.compile and graphs see: one a product, whatever the device.

    torch.ops.lutlab.packed_linear    y [..., N] = x [..., K] W^T + b, by Numbered.multiply
    torch.ops.lutlab.packed_dense     W [N, K] float32 on a CPU, by Numbered.dequantize, for products that it does not
                                      take

An execution travels as a number: torch's schemas know no records. On a CPU the number is a tensor, so that one compiled
graph serves all layers that are alike; on a GPU a tensor on the CPU would keep torch from capturing the graph, and it
is an integer (packed_linear.fixed). They pass no gradients.
"""

from __future__ import annotations

import itertools
import weakref
from abc import abstractmethod

import torch

from lutlab.base.errors import LutlabError
from lutlab.kernels.contract import Execution

DTYPES = (torch.float16, torch.bfloat16, torch.float32)  # of x, that kernels multiply
_LIBRARY = torch.library.Library("lutlab", "FRAGMENT")
_LIBRARY.define("packed_linear(Tensor x, Tensor? bias, Tensor number, int rows) -> Tensor")
_LIBRARY.define("packed_linear.fixed(Tensor x, Tensor? bias, int number, int rows) -> Tensor")
_LIBRARY.define("packed_dense(Tensor number, int rows, int columns) -> Tensor")
_EXECUTIONS: weakref.WeakValueDictionary[int, Numbered] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


class Numbered(Execution):
    """An execution that torch calls by its number.

    Attributes:
        number: in this process.
        number_tensor: the same, [] int64 on the CPU.
    """

    number: int
    number_tensor: torch.Tensor

    def __post_init__(self) -> None:
        number = next(_NUMBERS)
        object.__setattr__(self, "number", number)  # of a frozen one, too
        object.__setattr__(self, "number_tensor", torch.tensor(number))
        _EXECUTIONS[number] = self

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Dtypes of x that it multiplies."""
        return DTYPES

    def takes(self, x: torch.Tensor) -> bool:
        """An x of its dtypes, on its device, that asks for no gradients."""
        gradients = x.requires_grad and torch.is_grad_enabled()
        return x.dtype in self.dtypes and x.device == self.device and not gradients

    def product(self, x: torch.Tensor, bias: torch.Tensor | None, rows: int) -> torch.Tensor:
        """Multiply through torch; rows: N."""
        if self.device.type == "cpu":
            return torch.ops.lutlab.packed_linear(x, bias, self.number_tensor, rows)
        return torch.ops.lutlab.packed_linear.fixed(x, bias, self.number, rows)

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


def _packed_linear(
    x: torch.Tensor, bias: torch.Tensor | None, number: torch.Tensor | int, rows: int
) -> torch.Tensor:
    return execution(int(number)).multiply(x, bias)


def _packed_linear_shape(
    x: torch.Tensor, bias: torch.Tensor | None, number: torch.Tensor | int, rows: int
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], rows)


for _name in ("packed_linear", "packed_linear.fixed"):
    torch.library.impl(_LIBRARY, _name, "CompositeExplicitAutograd")(_packed_linear)
    torch.library.register_fake(f"lutlab::{_name}")(_packed_linear_shape)


@torch.library.impl(_LIBRARY, "packed_dense", "CompositeExplicitAutograd")
def _packed_dense(number: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return execution(int(number)).dequantize()


@torch.library.register_fake("lutlab::packed_dense")
def _packed_dense_shape(number: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return number.new_empty(rows, columns, dtype=torch.float32)
