"""y[M, N] = x[M, K] W[N, K]^T on a GPU with the kernel that fits a packed weight, and cuBLAS from many rows on.

    few rows of x    the best variant of lut_gemv for format, dtype and GPU: r5 for uniform codes and float16 x, else
                     the first of lut_gemv.PREFERENCE that takes the weight
    many rows        dequantize once a call, torch.matmul (cuBLAS); from how many rows on: crossover.py
    bfloat16 x       with groups that are no whole words of 32: few rows are multiplied in float32 and rounded back, as
                     r0, which alone takes such groups, computes in the dtype of x, and not in bfloat16

torch.ops.lutlab.lut_gemv and torch.ops.lutlab.dequantize_bcq are what torch.compile and CUDA graphs see. They pass no
gradients. What cannot run raises LutlabError before any launch; nothing takes its place.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass, field

import torch

from lutlab.errors import LutlabError
from lutlab.formats.bcq import PackedBCQ
from lutlab.kernels import lut_gemv
from lutlab.kernels.crossover import Crossover, crossover
from lutlab.kernels.dequantize import dequantize
from lutlab.kernels.lut_gemv import launcher
from lutlab.kernels.lut_gemv.variant import case

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_LIBRARY = torch.library.Library("lutlab", "FRAGMENT")
_LIBRARY.define("lut_gemv(Tensor x, int product, int rows) -> Tensor")
_LIBRARY.define(
    "dequantize_bcq(Tensor planes, Tensor alpha, Tensor? offset, int columns, int group_size, ScalarType dtype)"
    " -> Tensor"
)
# A product travels as a number: torch's schemas know no records.
_PRODUCTS: weakref.WeakValueDictionary[int, launcher.Product] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


@dataclass
class _Few:
    """The product of one dtype of x, its number, and from how many rows on it is not taken."""

    product: launcher.Product
    number: int
    until: Crossover


@dataclass
class GpuLinear:
    """A weight for the kernels of its GPU. Call it with x [..., K] -> [..., N] in x's dtype."""

    packed: PackedBCQ
    device: torch.device
    products: dict[torch.dtype, _Few] = field(default_factory=dict)

    def few(self, x: torch.Tensor) -> bool:
        """Whether a variant multiplies, or cuBLAS does after dequantizing.

        Raises:
            LutlabError: as for a call.
        """
        return x.numel() < self._few(x).until.rows * self.packed.shape[1]

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The product.

        Args:
            x: [..., K] float16, bfloat16 or float32 on the weight's GPU.
            bias: [N] in x's dtype.

        Raises:
            LutlabError: x is not as above, or no variant takes the weight here.
        """
        packed, few = self.packed, self._few(x)
        if x.numel() < few.until.rows * packed.shape[1]:
            own = x.to(few.product.dtype)
            y = torch.ops.lutlab.lut_gemv(own, few.number, packed.shape[0]).to(x.dtype)
            return y if bias is None else y.add_(bias)
        dense = torch.ops.lutlab.dequantize_bcq(
            packed.planes, packed.alpha, packed.offset, packed.shape[1], packed.group_size, x.dtype
        )
        if packed.order is not None:
            x = x.index_select(-1, packed.order)
        return torch.nn.functional.linear(x, dense, bias)

    def describe(self, few: bool) -> str:
        """What multiplied few rows, or many, for a record."""
        kinds = [
            f"{one.product.describe()}{'' if one.product.dtype == x else f' of {x} x as float32'}, "
            f"{one.until.describe()} dense"
            for x, one in self.products.items()
        ]
        name = " or ".join(kinds) or "nothing yet"
        return name if few else f"dequantize every call, cuBLAS (few rows: {name})"

    def _few(self, x: torch.Tensor) -> _Few:
        """What multiplies few rows of such an x; bound at the first call."""
        if x.device != self.device:
            raise LutlabError(f"x is on {x.device}, the weight on {self.device}: move one of them")
        if x.dtype not in DTYPES:
            raise LutlabError(f"x is {x.dtype}: the GPU kernels take float16, bfloat16 and float32")
        if x.dtype not in self.products:
            wide = x.dtype == torch.bfloat16 and not case(self.packed, x.dtype).whole_words
            dtype = torch.float32 if wide else x.dtype
            product = launcher.bind(self.packed, dtype, self.device)
            number = next(_NUMBERS)
            _PRODUCTS[number] = product
            until = crossover(
                torch.cuda.get_device_name(self.device),
                product.variant.name,
                product.variant.batch,
                len(self.packed.planes),
                dtype.itemsize,
            )
            self.products[x.dtype] = _Few(product, number, until)
        return self.products[x.dtype]


def gpu_linear(packed: PackedBCQ) -> GpuLinear:
    """Make a weight ready for products on the GPU that it is on.

    Raises:
        LutlabError: it is on no GPU, or on one that is too old; CuPy or NVRTC is missing or does not fit the driver.
    """
    device = launcher.device_of(packed.planes.device)
    lut_gemv.choose(case(packed, torch.float32), launcher.gpu(device))
    return GpuLinear(packed, device)


# ---- the operations ----


@torch.library.impl(_LIBRARY, "lut_gemv", "CompositeExplicitAutograd")
def _lut_gemv(x: torch.Tensor, product: int, rows: int) -> torch.Tensor:
    if product not in _PRODUCTS:
        raise LutlabError(f"product {product} of another process, or of a layer that is gone")
    x = x.contiguous()
    if x.data_ptr() % launcher.ALIGNMENT:
        x = x.clone()
    return _PRODUCTS[product](x)


@torch.library.register_fake("lutlab::lut_gemv")
def _lut_gemv_shape(x: torch.Tensor, product: int, rows: int) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], rows)


@torch.library.impl(_LIBRARY, "dequantize_bcq", "CompositeExplicitAutograd")
def _dequantize_bcq(
    planes: torch.Tensor,
    alpha: torch.Tensor,
    offset: torch.Tensor | None,
    columns: int,
    group_size: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    shape = (planes.shape[1], columns)
    return dequantize(PackedBCQ(planes, alpha, offset, shape, group_size), dtype)


@torch.library.register_fake("lutlab::dequantize_bcq")
def _dequantize_bcq_shape(
    planes: torch.Tensor,
    alpha: torch.Tensor,
    offset: torch.Tensor | None,
    columns: int,
    group_size: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    return planes.new_empty(planes.shape[1], columns, dtype=dtype)
