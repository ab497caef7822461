"""QuantLinear: y[M, N] = x[M, K] W[N, K]^T + b with W stored as extended BCQ (LUT-GEMM Eq. 2).

A layer's `layout` is all of it but the numbers: JSON that a file keeps beside the buffers, and that makes the layer
again, empty, for them to be loaded into.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lutlab.errors import LutlabError, nearest
from lutlab.formats.bcq import WORD, PackedBCQ
from lutlab.groups import check_bits, group_count
from lutlab.kernels.cpu.linear import CpuLinear, cpu_linear
from lutlab.kernels.gpu.linear import GpuLinear, gpu_linear

log = logging.getLogger(__name__)
KERNEL_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# By the device that x and weight are both on.
KERNELS = {"cpu": cpu_linear, "cuda": gpu_linear}
# What a layout may say; anything else in a file is damage.
ALLOWED = {
    "has_order": (False, True),
    "alpha_dtype": ("float16", "float32"),
    "offset_dtype": (None, "float16", "float32", "float64"),
    "bias_dtype": (None, "float16", "bfloat16", "float32", "float64"),
}


class QuantLinear(nn.Module):
    """A linear layer whose weight is packed; drop-in for nn.Linear and transformers' Conv1D.

    At the first call the weight is packed a second time, for the kernel that kernels/cpu/linear.py chooses on a CPU,
    and kernels/gpu/linear.py on a GPU. Where gradients pass through x, in float64, with x on another device, or where
    there is no kernel (a warning and `kernel` say why), it is dequantized once for a dtype and multiplied by torch:
    exact, but not smaller in memory while it runs.

    Args:
        packed: the weight [N, K].
        bias: [N] or None.
    """

    def __init__(self, packed: PackedBCQ, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = packed.shape
        self.group_size = packed.group_size
        self.register_buffer("planes", packed.planes)
        self.register_buffer("alpha", packed.alpha)
        self.register_buffer("offset", packed.offset)
        self.register_buffer("order", packed.order)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self._forget()

    def _forget(self) -> None:
        """Drop what was made of the buffers."""
        self._dense: torch.Tensor | None = None
        self._linear: CpuLinear | GpuLinear | None = None
        self._why_torch = ""  # there is no kernel
        self._ran: set[str] = set()

    @property
    def kernel(self) -> str:
        """What has multiplied so far, for a record: variant, instruction set and threads, or torch and why."""
        names = [
            f"dequantize once, torch matmul{self._why_torch}"
            if how == "torch"
            else self._linear.describe(few=how == "few rows")
            for how in sorted(self._ran)
        ]
        return " + ".join(names) or "nothing yet"

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
        self._forget()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which make again what they need: a built kernel cannot be pickled."""
        return self.__dict__ | {"_dense": None, "_linear": None, "_why_torch": "", "_ran": set()}

    @property
    def packed(self) -> PackedBCQ:
        """The stored weight."""
        shape = (self.out_features, self.in_features)
        return PackedBCQ(self.planes, self.alpha, self.offset, shape, self.group_size, self.order)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., K] -> [..., N] in x's dtype."""
        if self._has_kernel(x):
            self._ran.add("few rows" if self._linear.few(x) else "many rows")
            return self._linear(x, self.bias)
        self._ran.add("torch")
        if self._dense is None or self._dense.dtype != x.dtype or self._dense.device != x.device:
            with (
                torch.inference_mode(False),
                torch.no_grad(),
            ):  # autograd refuses inference tensors later
                self._dense = self.packed.dequantize().to(device=x.device, dtype=x.dtype)
        return functional.linear(x, self._dense, self.bias)

    def _has_kernel(self, x: torch.Tensor) -> bool:
        """Whether a kernel multiplies x; packs for it and builds it the first time."""
        device = self.planes.device
        if x.device != device or device.type not in KERNELS or x.dtype not in KERNEL_DTYPES:
            return False
        if x.requires_grad and torch.is_grad_enabled():
            return False
        if self._linear is None and not self._why_torch:
            try:
                self._linear = KERNELS[device.type](self.packed)
            except LutlabError as error:
                self._why_torch = f" (no kernel: {error})"
                _say_once(str(error))
        return self._linear is not None

    def extra_repr(self) -> str:
        """Shape, bits and group size, as print(model) shows them."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, q={len(self.planes)}, "
            f"g={self.group_size}, bias={self.bias is not None}"
        )


def take_kernels(model: nn.Module) -> list[str]:
    """What has multiplied the quantized layers of a model since the last call, each name once; and forgets it."""
    names = set()
    for module in model.modules():
        if isinstance(module, QuantLinear) and module._ran:
            names.add(module.kernel)
            module._ran.clear()
    return sorted(names)


@functools.cache
def _say_once(why: str) -> None:
    log.warning("quantized layers are dequantized and multiplied by torch: %s", why)
