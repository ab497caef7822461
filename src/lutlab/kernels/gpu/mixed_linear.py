"""Products on a GPU: the operation mixed_gemv_gpu, groups of 2, 3 and 4 bits with outliers.

    few rows of x    mixed_async, or the variant that a row names; outliers in its launch or by cuSPARSE
    many rows        dequantize once a call, torch.matmul (cuBLAS), from 4 (1 + 16 e / q) rows of x of e bytes on

Groups are of 16 columns and 16 rows, or multiples of these; what else there is `takes` refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from lutlab.errors import LutlabError
from lutlab.formats.contract import Format
from lutlab.formats.mixed import PackedMixed
from lutlab.kernels.gpu import VERSIONS, choice, variants
from lutlab.kernels.gpu.execution import GpuExecution, GpuOp
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.kernels.gpu.lut_gemv.variant import Variant, Weight
from lutlab.kernels.gpu.mixed_gemv.dequantize import dequantize, outlier_index, scatter
from lutlab.kernels.gpu.mixed_gemv.sparse import WithSparse, csr
from lutlab.registry import register

OP = "mixed_gemv_gpu"


@dataclass(eq=False)
class MixedLinear(GpuExecution):
    """A weight of mixed groups for the kernels of its GPU."""

    stored: PackedMixed

    @cached_property
    def outliers(self) -> torch.Tensor | None:
        """Their places in the dense matrix, for the dequantizer."""
        return outlier_index(self.stored)

    def variant_of(self, name: str) -> Variant:
        """See GpuExecution."""
        return variants.variant(name, OP)

    def best(self, rows: int, dtype: torch.dtype) -> tuple[str, str]:
        """The variant of least bytes by choice.py's model, in readings of the weights."""
        best = variants.preferred(OP)[0]
        readings = best.readings(best.case(self.stored, dtype, rows))
        dense = choice.dense_readings(dtype, self.stored.bits_per_weight)
        return (best.name if readings <= dense else choice.DENSE), choice.MODEL

    def bind(self, variant: Variant, weight: Weight, dtype: torch.dtype) -> launcher.Product:
        """See GpuExecution; outliers=cusparse adds the sparse product."""
        asked = variant.with_knobs(self.knobs)["outliers"]
        if asked == "fused" or not weight.most_outliers:
            return super().bind(variant, weight, dtype)
        product = WithSparse(variant, weight, dtype, self.device, self.gpu, self.knobs)
        product.sparse = csr(self.stored, dtype, self.device)
        return product

    def multiply_dense(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """See GpuExecution."""
        weight = scatter(dequantize(self.read_dense, x.dtype), self.stored, self.outliers)
        return torch.nn.functional.linear(x, weight, bias)

    @property
    def read_dense(self) -> PackedMixed | Weight:
        """The stored form of memory-aligned blocks, or the product's layout."""
        if self.stored.aligned:
            return self.stored
        return self.weight_of(variants.preferred(OP)[0])

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """Tensors of the stored form, the kernel's layout and the outliers: places, matrices for cuSPARSE."""
        places = self.__dict__.get("outliers")
        held = [*super().buffers, *(() if places is None else (places,))]
        for product in self.products.values():
            if isinstance(product, WithSparse):
                held += product.matrix
        return tuple({id(b): b for b in held}.values())


@register("kernel", OP)
class MixedGemvGpu(GpuOp):
    """The variants of mixed_gemv, and the dequantizer for cuBLAS."""

    version: ClassVar[int] = VERSIONS[OP]
    name: ClassVar[str] = OP
    execution: ClassVar[type[GpuExecution]] = MixedLinear

    def takes(self, packed: Format, device: torch.device) -> str:
        """See KernelOp."""
        if not isinstance(packed, PackedMixed):
            return "it multiplies format mixed"
        try:
            here = launcher.gpu(launcher.device_of(device))
            best = variants.preferred(OP)[0]
            best.plan_for(best.case(packed, torch.float32), here)
        except LutlabError as error:  # no GPU, an old one, no CuPy, groups of other sizes
            return str(error)
        return ""
