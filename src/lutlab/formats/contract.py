"""Contract of a format: a packed weight [N, K] that owns its buffers.

A format is a frozen dataclass under `@register("format", <name>)`; an instance is one packed weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11, for type checkers only

    import torch


class Format(ABC):
    """A packed weight.

    Attributes:
        version: raised by whoever changes what is stored; part of the ids of the cells of methods that use the format.
        tensor: the quantized tensor that it packs.
        shape: (N, K).
    """

    version: ClassVar[int]
    tensor: ClassVar[type]
    shape: tuple[int, int]

    @classmethod
    @abstractmethod
    def pack(cls, tensor: Any) -> Self:
        """The packed form of a quantized tensor.

        Raises:
            LutlabError: the format cannot represent it.
        """

    @abstractmethod
    def unpack(self) -> Any:
        """The inverse of pack, bit for bit."""

    @abstractmethod
    def dequantize(self) -> torch.Tensor:
        """[N, K] float32."""

    @property
    @abstractmethod
    def bits_stored(self) -> int:
        """Bits of every buffer, padding included."""

    @property
    def bits_per_weight(self) -> float:
        """bits_stored / (N * K)."""
        return self.bits_stored / (self.shape[0] * self.shape[1])
