"""y[M, N] = x[M, K] W[N, K]^T on the CPU with the kernel that fits a packed weight.

    uniform codes of 4 to 8 bits   uniform_gemv
    uniform codes of 1 to 3 bits   bcq_gemv, planes that share a scale (Eq. 5): a bit costs less than a conversion
    other binary codes             bcq_gemv
    from dense_rows rows of x on   the kernel dequantizes, torch multiplies; nothing dense is kept

Planes are packed for the tables that are fastest here (bcq_gemv). LUTLAB_TABLES=int16 asks for the faster and less
exact ones of planes; the variant's name, in every record, says what ran.

The product of few rows is torch.ops.lutlab.rows_gemv, which torch.compile and graphs take as one operation. It passes
no gradients.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

import torch

from lutlab.codegen.isa import detect
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


def cpu_linear(packed: PackedBCQ, tables: str | None = None) -> CpuLinear:
    """Pack for the best kernel of this CPU, and build the kernel.

    Args:
        packed: the weight.
        tables: of kernels over planes, exact or int16; None: what LUTLAB_TABLES says, else exact.

    Raises:
        LutlabError: no kernel takes the group size; a scale is inf or nan; this CPU has no such tables.
        NoCompiler: there is no C compiler.
    """
    tables = tables or os.environ.get("LUTLAB_TABLES") or bcq_gemv.EXACT
    uniform = to_uniform(bcq.unpack(packed))
    lanes = bcq_gemv.lane_bytes(detect(), packed.group_size, packed.shape[1], tables)
    if uniform is None:
        rows = bcq_rows.pack(packed, lane_bytes=lanes)
    elif uniform.bits < 4:
        rows = bcq_rows.pack_uniform(uniform, lane_bytes=lanes)
    else:
        rows = uniform_rows.pack(uniform)
    layout = _layout(rows, tables)
    return CpuLinear(rows, rows.channels, _kernel(layout), layout)


# ---- the operation: a layout travels as a string, torch's schemas know no records ----


def _layout(packed: PackedBCQRows | PackedUniformRows, tables: str) -> str:
    """Kind, N, K, bits, group size, dtypes, order of bytes and tables: what a kernel has to know beside the tensors.

    >>> _layout(packed, "exact")  # doctest: +SKIP
    'planes 4096 4096 3 128 float16 int16 4 exact'
    """
    planes = isinstance(packed, PackedBCQRows)
    words = [*packed.shape, packed.bits, packed.group_size, packed.scale_dtype]
    words += [packed.offset_dtype, packed.lane_bytes, tables] if planes else []
    named = (
        str(word).removeprefix("torch.") for word in ("planes" if planes else "fields", *words)
    )
    return " ".join(named)


@functools.cache
def _empty(layout: str) -> PackedBCQRows | PackedUniformRows:
    """The record of a layout, without its stream."""
    kind, rows, columns, bits, group_size, scale, *planes = layout.split()
    record, more = PackedUniformRows, {}
    if kind == "planes":
        offset, lanes, _ = planes
        record = PackedBCQRows
        more = {"offset_dtype": getattr(torch, offset, None), "lane_bytes": int(lanes)}
    return record(
        stream=torch.empty(0, dtype=torch.uint8),
        shape=(int(rows), int(columns)),
        bits=int(bits),
        group_size=int(group_size),
        scale_dtype=getattr(torch, scale),
        **more,
    )


@functools.cache
def _kernel(layout: str) -> Kernel:
    empty = _empty(layout)
    if isinstance(empty, PackedUniformRows):
        return uniform_gemv.kernel(empty)
    return bcq_gemv.kernel(empty, tables=layout.split()[-1])


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
