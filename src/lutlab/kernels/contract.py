"""Contract of a kernel operation: a packed weight in, an execution out, which multiplies.

    operation.takes(packed, device) -> why not, or ""        operation.prepare(packed, device) -> execution
    execution(x, bias) -> y[..., N] = x[..., K] W[N, K]^T + b

An operation is registered under `@register("kernel", <name>)`; a format names those that multiply by it, and
dispatch.py chooses among them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.lazy import torch
from lutlab.formats.contract import Format
from lutlab.formats.second_order import SecondOrder

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11, for type checkers only

Packed = TypeVar("Packed", bound=Format)
# Of coefficients of second order that an execution holds decoded: their format and grids.
OnGrids: TypeAlias = "tuple[type[SecondOrder], tuple[torch.Tensor, torch.Tensor, int]]"


def decoded(packed: Format) -> tuple[Format, OnGrids | None]:
    """A weight with its coefficients of first order, and what `encoded` makes it again with; others as they are."""
    if not isinstance(packed, SecondOrder):
        return packed, None
    return packed.first_order(), (type(packed), packed.grids)


def encoded(packed: Format, on_grids: OnGrids | None) -> Format:
    """The inverse of `decoded`, bit for bit."""
    return packed if on_grids is None else on_grids[0].encoded(packed, *on_grids[1])


class Execution(ABC):
    """A packed weight made ready for products on a device, by one operation.

    A call is one operation of torch, which torch.compile and graphs see as such; it passes no gradients. What it ran is
    noted (ran.py).
    """

    if TYPE_CHECKING:  # a property that runs would be the default of a field of this name

        @property
        def device(self) -> torch.device:
            """Device on which x has to be."""

        @property
        def replaces(self) -> bool:
            """Whether it holds the weight in a layout of its own, from which `packed` is recovered bit for bit, so
            that whoever has the execution need not keep the packed weight.
            """

    @property
    @abstractmethod
    def packed(self) -> Format:
        """The packed weight, bit for bit as it was given."""

    def ready(self, rows: int, dtype: torch.dtype) -> Self:
        """Itself, made ready for so many rows of x of a dtype; one that always is for any does nothing."""
        return self

    @abstractmethod
    def takes(self, x: torch.Tensor) -> bool:
        """Whether a call multiplies such an x: its device, its dtype, and that it asks for no gradients."""

    @abstractmethod
    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The product x [..., K] -> y [..., N] in x's dtype; bias: [N] in x's dtype.

        Raises:
            LutlabError: x is not what it takes.
        """

    @abstractmethod
    def dense(self) -> torch.Tensor:
        """W [N, K] float32, made anew, for products that it does not take."""

    @abstractmethod
    def describe(self, rows: int, dtype: torch.dtype) -> str:
        """Name of the kernel that multiplies so many rows of x of a dtype, for a record."""

    @abstractmethod
    def bytes_read(self, rows: int, dtype: torch.dtype) -> int:
        """Bytes of weights, scales included, that the product of so many rows of x of a dtype reads."""

    @property
    @abstractmethod
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """All tensors that it holds."""

    @abstractmethod
    def copy(self) -> Self:
        """The same with weights of its own: races with cold weights take several in turn."""


class KernelOp(ABC, Generic[Packed]):
    """A kernel operation on weights of some formats.

    Attributes:
        version: raised by whoever changes what it computes; part of the ids of cells that use it.
        name: name under which it is registered.
        options: options of `prepare` that a row may set.
    """

    version: ClassVar[int]
    name: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()

    def check_options(self, names: Iterable[str]) -> None:
        """Raises LutlabError: an option that it does not have."""
        for name in names:
            if name not in self.options:
                raise LutlabError(
                    f"{self.name} has no option '{name}': {nearest(name, self.options)}"
                )

    @abstractmethod
    def takes(self, packed: Format, device: torch.device) -> str:
        """Reason for not multiplying by a weight on a device; empty where it can."""

    @abstractmethod
    def prepare(
        self, packed: Packed, device: torch.device, rows: int, dtype: torch.dtype, **options: Any
    ) -> Execution:
        """Make a weight that it takes ready.

        Args:
            packed: the weight, on the device.
            device: device of the product.
            rows: rows of x to be ready for; others are made ready when they come.
            dtype: dtype of x to be ready for; others are made ready when they come.
            **options: options of the operation, for a row that asks for a kernel by name.

        Raises:
            LutlabError: an option is unknown; the kernel cannot be built.
        """
