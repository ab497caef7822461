"""y[M, N] = x[M, K] W[N, K]^T on the CPU with the kernel that fits a packed weight.

    uniform codes of 4 to 8 bits   uniform_gemv
    uniform codes of 1 to 3 bits   bcq_gemv, planes that share a scale (Eq. 5): a bit costs less than a conversion
    other binary codes             bcq_gemv
    from dense_rows rows of x on   the kernel dequantizes, torch multiplies; nothing dense is kept

The product of few rows is torch.ops.lutlab.rows_gemv, which torch.compile and graphs take as one operation. It passes
no gradients.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from lutlab.formats import bcq, bcq_rows, uniform_rows
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.bcq_rows import PackedBCQRows
from lutlab.formats.row_blocks import Geometry
from lutlab.formats.uniform import to_uniform
from lutlab.formats.uniform_rows import PackedUniformRows
from lutlab.kernels import bcq_gemv, uniform_gemv
from lutlab.kernels.rows_gemv import Kernel

_LIBRARY = torch.library.Library("lutlab", "DEF")
_LIBRARY.define("rows_gemv(Tensor x, Tensor stream, Tensor? channels, str layout) -> Tensor")


@dataclass(frozen=True)
class CpuLinear:
    """A weight packed for the kernel of this machine. Call it with x [..., K] -> [..., N] in x's dtype."""

    packed: PackedBCQRows | PackedUniformRows
    channels: torch.Tensor | None  # packed.channels; torch.compile cannot read a cached property
    kernel: Kernel
    layout: str

    def few(self, x: torch.Tensor) -> bool:
        """Whether the kernel multiplies, or dequantizes for torch."""
        dense_rows = self.kernel.dense_rows
        return dense_rows is None or x.numel() < dense_rows * self.packed.shape[1]

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x: [..., K] float16, bfloat16 or float32 on the CPU; bias: [N] in x's dtype."""
        if not self.few(x):
            return torch.nn.functional.linear(x, self.kernel.dense(self.packed).to(x.dtype), bias)
        y = torch.ops.lutlab.rows_gemv(x, self.packed.stream, self.channels, self.layout)
        return y if bias is None else y.add_(bias)

    def describe(self, few: bool) -> str:
        """What multiplies few rows, or many, for a record: variant, instruction set, threads."""
        name = self.kernel.describe()
        return name if few else f"dequantize every call ({name}), torch matmul"


def cpu_linear(packed: PackedBCQ) -> CpuLinear:
    """Pack for the best kernel of this CPU, and build the kernel.

    Raises:
        LutlabError: no kernel takes the group size; a scale is inf or nan.
        NoCompiler: there is no C compiler.
    """
    uniform = to_uniform(bcq.unpack(packed))
    if uniform is None:
        rows = bcq_rows.pack(packed)
    elif uniform.bits < 4:
        rows = bcq_rows.pack_uniform(uniform)
    else:
        rows = uniform_rows.pack(uniform)
    layout = _layout(rows)
    return CpuLinear(rows, rows.channels, _kernel(layout), layout)


# ---- the operation: a layout travels as a string, torch's schemas know no records ----

_KINDS = {"planes": (PackedBCQRows, bcq_gemv), "fields": (PackedUniformRows, uniform_gemv)}


def _layout(packed: PackedBCQRows | PackedUniformRows) -> str:
    """Kind, N, K, bits, group size and dtypes: what a kernel has to know beside the tensors.

    >>> _layout(packed)  # doctest: +SKIP
    'planes 4096 4096 3 128 float16 int16'
    """
    kind = next(name for name, (record, _) in _KINDS.items() if isinstance(packed, record))
    dtypes = [packed.scale_dtype, getattr(packed, "offset_dtype", None)]
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    return " ".join(map(str, (kind, *packed.shape, packed.bits, packed.group_size, *names)))


@functools.cache
def _empty(layout: str) -> PackedBCQRows | PackedUniformRows:
    """The record of a layout, without its stream."""
    kind, rows, columns, bits, group_size, scale, offset = layout.split()
    more = {} if kind == "fields" else {"offset_dtype": getattr(torch, offset, None)}
    return _KINDS[kind][0](
        stream=torch.empty(0, dtype=torch.uint8),
        shape=(int(rows), int(columns)),
        bits=int(bits),
        group_size=int(group_size),
        scale_dtype=getattr(torch, scale),
        **more,
    )


@functools.cache
def _kernel(layout: str) -> Kernel:
    return _KINDS[layout.split()[0]][1].kernel(_empty(layout))


@dataclass(frozen=True)
class _Weight:
    """What rows_gemv.Kernel.gemv reads of a weight."""

    stream: torch.Tensor
    shape: tuple[int, int]
    bits: int
    group_size: int
    geometry: Geometry
    channels: torch.Tensor | None


@torch.library.impl(_LIBRARY, "rows_gemv", "CPU")
def _rows_gemv(
    x: torch.Tensor, stream: torch.Tensor, channels: torch.Tensor | None, layout: str
) -> torch.Tensor:
    empty = _empty(layout)
    known = empty.shape, empty.bits, empty.group_size, empty.geometry
    weight = _Weight(stream, *known, channels)
    return _kernel(layout).gemv(x, weight).contiguous()  # of N padded to blocks


@torch.library.register_fake("lutlab::rows_gemv")
def _rows_gemv_shape(
    x: torch.Tensor, stream: torch.Tensor, channels: torch.Tensor | None, layout: str
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], _empty(layout).shape[0])
