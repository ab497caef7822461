"""The operations of torch that multiply by blocks of rows on the CPU: torch.compile and graphs take each as one.

    torch.ops.lutlab.rows_gemv     y [..., N] = x [..., K] W^T + b: few rows of x by the kernel; from dense_rows rows on
                                   the kernel dequantizes and torch multiplies, and nothing dense is kept
    torch.ops.lutlab.rows_dense    W [N, K] float32

A layout travels as a string: torch's schemas know no records. They pass no gradients.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch

from lutlab.kernels import ran
from lutlab.kernels.cpu.bcq import bcq_gemv
from lutlab.kernels.cpu.bcq.bcq_rows import PackedBCQRows
from lutlab.kernels.cpu.mixed import mixed_gemv
from lutlab.kernels.cpu.mixed.mixed_rows import PackedMixedRows
from lutlab.kernels.cpu.rows.rows_gemv import Kernel, Places, check_input
from lutlab.kernels.cpu.uniform import uniform_gemv
from lutlab.kernels.cpu.uniform.uniform_rows import PackedUniformRows

Rows = PackedBCQRows | PackedUniformRows | PackedMixedRows
_LIBRARY = torch.library.Library("lutlab", "DEF")
_LIBRARY.define(
    "rows_gemv(Tensor x, Tensor? bias, Tensor stream, Tensor? channels, str layout) -> Tensor"
)
_LIBRARY.define("rows_dense(Tensor stream, Tensor? channels, str layout) -> Tensor")


def layout_of(packed: Rows, tables: str, prefetch_bytes: int | None) -> str:
    """Kind, N, K, and by kind the rest of what a record says; tables, prefetch distance: all but the tensors.

    Planes and fields: bits, group size, panel, dtypes, order of bytes. Mixed groups: group size, rows of steps, panel,
    groups of 2, 3 and 4 bits, scales of rows, outliers, aligned, order of rows.

    >>> layout_of(packed, "exact", 4096)  # doctest: +SKIP
    'planes 4096 4096 3 128 512 float16 int16 4 exact 4096'
    """
    if isinstance(packed, PackedMixedRows):
        words = ["mixed", *packed.shape, packed.group_size, packed.scale_group]
        words += [packed.panel_columns, *packed.of_width, int(packed.row_scale), packed.outliers]
        words += [int(packed.aligned), int(packed.interleaved), tables, prefetch_bytes]
        return " ".join(map(str, words))
    planes = isinstance(packed, PackedBCQRows)
    words = [*packed.shape, packed.bits, packed.group_size, packed.panel_columns]
    dtypes = [packed.scale_dtype, packed.offset_dtype if planes else None]
    words += [str(dtype).removeprefix("torch.") for dtype in dtypes]
    words += [packed.lane_bytes if planes else 4, tables, prefetch_bytes]
    return " ".join(map(str, ("planes" if planes else "fields", *words)))


@functools.cache
def empty_of(layout: str) -> Rows:
    """The record of a layout, without its stream."""
    if layout.startswith("mixed "):
        return _empty_mixed(layout.split()[1:-2])
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


def _empty_mixed(words: list[str]) -> PackedMixedRows:
    rows, columns, g, g2, panel, *of_width, by_row, outliers, aligned, interleaved = words
    return PackedMixedRows(
        stream=torch.empty(0, dtype=torch.uint8),
        shape=(int(rows), int(columns)),
        group_size=int(g),
        scale_group=int(g2),
        of_width=tuple(map(int, of_width)),
        row_scale=by_row == "1",
        outliers=None if outliers == "None" else int(outliers),
        aligned=aligned == "1",
        interleaved=interleaved == "1",
        panel_columns=int(panel),
    )


@functools.cache
def kernel_of(layout: str) -> Kernel:
    """The kernel of a layout, built now or before.

    Raises:
        NoCompiler: there is no C compiler.
        LutlabError: no kernel takes the group size or the tables.
    """
    empty = empty_of(layout)
    *_, tables, prefetch_bytes = layout.split()
    if isinstance(empty, PackedUniformRows):
        kernel = uniform_gemv.kernel(empty)
    elif isinstance(empty, PackedMixedRows):
        kernel = mixed_gemv.kernel(empty)
    else:
        kernel = bcq_gemv.kernel(empty, tables=tables)
    if prefetch_bytes == "None":
        return kernel
    return replace(kernel, prefetch_bytes=int(prefetch_bytes))


@dataclass(frozen=True)
class _Weight:
    """A weight as rows_gemv.Kernel.gemv reads it."""

    stream: torch.Tensor
    shape: tuple[int, int]
    bits: int
    group_size: int
    panel_columns: int
    geometry: Places
    channels: torch.Tensor | None


@functools.lru_cache(maxsize=1024)
def name_of(layout: str, few: bool, threads: int) -> str:
    """Name of the kernel for few rows of x, or many, for a record."""
    name = kernel_of(layout).describe(threads)
    return name if few else f"dequantize every call ({name}), torch matmul"


def _weight(stream: torch.Tensor, channels: torch.Tensor | None, layout: str) -> _Weight:
    empty = empty_of(layout)
    known = empty.shape, empty.bits, empty.group_size, empty.panel_columns, empty.geometry
    return _Weight(stream, *known, channels)


@torch.library.impl(_LIBRARY, "rows_gemv", "CPU")
def _rows_gemv(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    stream: torch.Tensor,
    channels: torch.Tensor | None,
    layout: str,
) -> torch.Tensor:
    weight, kernel = _weight(stream, channels, layout), kernel_of(layout)
    few = x.numel() < kernel.dense_rows * weight.shape[1]
    ran.note(name_of(layout, few, kernel.threads()))
    if not few:
        check_input(x, weight.shape[1])
        return torch.nn.functional.linear(x, kernel.dense(weight).to(x.dtype), bias)
    y = kernel.gemv(x, weight).contiguous()  # of N padded to blocks
    return y if bias is None else y.add_(bias)


@torch.library.register_fake("lutlab::rows_gemv")
def _rows_gemv_shape(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    stream: torch.Tensor,
    channels: torch.Tensor | None,
    layout: str,
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], empty_of(layout).shape[0])


@torch.library.impl(_LIBRARY, "rows_dense", "CPU")
def _rows_dense(stream: torch.Tensor, channels: torch.Tensor | None, layout: str) -> torch.Tensor:
    kernel = kernel_of(layout)
    ran.note(name_of(layout, False, kernel.threads()))
    return kernel.dense(_weight(stream, channels, layout))


@torch.library.register_fake("lutlab::rows_dense")
def _rows_dense_shape(
    stream: torch.Tensor, channels: torch.Tensor | None, layout: str
) -> torch.Tensor:
    return stream.new_empty(empty_of(layout).shape, dtype=torch.float32)
