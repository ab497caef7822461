"""Common part of the layouts of BCQ planes for GPU kernels: three buffers and an order of columns.

lut_gemm.py, bcq_lanes.py and binary_tiles.py draw where the words lie in them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11, for type checkers only

    import torch


@dataclass(frozen=True)
class PlaneBuffers:
    """planes int32, alpha, offset or None, of the shapes that the layout draws; shape (N, K).

    order: [K] int32, column j of the planes holds input channel order[j]; None: channel j.
    """

    planes: torch.Tensor
    alpha: torch.Tensor
    offset: torch.Tensor | None
    shape: tuple[int, int]
    group_size: int
    order: torch.Tensor | None = None

    uniform = False

    @property
    def buffers(self) -> dict[str, torch.Tensor | None]:
        """Buffers that a kernel reads, by the names that plans use."""
        return {"planes": self.planes, "alpha": self.alpha, "offset": self.offset}

    @property
    def bits_stored(self) -> int:
        """Bits of every buffer: planes and scales with their padding, order."""
        buffers = (*self.buffers.values(), self.order)
        return sum(b.numel() * b.element_size() * 8 for b in buffers if b is not None)

    @property
    def bits_per_weight(self) -> float:
        """bits_stored / (N * K)."""
        return self.bits_stored / (self.shape[0] * self.shape[1])

    def to(self, device: torch.device | str) -> Self:
        """The same on a device."""
        held = {**self.buffers, "order": self.order}
        return replace(self, **{name: b if b is None else b.to(device) for name, b in held.items()})
