"""The other way to read a prompt: weights become floats panel by panel, and torch multiplies (LUT-GEMM section 6).

    kernel       the packed weights are read once for up to 64 tokens (kernels/cpu/rows/tile.h)
    dequantize   W[first : last] -> one buffer of PANEL_ROWS rows, which stays in the cache;  y[:, first : last] = x W^T

On the machines seen the kernel is as fast as torch's product of many rows alone, so that dequantizing pays late, if at
all (benchmarks/bench_prefill.py): `race` tries both once for a model, a length of prompt and a number of threads, and
keeps the faster. They sum in different orders: logits agree within rounding, not bit for bit.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from lutlab.formats.bcq_rows import PackedBCQRows
from lutlab.formats.row_blocks import ROWS, blocks_of
from lutlab.formats.uniform_rows import PackedUniformRows
from lutlab.kernels.cpu.linear import CpuLinear
from lutlab.modules import QuantLinear

if TYPE_CHECKING:
    pass

# Rows of W a panel: fewer slow torch's product down, more do not speed it up (bench_prefill.py --panels).
PANEL_ROWS = 256


def by_panels(
    x: torch.Tensor, linear: CpuLinear, bias: torch.Tensor | None, panel: torch.Tensor
) -> torch.Tensor:
    """The product x [M, K] float32 -> y [M, N], the weight dequantized into `panel` [rows, K] float32 again and again.

    Args:
        x: rows of activations.
        linear: blocks of rows of codes or planes, see `takes_panels`.
        bias: [N] or None.
        panel: its rows are a multiple of 32.
    """
    weight, (n, _) = linear.rows, linear.rows.shape
    y = torch.empty(n, len(x))
    for first in range(0, n, len(panel)):
        last = min(first + len(panel), n)
        dense = linear.kernel.dense(_rows(weight, first, last), panel[: last - first])
        torch.mm(dense, x.t(), out=y[first:last])
    return y.t().contiguous() if bias is None else y.t() + bias


def takes_panels(module: torch.nn.Module) -> bool:
    """Whether a layer's weight can be cut into panels: codes and planes can, of which a CPU kernel multiplies."""
    if not isinstance(module, QuantLinear):
        return False
    execution = module.ready(1, torch.float32)
    return isinstance(execution, CpuLinear) and isinstance(
        execution.rows, PackedBCQRows | PackedUniformRows
    )


def _rows(
    weight: PackedBCQRows | PackedUniformRows, first: int, last: int
) -> PackedBCQRows | PackedUniformRows:
    """Rows of a weight, `first` a multiple of 32: of each panel of columns, the bytes of their blocks."""
    geo, blocks = weight.geometry, blocks_of(weight.shape[0])
    unit_bytes = weight.stream.numel() // (blocks * geo.units)
    wanted = slice(first // ROWS, blocks_of(last))
    parts = []
    for units in geo.panels():
        width = (units.stop - units.start) * unit_bytes
        begin = blocks * units.start * unit_bytes
        there = weight.stream[begin : begin + blocks * width].view(blocks, width)
        parts.append(there[wanted].flatten())
    stream = torch.cat(parts)
    return dataclasses.replace(weight, stream=stream, shape=(last - first, weight.shape[1]))
