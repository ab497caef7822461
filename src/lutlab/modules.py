"""QuantLinear: y[M, N] = x[M, K] W[N, K]^T + b with W stored as extended BCQ (LUT-GEMM Eq. 2).

A layer's `layout` is all of it but the numbers: JSON that a file keeps beside the buffers, and that makes the layer
again, empty, for them to be loaded into.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lutlab.errors import LutlabError, nearest
from lutlab.formats.bcq import WORD, PackedBCQ
from lutlab.groups import check_bits, group_count

# What a layout may say; anything else in a file is damage.
ALLOWED = {
    "has_order": (False, True),
    "alpha_dtype": ("float16", "float32"),
    "offset_dtype": (None, "float16", "float32", "float64"),
    "bias_dtype": (None, "float16", "bfloat16", "float32", "float64"),
}


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
        self.register_buffer("order", packed.order)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self._dense: torch.Tensor | None = None

    @classmethod
    def skeleton(
        cls,
        out_features: int,
        in_features: int,
        q: int,
        g: int,
        alpha_dtype: torch.dtype,
        offset_dtype: torch.dtype | None = None,
        has_order: bool = False,
        bias_dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> QuantLinear:
        """A layer of these shapes whose buffers are allocated and not set: load_state_dict fills them.

        Args:
            out_features: N.
            in_features: K.
            q: bits, 1-8.
            g: group size, at least 8, or -1.
            alpha_dtype: of alpha [q, N, G].
            offset_dtype: of offset [N, G]; None: the layer has none.
            has_order: whether the planes' columns are in another order than the input channels.
            bias_dtype: of bias [N]; None: the layer has none.
            device: where the buffers are; `meta` allocates nothing.

        Raises:
            LutlabError: q or g is out of range.
        """
        rows, groups = out_features, group_count(g, in_features)

        def empty(dtype: torch.dtype | None, *shape: int) -> torch.Tensor | None:
            return None if dtype is None else torch.empty(shape, dtype=dtype, device=device)

        packed = PackedBCQ(
            planes=empty(torch.int32, check_bits(q), rows, -(-in_features // WORD)),
            alpha=empty(alpha_dtype, q, rows, groups),
            offset=empty(offset_dtype, rows, groups),
            shape=(rows, in_features),
            group_size=g,
            order=empty(torch.int32 if has_order else None, in_features),
        )
        return cls(packed, empty(bias_dtype, rows))

    @classmethod
    def from_layout(
        cls, layout: Mapping[str, Any], device: torch.device | str = "cpu"
    ) -> QuantLinear:
        """The skeleton of a layer of which `layout()` was written down.

        Raises:
            LutlabError: a key is missing, unknown or of a value that no layer has.
        """
        known = dict.fromkeys(("out_features", "in_features", "q", "g", *ALLOWED))
        for key in [*known, *layout]:
            if key not in layout or key not in known:
                raise LutlabError(
                    f"the layout of a quantized layer {'lacks' if key in known else 'has unknown'} '{key}': "
                    f"{nearest(key, known)}; the file is damaged, or another version of lutlab wrote it"
                )
        for key in ("out_features", "in_features"):
            if type(layout[key]) is not int or layout[key] < 1:
                raise LutlabError(
                    f"the layout of a quantized layer says {key}={layout[key]!r}: expected an integer of at least 1"
                )
        for key, allowed in ALLOWED.items():
            if layout[key] not in allowed:
                raise LutlabError(
                    f"the layout of a quantized layer says {key}={layout[key]!r}: expected one of {allowed}"
                )
        dtypes = {
            key: value and getattr(torch, value)
            for key, value in layout.items()
            if key.endswith("_dtype")
        }
        return cls.skeleton(**{**layout, **dtypes}, device=device)

    def layout(self) -> dict[str, Any]:
        """Shapes and dtypes in JSON's types: from_layout makes the layer again, load_state_dict fills it."""
        stored = {
            "alpha_dtype": self.alpha,
            "offset_dtype": self.offset,
            "bias_dtype": self.bias,
        }
        return {
            "out_features": self.out_features,
            "in_features": self.in_features,
            "q": len(self.planes),
            "g": self.group_size,
            "has_order": self.order is not None,
        } | {
            key: None if tensor is None else str(tensor.dtype).removeprefix("torch.")
            for key, tensor in stored.items()
        }

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
        return PackedBCQ(self.planes, self.alpha, self.offset, shape, self.group_size, self.order)

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
