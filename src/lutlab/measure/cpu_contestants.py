"""lutlab's kernels on a CPU as contestants: lookup tables of binary codes, and QIGen's way with uniform ones."""

from __future__ import annotations

import dataclasses

from lutlab.formats.contract import Format
from lutlab.kernels.cpu.qigen.qigen_blocks import PackedQIGen
from lutlab.lazy import torch
from lutlab.measure.timed_row import TimedRow
from lutlab.measure.timing import Contestant
from lutlab.tensors import UniformTensor


def quantized(row: TimedRow, x: torch.Tensor, packed: Format, kernel: str) -> Contestant:
    """The kernel of quantized layers, with tables of 16 bits for kernel=int16."""
    from lutlab.kernels.dispatch import prepare

    asked = {"op": "bcq_gemv", "tables": "int16"} if kernel == "int16" else {}
    return row.executed(prepare(packed, "cpu", len(x), x.dtype, **asked), x)


def qigen(row: TimedRow, x: torch.Tensor, drawn: UniformTensor) -> Contestant:
    """OPTQ's way on a CPU, which is QIGen's kernel: GPTQ's codes, dequantized in registers and multiplied."""
    from lutlab.kernels.cpu.qigen import qigen_gemv

    packed = qigen_gemv.prepare(drawn)
    size = packed.words.nbytes + packed.scale.nbytes + packed.zero.nbytes
    copies = qigen_copies(packed, row.copies(size))
    name = qigen_gemv.variant(packed)
    return Contestant(name, size, len(copies), lambda i: qigen_gemv.gemv(x, copies[i]))


def qigen_copies(packed: PackedQIGen, count: int) -> list[PackedQIGen]:
    """Copies of QIGen's words, scales and zero points, each at an address of its own."""
    buffers = ("words", "scale", "zero")
    return [
        dataclasses.replace(packed, **{name: getattr(packed, name).clone() for name in buffers})
        for _ in range(count)
    ]
