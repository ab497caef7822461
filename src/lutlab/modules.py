"""QuantLinear: y[M, N] = x[M, K] W[N, K]^T + b with one packed weight and one execution.

The packed weight is what is stored: a Format, whose buffers are the layer's until the first call. The execution is what
multiplies, made of it by kernels/dispatch.py. Where its own layout of the weight replaces the stored one, which is so
on a CPU, the layer lets go of the stored buffers, and `packed`, `state_dict`, copies and `.to()` recover them from the
execution bit for bit: a layer never holds both.

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

from lutlab.base import registry
from lutlab.base.errors import LutlabError, nearest
from lutlab.formats import name_of
from lutlab.formats.contract import Format, dtype_name
from lutlab.kernels.contract import Execution
from lutlab.kernels.dispatch import Dequantized, prepare

log = logging.getLogger(__name__)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # of x
BIAS_DTYPES = (None, "float16", "bfloat16", "float32", "float64")


class QuantLinear(nn.Module):
    """A linear layer whose weight is packed; drop-in for nn.Linear and transformers' Conv1D.

    The first call prepares the execution for its x. Where gradients pass through x, in float64, or with x on another
    device, each call dequantizes the weight for torch, and keeps nothing. Where no kernel takes the weight (a warning
    and `describe` say why) it is dequantized once: exact, but not smaller in memory while it runs.

    Args:
        packed: the weight [N, K].
        bias: [N] or None.
    """

    def __init__(self, packed: Format, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = packed.shape
        self._empty = type(packed).from_layout(packed.layout(), "meta")
        self._execution: Execution | None = None
        for name, buffer in packed.buffers.items():
            self.register_buffer(name, buffer)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @classmethod
    def from_layout(
        cls, layout: Mapping[str, Any], device: torch.device | str = "cpu"
    ) -> QuantLinear:
        """The layer of which `layout()` was written down; its buffers are allocated and not set.

        Raises:
            LutlabError: a key is missing, unknown or of a value that no layer has.
        """
        rest = dict(layout)
        name, bias_dtype = (_taken(rest, key) for key in ("format", "bias_dtype"))
        if bias_dtype not in BIAS_DTYPES:
            raise LutlabError(
                f"the layout of a quantized layer says bias_dtype={bias_dtype!r}: expected one of {BIAS_DTYPES}"
            )
        packed = registry.lookup("format", str(name)).from_layout(rest, device)
        bias = None
        if bias_dtype is not None:
            bias = torch.empty(packed.shape[0], dtype=getattr(torch, bias_dtype), device=device)
        return cls(packed, bias)

    def layout(self) -> dict[str, Any]:
        """The format's name, its layout, and the bias's dtype; from_layout makes the empty layer of it."""
        names = {"format": name_of(self._empty), **self._empty.layout()}
        return names | {"bias_dtype": dtype_name(self.bias)}

    # ---- the stored weight ----

    @property
    def packed(self) -> Format:
        """The stored weight, recovered where an execution has replaced it."""
        if execution := self._replaced:
            return execution.packed
        return self._empty.with_buffers({name: self._buffers[name] for name in self._empty.buffers})

    def repack(self, packed: Format) -> None:
        """Put another weight of the same layout in the place of the stored one; the next call multiplies by it.

        Raises:
            LutlabError: its format, its sizes or its dtypes are others.
        """
        if type(packed) is not type(self._empty) or packed.layout() != self._empty.layout():
            raise LutlabError(
                f"the layer holds {self.layout()}, and was given {type(packed).__name__} {packed.layout()}: make a "
                "QuantLinear of its own of another layout"
            )
        self._hold({n: b if b is None else b.detach() for n, b in packed.buffers.items()})

    @property
    def _replaced(self) -> Execution | None:
        """The execution, where it holds the weight and the layer does not."""
        return self._execution if self._execution and self._execution.replaces else None

    def _hold(self, buffers: Mapping[str, torch.Tensor | None]) -> None:
        """Hold the stored buffers, and no execution."""
        self._execution = None
        self._buffers.update(buffers)

    def __setattr__(self, name: str, value: Any) -> None:
        """A buffer that is assigned is the stored weight's: `layer.alpha = alpha` is a repack."""
        if "_empty" in self.__dict__ and name in self._empty.buffers:
            self._hold(self.packed.buffers | {name: value})
        else:
            super().__setattr__(name, value)

    def _apply(self, fn: Callable[..., torch.Tensor], recurse: bool = True) -> QuantLinear:
        """Behind .to(), .half(), .cuda(): buffers move and keep their dtypes, on which exactness rests."""
        if execution := self._replaced:
            # What goes to the meta device, as a streamed block that is released, need not be recovered before.
            gone = fn(torch.empty(0, dtype=torch.int32, device=execution.device)).is_meta
            self._hold((self._empty if gone else execution.packed).buffers)
            del execution  # with its copy of the weight
        before = {name: self._buffers[name] for name in self._empty.buffers}
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            moved = self._buffers[name]
            if buffer is not None and moved is not None and moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(moved.device)
        self._execution = None
        return self

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._replaced:
            destination.update({prefix + n: b for n, b in self.packed.stored_buffers.items()})

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._hold(self.packed.buffers)
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """State for copies and pickles: the stored weight, from which they prepare for themselves; no kernel can be
        pickled.
        """
        buffers = self._buffers | self.packed.buffers
        return self.__dict__ | {"_execution": None, "_buffers": buffers}

    # ---- the product ----

    def prepare(self, rows: int = 1, dtype: torch.dtype = torch.float32) -> Execution:
        """Make the execution ready for so many rows of x of a dtype; else the first call does it.

        One that holds the weight in its own layout stays, and is made ready for these rows too.
        """
        if execution := self._replaced:
            return execution.ready(rows, dtype)
        packed = self.packed
        device = next(iter(packed.stored_buffers.values())).device
        execution = prepare(packed, device, rows, dtype)
        self.adopt(execution)
        if isinstance(execution, Dequantized):
            _say_once(execution.describe(rows, dtype))
        return execution

    @property
    def execution(self) -> Execution | None:
        """The execution, None before the first call."""
        return self._execution

    def adopt(self, execution: Execution) -> None:
        """Multiply by an execution of the stored weight, of it alone or among others (kernels/joined.py)."""
        self._execution = execution
        if execution.replaces:
            for name in self._empty.buffers:
                self._buffers.pop(name, None)  # gone already where it is prepared again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [..., K] -> [..., N] in x's dtype, one of float16, bfloat16, float32 and float64.

        Raises:
            LutlabError: x is of another dtype or shape, no dense tensor, or the layer's weight is on the meta device.
        """
        _check(x, self.in_features)
        execution = self._execution
        if execution is None:
            execution = self.prepare(max(1, x.numel() // self.in_features), x.dtype)
        if execution.device.type == "meta" and not x.is_meta:
            raise LutlabError(
                "the layer's weight is on the meta device, where tensors have no numbers: load the model first"
            )
        bias = None if self.bias is None else self.bias.to(x)
        if execution.takes(x):
            return execution(x, bias)
        weight = execution.dense().to(device=x.device, dtype=x.dtype)
        return functional.linear(x, weight, bias)

    def describe(self, rows: int, dtype: torch.dtype) -> str:
        """Name of the kernel for so many rows of x of a dtype: variant, instruction set, threads, or torch and why."""
        return self.ready(rows, dtype).describe(rows, dtype)

    def ready(self, rows: int, dtype: torch.dtype) -> Execution:
        """The execution as it is; prepared for so many rows of x of a dtype where there is none."""
        return self._execution or self.prepare(rows, dtype)

    def extra_repr(self) -> str:
        """The layout, as print(model) shows it."""
        layout = self.layout()
        layout["bias"] = layout.pop("bias_dtype") is not None
        return ", ".join(f"{name}={value}" for name, value in layout.items())


def _check(x: torch.Tensor, in_features: int) -> None:
    """Raises LutlabError: x is not [..., K] of floats; by integers, weights that are cut off would be multiplied."""
    if not isinstance(x, torch.Tensor):
        raise LutlabError(
            f"x is {type(x).__name__}: expected a tensor [..., {in_features}] of floats; torch.as_tensor makes one"
        )
    if x.dtype not in DTYPES:
        raise LutlabError(
            f"x is {x.dtype}: expected float16, bfloat16, float32 or float64; x.float() converts real numbers"
        )
    if x.is_nested or x.layout is not torch.strided:
        kind = "is nested" if x.is_nested else f"has layout {x.layout}"
        raise LutlabError(f"x {kind}: expected a dense tensor")
    if x.dim() == 0 or x.shape[-1] != in_features:
        raise LutlabError(f"x has shape {tuple(x.shape)}: expected [..., K] with K = {in_features}")


def _taken(layout: dict[str, Any], key: str) -> Any:
    """Remove a key of the layer's own from a layout."""
    if key not in layout:
        raise LutlabError(
            f"the layout of a quantized layer lacks '{key}': {nearest(key, layout)}; the file is damaged, or another "
            "version of lutlab wrote it"
        )
    return layout.pop(key)


@functools.cache
def _say_once(why: str) -> None:
    log.warning("quantized layers are multiplied by torch: %s", why)
