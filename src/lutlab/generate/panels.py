"""Products by weights that become floats panel by panel, which torch multiplies (LUT-GEMM section 6).

W[first : last] -> one buffer of PANEL_ROWS rows, which stays in the cache;  y[:, first : last] = x W^T
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional

from lutlab.base.lazy import PreTrainedModel
from lutlab.kernels.cpu.bcq_gemv import PackedBCQRows
from lutlab.kernels.cpu.rows.linear import CpuLinear
from lutlab.kernels.cpu.rows.row_blocks import ROWS, blocks_of
from lutlab.kernels.cpu.rows.rows_gemv import RowsWeight
from lutlab.kernels.cpu.uniform_gemv import PackedUniformRows
from lutlab.modules import QuantLinear

# Rows of W a panel: fewer slow torch's product down, more do not speed it up (bench_prefill.py --panels).
PANEL_ROWS = 256


@contextmanager
def dequantized(model: PreTrainedModel) -> Iterator[None]:
    """Inside, every quantized layer of a model multiplies by floats, made for the call."""
    layers = [module for module in model.modules() if isinstance(module, QuantLinear)]
    size = max((layer.in_features for layer in layers), default=0)
    panel = torch.empty(PANEL_ROWS * size if model.device.type == "cpu" else 0)
    try:
        for layer in layers:
            vars(layer)["forward"] = functools.partial(_multiply, layer, panel)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _multiply(layer: QuantLinear, panel: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The product y [..., N] = x [..., K] W^T + b in x's dtype; panel: floats for PANEL_ROWS rows of W."""
    execution = layer.ready(1, x.dtype)
    bias = None if layer.bias is None else layer.bias.to(x)
    # Codes and planes, in the layout of a CPU kernel, can be cut into panels.
    kinds = PackedBCQRows | PackedUniformRows
    if not (isinstance(execution, CpuLinear) and isinstance(execution.rows, kinds)):
        return functional.linear(x, execution.dense().to(x), bias)
    rows = x.reshape(-1, layer.in_features).float()
    into = panel[: PANEL_ROWS * layer.in_features].view(PANEL_ROWS, layer.in_features)
    y = by_panels(rows, execution, into).view(*x.shape[:-1], layer.out_features).to(x.dtype)
    return y if bias is None else y + bias


def by_panels(x: torch.Tensor, linear: CpuLinear, panel: torch.Tensor) -> torch.Tensor:
    """The product x [M, K] float32 -> y [M, N] float32 of codes or planes, panel after panel.

    Each is written into `panel`, [rows, K] float32, of a multiple of 32 rows.
    """
    weight, (n, _) = linear.rows, linear.rows.shape
    y = torch.empty(n, len(x))
    for first in range(0, n, len(panel)):
        last = min(first + len(panel), n)
        dense = linear.kernel.dense(_rows(weight, first, last), panel[: last - first])
        torch.mm(dense, x.t(), out=y[first:last])
    return y.t().contiguous()


def _rows(weight: RowsWeight, first: int, last: int) -> RowsWeight:
    """Rows of a weight, `first` a multiple of 32: of each panel of columns, the bytes of their blocks."""
    geo, blocks = weight.geometry, blocks_of(weight.shape[0])
    unit_bytes = weight.stream.numel() // (blocks * geo.units)
    cut = slice(first // ROWS, blocks_of(last))
    parts = []
    for units in geo.panels():
        width = (units.stop - units.start) * unit_bytes
        begin = blocks * units.start * unit_bytes
        panel = weight.stream[begin : begin + blocks * width].view(blocks, width)
        parts.append(panel[cut].flatten())
    stream = torch.cat(parts)
    return dataclasses.replace(weight, stream=stream, shape=(last - first, weight.shape[1]))
