"""QuantLinear: y[M, N] = x[M, K] W[N, K]^T + b with W stored as extended BCQ (LUT-GEMM Eq. 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lutlab.formats.bcq import PackedBCQ


class QuantLinear(nn.Module):
    """A linear layer whose weight is packed; drop-in for nn.Linear and transformers' Conv1D.

    The weight is dequantized once, at the first call with a given dtype, and multiplied by torch: exact and as fast
    as the full-precision layer, but not smaller in memory while it runs. `kernel` names the path for the record.

    Args:
        packed: the weight [N, K].
        bias: [N] or None.
    """

    kernel = "dequantize once, torch matmul"

    def __init__(self, packed: PackedBCQ, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = packed.shape
        self.group_size = packed.group_size
        self.register_buffer("planes", packed.planes)
        self.register_buffer("alpha", packed.alpha)
        self.register_buffer("offset", packed.offset)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self._dense: torch.Tensor | None = None

    def _apply(self, fn: Callable[..., torch.Tensor], recurse: bool = True) -> QuantLinear:
        """Behind .to(), .half(), .cuda(): scales move but keep their dtype, which the exactness of Eq. 5 rests on."""
        exact = {"alpha": self.alpha, "offset": self.offset}
        super()._apply(fn, recurse)
        for name, scales in exact.items():
            if scales is not None and getattr(self, name).dtype != scales.dtype:
                setattr(self, name, scales.to(self.planes.device))
        self._dense = None
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._dense = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which make the dense weight again when they need it."""
        return self.__dict__ | {"_dense": None}

    @property
    def packed(self) -> PackedBCQ:
        """The stored weight."""
        shape = (self.out_features, self.in_features)
        return PackedBCQ(self.planes, self.alpha, self.offset, shape, self.group_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., K] -> [..., N] in x's dtype."""
        if self._dense is None or self._dense.dtype != x.dtype or self._dense.device != x.device:
            with (
                torch.inference_mode(False),
                torch.no_grad(),
            ):  # autograd refuses inference tensors later
                self._dense = self.packed.dequantize().to(device=x.device, dtype=x.dtype)
        return functional.linear(x, self._dense, self.bias)

    def extra_repr(self) -> str:
        """Shape, bits and group size, as print(model) shows them."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, q={len(self.planes)}, "
            f"g={self.group_size}, bias={self.bias is not None}"
        )
