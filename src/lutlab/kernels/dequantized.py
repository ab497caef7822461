"""y[M, N] = x[M, K] W[N, K]^T by torch, with a weight that is dequantized once: where no kernel takes it.

Exact, but not smaller: the dense weight [N, K], in the dtype of the first x, stays beside the packed one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from lutlab.formats.contract import Format
from lutlab.kernels import ran
from lutlab.kernels.numbered import Numbered


@dataclass(frozen=True, eq=False)
class Dequantized(Numbered):
    """A dense weight [N, K], the packed one it came from, and why no kernel multiplies it."""

    replaces: ClassVar[bool] = False

    stored: Format
    weight: torch.Tensor
    why: str

    @property
    def packed(self) -> Format:
        """The packed weight, unchanged."""
        return self.stored

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.weight.device

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """That of the dense weight."""
        return (self.weight.dtype,)

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """See Execution."""
        return self.product(x, bias, len(self.weight))

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """See Numbered."""
        ran.note(self.describe(1, x.dtype))
        return torch.nn.functional.linear(x, self.weight, bias)

    def dense(self) -> torch.Tensor:
        """See Execution."""
        return self.weight if self.weight.dtype == torch.float32 else self.stored.dequantize()

    def describe(self, rows: int, dtype: torch.dtype) -> str:
        """One description for any x."""
        return f"dequantize once, torch matmul (no kernel: {self.why})"

    def bytes_read(self, rows: int, dtype: torch.dtype) -> int:
        """Bytes of the dense weight."""
        return self.weight.nbytes

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """The dense weight and the packed one's."""
        return (self.weight, *(b for b in self.stored.buffers.values() if b is not None))

    def copy(self) -> Dequantized:
        """A copy with a dense weight of its own."""
        return replace(self, weight=self.weight.clone())
