"""The papers' kernel on a CPU, in plain C: mu, l and t_h are knobs, as they are in the papers, and nothing is tuned.

    y[m, n] = sum_b alpha[g, b, n] sum_j lut_j[bits of plane b] + z[g, n] sum_j lut_j[all ones]         LUT-GEMM Eq. 2

It is there to be measured beside bcq_gemv, which multiplies by the same planes and is chosen for them. A block of t_h
rows builds its own tables, l of them at a time, and reads them once a row and plane (paper_tables.py). The weight is in
LUT-GEMM's own order (kernels/gpu/lut_gemv/paper.py draws it); scales are float32, sums too.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from lutlab.base.groups import group_length
from lutlab.base.registry import register
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.contract import Format
from lutlab.kernels import ran
from lutlab.kernels.codegen import compiler, library
from lutlab.kernels.codegen.isa import Isa, detect
from lutlab.kernels.codegen.templates import render
from lutlab.kernels.contract import KernelOp
from lutlab.kernels.cpu import VERSIONS
from lutlab.kernels.cpu.overflow import mend
from lutlab.kernels.cpu.paper_tables import KNOBS, check
from lutlab.kernels.gpu.lut_gemv.paper import side_by_side
from lutlab.kernels.numbered import Numbered


@register("kernel", "paper_gemv")
class PaperGemv(KernelOp[PackedBCQ]):
    """Lookups in tables of 2^mu sums. No format names it: a row asks for it, as kernel=paper."""

    version: ClassVar[int] = VERSIONS["paper_gemv"]
    name: ClassVar[str] = "paper_gemv"
    options: ClassVar[tuple[str, ...]] = ("knobs",)

    def takes(self, packed: Format, device: torch.device) -> str:
        """Planes on a CPU with a C compiler."""
        if not isinstance(packed, PackedBCQ) or device.type != "cpu":
            return "it multiplies binary codes on a CPU"
        try:
            compiler.find()
        except compiler.NoCompiler as error:
            return str(error)
        return ""

    def prepare(
        self, packed: PackedBCQ, device: torch.device, rows: int, dtype: torch.dtype, **options: Any
    ) -> PaperLinear:
        """The weight in LUT-GEMM's order; float32 x alone is multiplied."""
        self.check_options(options)
        knobs = options.get("knobs", {})
        check(knobs)
        offset = None if packed.offset is None else side_by_side(packed.offset.float()[None])[:, 0]
        alpha = side_by_side(packed.alpha.float())
        planes, every = side_by_side(packed.planes), tuple(sorted((KNOBS | knobs).items()))
        return PaperLinear(packed, planes, alpha, offset, every)


@dataclass(frozen=True, eq=False)
class PaperLinear(Numbered):
    """Planes [W, q, S], alpha [G, q, S] and offset [G, S] float32, S = N rounded up to 32; stored: as it was packed."""

    replaces: ClassVar[bool] = False
    device: ClassVar[torch.device] = torch.device("cpu")
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32,)

    stored: PackedBCQ
    planes: torch.Tensor
    alpha: torch.Tensor
    offset: torch.Tensor | None
    knobs: tuple[tuple[str, int], ...]

    @property
    def packed(self) -> Format:
        """The packed weight, unchanged."""
        return self.stored

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The product, through torch's operation."""
        return self.product(x, bias, self.stored.shape[0])

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product by the kernel."""
        ran.note(self.describe(1, x.dtype))
        rows, columns = self.stored.shape
        order = self.stored.order
        flat = (x if order is None else x[..., order.long()]).reshape(-1, columns).contiguous()
        _, q, stride = self.planes.shape
        y = torch.zeros(len(flat), stride)
        offset = None if self.offset is None else self.offset.data_ptr()
        places = (
            self.planes.data_ptr(),
            self.alpha.data_ptr(),
            offset,
            flat.data_ptr(),
            y.data_ptr(),
        )
        group = group_length(self.stored.group_size, columns)
        sizes = (len(flat), rows, columns, stride, q, group, torch.get_num_threads())
        _function(self.knobs, detect())(*places, *sizes)
        y = y[:, :rows].contiguous()
        mend(
            y, x.reshape(-1, columns), self.stored.dequantize()
        ) if not y.isfinite().all() else None
        y = y.view(*x.shape[:-1], rows)
        return y if bias is None else y.add_(bias)

    def dense(self) -> torch.Tensor:
        """W [N, K] float32 of the packed weight."""
        return self.stored.dequantize()

    def describe(self, rows: int, dtype: torch.dtype) -> str:
        """Knobs, instruction set, threads."""
        knobs = " ".join(f"{name}={value}" for name, value in self.knobs)
        return f"paper {knobs}, {detect().name}, {torch.get_num_threads()} threads"

    def bytes_read(self, rows: int, dtype: torch.dtype) -> int:
        """Bytes of planes, scales and offsets, once."""
        return sum(buffer.nbytes for buffer in self.buffers[:-1])

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """Planes, scales, offsets; the packed weight's planes last."""
        offset = () if self.offset is None else (self.offset,)
        return (self.planes, self.alpha, *offset, self.stored.planes)

    def copy(self) -> PaperLinear:
        """A copy with planes and scales of its own."""
        return replace(self, planes=self.planes.clone(), alpha=self.alpha.clone())


@functools.cache
def _function(knobs: tuple[tuple[str, int], ...], isa: Isa) -> Callable[..., None]:
    text = render("paper/gemv.c", **dict(knobs))
    function = library.load(text, "paper", isa).lut_gemv_paper
    function.restype = None
    function.argtypes = [*[ctypes.c_void_p] * 5, *[ctypes.c_int64] * 6, ctypes.c_int]
    return function
