"""The one dispatch: which kernel multiplies by a packed weight on a device.

The format names operations in the order in which they are tried (`kernels`), an operation says why it does not take a
weight, and where none does, the weight is dequantized once for torch and `describe` says why.

    uniform, cpu    uniform_gemv: codes of 4 to 8 bits; bcq_gemv: of 1 to 3 bits, as planes that share a scale;
                    with zero points or float offsets alike
                    uniform_second_order likewise
    bcq, cpu        bcq_gemv, bcq_second_order likewise. Binary codes that happen to be uniform are binary codes:
                    nothing is recovered of them
    mixed, cpu      mixed_gemv: groups of every width and outliers in one call
    both, cuda      lut_gemv, whose variant goes by format, dtype and rows of x (kernels/gpu/choice.py); of uniform
                    codes with a float offset the planes of Eq. 5
    mixed, cuda     mixed_gemv_gpu
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.formats.contract import Format
from lutlab.kernels import ran
from lutlab.kernels.contract import Execution, KernelOp
from lutlab.kernels.cpu import (
    bcq_gemv,  # noqa: F401, registers its operation
    mixed_gemv,  # noqa: F401, registers its operation
    paper_gemv,  # noqa: F401, registers its operation
    uniform_gemv,  # noqa: F401, registers its operation
)
from lutlab.kernels.gpu import linear as gpu  # noqa: F401, registers its operation
from lutlab.kernels.gpu import mixed_linear as mixed_gpu  # noqa: F401, registers its operation
from lutlab.kernels.numbered import Numbered


@dataclass(frozen=True, eq=False)
class Dequantized(Numbered):
    """A packed weight that no kernel takes: dequantized once, multiplied by torch.

    Exact, but not smaller: the dense weight [N, K], in the dtype of the first x, stays beside the packed one.

    Attributes:
        stored: the packed weight.
        weight: the dense one.
        why: the reason for which no kernel multiplies it.
    """

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
        """The product by torch, through its operation."""
        return self.product(x, bias, len(self.weight))

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product by torch."""
        ran.note(self.describe(1, x.dtype))
        return torch.nn.functional.linear(x, self.weight, bias)

    def dense(self) -> torch.Tensor:
        """The dense weight itself where it is float32."""
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
        return (self.weight, *self.stored.stored_buffers.values())

    def copy(self) -> Dequantized:
        """A copy with a dense weight of its own."""
        return replace(self, weight=self.weight.clone())


def prepare(
    packed: Format,
    device: torch.device | str,
    rows: int = 1,
    dtype: torch.dtype = torch.float32,
    *,
    op: str | None = None,
    **options: Any,
) -> Execution:
    """Choose the kernel for a packed weight, and make the weight ready for it as KernelOp.prepare does.

    op: name of the operation to take, for a row that asks for a kernel; None: the first that takes the weight.

    Raises:
        LutlabError: there is no operation of that name, it does not take the weight here, or it has no such option.
    """
    device = torch.device(device)
    # Layers outlive the block they are first called in.
    with torch.inference_mode(False), torch.no_grad():
        if op is not None:
            chosen: KernelOp = registry.lookup("kernel", op)()
            if why := chosen.takes(packed, device):
                raise LutlabError(f"{op}: {why}")
            return chosen.prepare(packed, device, rows, dtype, **options)
        reasons = []
        for name in packed.kernels.get(device.type, ()):
            chosen = registry.lookup("kernel", name)()
            why = chosen.takes(packed, device)
            if not why:
                return chosen.prepare(packed, device, rows, dtype)
            reasons.append(f"{name}: {why}")
        why = "; ".join(reasons) or f"{type(packed).__name__} names none for {device.type}"
        return Dequantized(packed, packed.dequantize().to(dtype), why)
