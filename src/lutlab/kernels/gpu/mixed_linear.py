"""Products on a GPU: the operation mixed_gemv_gpu, groups of 2, 3 and 4 bits with outliers.

    few rows of x    mixed_async, or the variant that a row names; outliers in its launch or by cuSPARSE
    many rows        dequantize once a call, torch.matmul (cuBLAS), from 4 (1 + 16 e / q) rows of x of e bytes on

Groups are of 16 columns and 16 rows, or multiples of these; what else there is `takes` refuses.

Dequantizing: memory-aligned blocks are read as they are stored, other weights in the layout of the product. Bit for bit
`packed.dequantize()` rounded to the type, but for outliers, whose places are zero: `scatter` puts them in.

Outliers by cuSPARSE, as the paper has them: y += S x by its SpMV, a launch a row of x. cuSPARSE is torch's: it computes
halves in float32 (CuPy's matrices hold no halves, and CuPy refuses cuSPARSE inside the capture of a graph). y is
rounded before S x is added to it, and again afterwards.
"""

from __future__ import annotations

import copy
import warnings
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, cast

import torch

from lutlab.base.errors import LutlabError
from lutlab.base.registry import register
from lutlab.formats.contract import Format
from lutlab.formats.mixed import PackedMixed, outliers_of
from lutlab.kernels.gpu import VERSIONS, choice, variants
from lutlab.kernels.gpu.dequantize import MOST_BLOCKS, filled, out_type
from lutlab.kernels.gpu.execution import GpuExecution, GpuOp
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.kernels.gpu.lut_gemv.launcher import Product
from lutlab.kernels.gpu.lut_gemv.variant import Plan, Step, Variant, Weight
from lutlab.kernels.gpu.mixed_gemv.mixed_tiles import MixedWeight, places

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11, for type checkers only

OP = "mixed_gemv_gpu"
THREADS = 128
BLOCKS = 4  # of an SM: 128 registers a thread
_BLOCKS = ("blocks", "apart", "meta", "scale_step", "scale_zero", "row_scale", "row_zero")
_CHUNKS = ("words", "row_scale", "row_zero", "source")


class MixedLinear(GpuExecution[PackedMixed]):
    """A weight of mixed groups for the kernels of its GPU."""

    @cached_property
    def outliers(self) -> torch.Tensor | None:
        """Their places in the dense matrix, for the dequantizer."""
        return outlier_index(self.stored)

    def variant_of(self, name: str) -> Variant:
        """A variant of mixed_gemv_gpu."""
        return variants.variant(name, OP)

    def best(self, rows: int, dtype: torch.dtype) -> tuple[str, str]:
        """The variant of least bytes by choice.py's model, in readings of the weights."""
        best = variants.preferred(OP)[0]
        readings = best.readings(best.case(self.stored, dtype, rows))
        dense = choice.dense_readings(dtype, self.stored.bits_per_weight)
        return (best.name if readings <= dense else choice.DENSE), choice.MODEL

    def bind(self, variant: Variant, weight: Weight, dtype: torch.dtype) -> Product:
        """The product of a variant; outliers=cusparse adds the sparse one."""
        fused = variant.with_knobs(self.knobs)["outliers"] == "fused"
        if fused or weight.buffers["outliers"] is None:
            return super().bind(variant, weight, dtype)
        product = WithSparse(variant, weight, dtype, self.device, self.gpu, self.knobs)
        product.sparse = csr(self.stored, dtype, self.device)
        return product

    def multiply_dense(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product with the weight dequantized, and its outliers put in."""
        weight = scatter(dequantize(self.read_dense, x.dtype), self.stored, self.outliers)
        return torch.nn.functional.linear(x, weight, bias)

    @property
    def read_dense(self) -> PackedMixed | MixedWeight:
        """The stored form of memory-aligned blocks, or the product's layout."""
        if self.stored.aligned:
            return self.stored
        weight = self.weight_of(variants.preferred(OP)[0])
        return cast("MixedWeight", weight)  # of which class all layouts of the operation are

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """Tensors of the stored form, the kernel's layout and the outliers: places, matrices for cuSPARSE."""
        places = self.__dict__.get("outliers")
        tensors = [*super().buffers, *(() if places is None else (places,))]
        for product in self.products.values():
            if isinstance(product, WithSparse):
                tensors += product.matrix
        return tuple({id(b): b for b in tensors}.values())


@register("kernel", OP)
class MixedGemvGpu(GpuOp[PackedMixed]):
    """The variants of mixed_gemv, and the dequantizer for cuBLAS."""

    version: ClassVar[int] = VERSIONS[OP]
    name: ClassVar[str] = OP
    execution: ClassVar[type[GpuExecution]] = MixedLinear

    def takes(self, packed: Format, device: torch.device) -> str:
        """Why the chosen variant does not take the weight on the GPU."""
        if not isinstance(packed, PackedMixed):
            return "it multiplies format mixed"
        try:
            gpu = launcher.gpu(launcher.device_of(device))
            best = variants.preferred(OP)[0]
            best.plan_for(best.case(packed, torch.float32), gpu)
        except LutlabError as error:  # no GPU, an old one, no CuPy, groups of other sizes
            return str(error)
        return ""


# ---- many rows: the dense weight ----


def plan(weight: PackedMixed | MixedWeight, dtype: torch.dtype) -> Plan:
    """The launch that fills `dense` [N, K] of a dtype from `buffers`; weight: in memory-aligned blocks, or in chunks.

    Raises:
        LutlabError: dtype is not float16, bfloat16 or float32.
    """
    rows, columns = weight.shape
    parameters: dict[str, int | str] = {"THREADS": THREADS, "BLOCKS": BLOCKS}
    parameters["OUT_TYPE"] = out_type(dtype)
    arguments: tuple[str | int, ...]
    if isinstance(weight, PackedMixed):
        file, groups = "mixed", len(weight.widths)
        blocks = weight.stored_buffers["apart"].shape[1]
        arguments = (*_BLOCKS, "places", "dense", rows, columns, blocks, groups)
    else:
        assert weight.chunks is not None  # memory-aligned blocks are read as they are stored
        file, groups = "mixed_chunks", len(weight.buffer("source"))
        arguments = (*_CHUNKS, "dense", rows, columns, *weight.chunks)
        parameters["ROW_SCALES"] = int(weight.buffers["row_scale"] is not None)
    grid = (-(-groups // THREADS), min(rows, MOST_BLOCKS), 1)
    return Plan(
        file=f"dequantize/{file}.cu",
        parameters=parameters,
        steps=(Step(f"dequantize_{file}", grid, THREADS, arguments),),
        blocks_per_sm=BLOCKS,
    )


def buffers(weight: PackedMixed | MixedWeight) -> dict[str, torch.Tensor | None]:
    """Buffers that the kernel reads, by the names of the plan."""
    if not isinstance(weight, PackedMixed):
        return {name: weight.buffers[name] for name in _CHUNKS}
    tensors = {name: getattr(weight, name).contiguous() for name in _BLOCKS}
    return tensors | {"places": places(weight.widths)}


def outlier_index(packed: PackedMixed) -> torch.Tensor | None:
    """[E] int64: of each outlier its place in W [N, K], flattened; None: there are none."""
    outliers = outliers_of(packed)
    if outliers is None:
        return None
    count, column, _ = outliers
    rows, columns = packed.shape
    row = torch.arange(rows, device=packed.widths.device).repeat_interleave(count.long())
    return row * columns + (column.long() & 0xFFFF)


def dequantize(weight: PackedMixed | MixedWeight, dtype: torch.dtype) -> torch.Tensor:
    """W [N, K] in a dtype without its outliers, which `scatter` adds.

    Raises:
        LutlabError: dtype is not float16, bfloat16 or float32; no GPU or no compiler.
    """
    return filled(plan(weight, dtype), buffers(weight), weight.shape, dtype)


def scatter(
    dense: torch.Tensor, packed: PackedMixed, outliers: torch.Tensor | None
) -> torch.Tensor:
    """W with the outliers in their places; changed in place."""
    if outliers is not None:
        dense.view(-1)[outliers] = packed.stored_buffers["outlier_value"].to(dense.dtype)
    return dense


# ---- outliers by cuSPARSE ----


def csr(packed: PackedMixed, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The outliers [N, K] as torch's sparse CSR matrix in a dtype; row pointers and columns are int32."""
    buffers = packed.stored_buffers
    count = buffers["outlier_count"].to(device)
    crow = torch.nn.functional.pad(count.cumsum(0, dtype=torch.int32), (1, 0))
    column = buffers["outlier_column"].to(device).int() & 0xFFFF
    value = buffers["outlier_value"].to(device, dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(crow, column, value, packed.shape, check_invariants=False)


class WithSparse(Product):
    """A product whose outliers are a matrix of their own; made by MixedLinear.bind."""

    sparse: torch.Tensor

    def describe(self) -> str:
        """The kernel's name, and who adds the outliers."""
        return f"{super().describe()}, outliers by a launch of cuSPARSE's SpMV a row of x"

    @property
    def matrix(self) -> tuple[torch.Tensor, ...]:
        """Row pointers, columns and values of the sparse matrix."""
        return self.sparse.crow_indices(), self.sparse.col_indices(), self.sparse.values()

    @property
    def bytes_read(self) -> int:
        """Bytes of the kernel's layout with the sparse matrix in the place of its outliers."""
        fused = sum(self.weight.buffer(name).nbytes for name in ("outlier_first", "outliers"))
        return super().bytes_read - fused + sum(part.nbytes for part in self.matrix)

    def copy(self) -> Self:
        """A copy with a weight, a workspace and a sparse matrix of its own."""
        other = super().copy()
        other.sparse = copy.deepcopy(self.sparse)
        return other

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The kernel's product and, row by row of x, the sparse one."""
        y = super().__call__(x, out)
        rows, columns = self.weight.shape
        for row, product in zip(x.view(-1, columns), y.view(-1, rows), strict=True):
            torch.addmv(product, self.sparse, row, out=product)
        return y
