"""y[M, N] = x[M, K] W[N, K]^T on the CPU with the kernel that fits a packed weight.

    uniform codes of 4 to 8 bits   uniform_gemv
    uniform codes of 1 to 3 bits   bcq_gemv, planes that share a scale (Eq. 5): a bit costs less than a conversion
    other binary codes             bcq_gemv
    from dense_rows rows of x on   the kernel dequantizes, torch multiplies; nothing dense is kept

Planes are packed for the tables that are fastest here (bcq_gemv); tables="int16" names faster and less exact ones, and
makes planes of all uniform codes. The variant's name, in every record, says what ran. LUTLAB_TUNE=1 tries prefetch
distances and panels for a shape that was not tuned yet (rows_tuning).

The product of few rows is torch.ops.lutlab.rows_gemv, which torch.compile and graphs take as one operation. It passes
no gradients.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch

from lutlab.formats import bcq, bcq_rows, uniform_rows
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.bcq_rows import PackedBCQRows
from lutlab.formats.row_blocks import Geometry
from lutlab.formats.uniform import to_uniform
from lutlab.formats.uniform_rows import PackedUniformRows
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.cpu import bcq_gemv, rows_tuning, uniform_gemv
from lutlab.kernels.cpu.rows_gemv import Kernel

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
        return x.numel() < self.kernel.dense_rows * self.packed.shape[1]

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x: [..., K] float16, bfloat16 or float32 on the CPU; bias: [N] in x's dtype."""
        if not self.few(x):
            return torch.nn.functional.linear(x, self.kernel.dense(self.packed).to(x.dtype), bias)
        y = torch.ops.lutlab.rows_gemv(x, self.packed.stream, self.channels, self.layout)
        return y if bias is None else y.add_(bias)

    def describe(self, few: bool) -> str:
        """Name of the kernel for few rows, or many, for a record: variant, instruction set, threads."""
        name = self.kernel.describe()
        return name if few else f"dequantize every call ({name}), torch matmul"


def cpu_linear(packed: PackedBCQ, tables: str = bcq_gemv.EXACT) -> CpuLinear:
    """Pack for the best kernel of this CPU, and build the kernel.

    Args:
        packed: the weight.
        tables: exact, or int16 (kernel=int16 of a product).

    Raises:
        LutlabError: no kernel takes the group size; a scale is inf or nan; this CPU has no such tables.
        NoCompiler: there is no C compiler.
    """
    uniform = to_uniform(bcq.unpack(packed))
    lanes = bcq_gemv.lane_bytes(detect(), packed.group_size, packed.shape[1], tables)
    if uniform is None:
        pack = functools.partial(bcq_rows.pack, packed, lane_bytes=lanes)
    elif uniform.bits < 4 or tables == bcq_gemv.INT16:
        pack = functools.partial(bcq_rows.pack_uniform, uniform, lane_bytes=lanes)
    else:
        pack = functools.partial(uniform_rows.pack, uniform)
    rows = pack()
    kernel = _kernel(_layout(rows, tables, None))
    best = rows_tuning.choose(kernel, rows, lambda panel: pack(panel_columns=panel))
    if best.panel_columns != rows.panel_columns:
        rows = pack(panel_columns=best.panel_columns)
    layout = _layout(rows, tables, best.prefetch_bytes)
    return CpuLinear(rows, rows.channels, _kernel(layout), layout)


# ---- the operation: a layout travels as a string, torch's schemas know no records ----


def _layout(
    packed: PackedBCQRows | PackedUniformRows, tables: str, prefetch_bytes: int | None
) -> str:
    """Kind, N, K, bits, group size, panel, dtypes, order of bytes; tables, prefetch distance: all but the tensors.

    >>> _layout(packed, "exact", 4096)  # doctest: +SKIP
    'planes 4096 4096 3 128 512 float16 int16 4 exact 4096'
    """
    planes = isinstance(packed, PackedBCQRows)
    words = [*packed.shape, packed.bits, packed.group_size, packed.panel_columns]
    dtypes = [packed.scale_dtype, packed.offset_dtype if planes else None]
    words += [str(dtype).removeprefix("torch.") for dtype in dtypes]
    words += [packed.lane_bytes if planes else 4, tables, prefetch_bytes]
    return " ".join(map(str, ("planes" if planes else "fields", *words)))


@functools.cache
def _empty(layout: str) -> PackedBCQRows | PackedUniformRows:
    """The record of a layout, without its stream."""
    kind, *numbers, scale, offset, lanes, _, _ = layout.split()
    rows, columns, bits, group_size, panel = map(int, numbers)
    record, more = PackedUniformRows, {}
    if kind == "planes":
        record = PackedBCQRows
        more = {"offset_dtype": getattr(torch, offset, None), "lane_bytes": int(lanes)}
    return record(
        stream=torch.empty(0, dtype=torch.uint8),
        shape=(rows, columns),
        bits=bits,
        group_size=group_size,
        scale_dtype=getattr(torch, scale),
        panel_columns=panel,
        **more,
    )


@functools.cache
def _kernel(layout: str) -> Kernel:
    empty = _empty(layout)
    *_, tables, prefetch_bytes = layout.split()
    if isinstance(empty, PackedUniformRows):
        kernel = uniform_gemv.kernel(empty)
    else:
        kernel = bcq_gemv.kernel(empty, tables=tables)
    if prefetch_bytes == "None":
        return kernel
    return replace(kernel, prefetch_bytes=int(prefetch_bytes))


@dataclass(frozen=True)
class _Weight:
    """Fields of a weight that rows_gemv.Kernel.gemv reads."""

    stream: torch.Tensor
    shape: tuple[int, int]
    bits: int
    group_size: int
    panel_columns: int
    geometry: Geometry
    channels: torch.Tensor | None


@torch.library.impl(_LIBRARY, "rows_gemv", "CPU")
def _rows_gemv(
    x: torch.Tensor, stream: torch.Tensor, channels: torch.Tensor | None, layout: str
) -> torch.Tensor:
    empty = _empty(layout)
    known = empty.shape, empty.bits, empty.group_size, empty.panel_columns, empty.geometry
    weight = _Weight(stream, *known, channels)
    return _kernel(layout).gemv(x, weight).contiguous()  # of N padded to blocks


@torch.library.register_fake("lutlab::rows_gemv")
def _rows_gemv_shape(
    x: torch.Tensor, stream: torch.Tensor, channels: torch.Tensor | None, layout: str
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], _empty(layout).shape[0])
