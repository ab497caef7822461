"""Products on a GPU: the operation lut_gemv, by the kernel that fits the stored form and the number of rows of x.

    few rows of x    a variant of lut_gemv that takes format, dtype and GPU; which one: choice.py
    many rows        dequantize once a call, torch.matmul (cuBLAS); from how many rows on: choice.py
    bfloat16 x       with groups that are no whole words of 32: few rows are multiplied in float32 and rounded back, as
                     paper, which alone takes such groups, computes in the dtype of x, and not in bfloat16

Uniform codes with zero points are read as they are by variants that take them; codes with a float offset, the other
variants, and the dequantizer take the planes of Eq. 5, which are made when they are first asked for. Many rows are
dequantized from the plain planes, few are multiplied from a variant's own layout; binary codes that are held in such a
layout alone become plain planes for each such call. Coefficients of second order are decoded to float16 before.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch

from lutlab.base.errors import LutlabError
from lutlab.base.registry import register
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.contract import Format
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.contract import decoded
from lutlab.kernels.gpu import VERSIONS, choice, variants
from lutlab.kernels.gpu.dequantize import dequantize
from lutlab.kernels.gpu.execution import GpuExecution, GpuOp
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.kernels.gpu.lut_gemv.variant import Variant, case

Stored = PackedBCQ | PackedUniform


class GpuLinear(GpuExecution[Stored]):
    """A weight of binary or uniform codes for the kernels of its GPU."""

    @property
    def planes(self) -> PackedBCQ:
        """The plain planes, which the dequantizer reads."""
        packed = self.plain
        return packed if isinstance(packed, PackedBCQ) else self._planes

    @cached_property
    def _planes(self) -> PackedBCQ:
        """Planes of uniform codes, by Eq. 5."""
        return self.stored.to_bcq()

    def variant_of(self, name: str) -> Variant:
        """A variant of lut_gemv."""
        return variants.variant(name)

    def best(self, rows: int, dtype: torch.dtype) -> tuple[str, str]:
        """The variant for x with so many rows, and MODEL or RACE, by which choice.py chose it."""
        product = case(self.stored, self.used_dtype(dtype), rows)
        return choice.choose(product, self.gpu, torch.cuda.get_device_name(self.device))

    def multiply_dense(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product of x in the order of the columns, with the planes dequantized."""
        if self.stored.order is not None:
            x = x.index_select(-1, self.stored.order)
        return torch.nn.functional.linear(x, dequantize(self.planes, x.dtype), bias)

    @property
    def read_dense(self) -> PackedBCQ:
        """The planes; on the meta device where a layout has taken their place."""
        return self.stored if isinstance(self.stored, PackedBCQ) else self._planes

    def used_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """As it is; float32 for bfloat16 where groups are no whole words; the module says why."""
        if dtype == torch.bfloat16 and not case(self.stored, dtype).whole_words:
            return torch.float32
        return dtype

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """The stored form, the planes where they were made, and every variant's layout."""
        planes = self._planes.stored_buffers.values() if "_planes" in self.__dict__ else ()
        return tuple({id(b): b for b in (*super().buffers, *planes)}.values())


@register("kernel", "lut_gemv")
class LutGemv(GpuOp[Stored]):
    """The variants of lut_gemv, and the dequantizer for cuBLAS."""

    version: ClassVar[int] = VERSIONS["lut_gemv"]
    name: ClassVar[str] = "lut_gemv"
    execution: ClassVar[type[GpuExecution]] = GpuLinear

    def takes(self, packed: Format, device: torch.device) -> str:
        """Why no variant takes the weight on the GPU."""
        plain, _ = decoded(packed)
        if not isinstance(plain, Stored):
            return "it multiplies formats bcq and uniform, of first and second order"
        try:
            variants.choose(case(plain, torch.float32), launcher.gpu(launcher.device_of(device)))
        except LutlabError as error:  # no GPU, an old one, no CuPy, no variant for the groups
            return str(error)
        return ""
