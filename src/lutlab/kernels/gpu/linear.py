"""y[M, N] = x[M, K] W[N, K]^T on a GPU with the kernel that fits a packed weight and the number of rows of x.

    few rows of x    a variant of lut_gemv that takes format, dtype and GPU; which one: choice.py
    many rows        dequantize once a call, torch.matmul (cuBLAS); from how many rows on: choice.py
    bfloat16 x       with groups that are no whole words of 32: few rows are multiplied in float32 and rounded back, as
                     paper, which alone takes such groups, computes in the dtype of x, and not in bfloat16

torch.ops.lutlab.lut_gemv and torch.ops.lutlab.dequantize_bcq are what torch.compile and CUDA graphs see. They pass no
gradients. What cannot run raises LutlabError before any launch; nothing takes its place.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from lutlab.errors import LutlabError
from lutlab.formats.bcq import PackedBCQ
from lutlab.kernels.gpu import choice, lut_gemv
from lutlab.kernels.gpu.dequantize import dequantize
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.kernels.gpu.lut_gemv.variant import Gpu, Weight, case

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
class GpuLinear:
    """A weight for the kernels of its GPU. Call it with x [..., K] -> [..., N] in x's dtype.

    Attributes:
        chosen: by dtype and rows of x, a variant's name or choice.DENSE, and by what it was chosen.
        products: by dtype of x and variant, with their numbers.
        weights: packed, by what packs; variants share them.
    """

    packed: PackedBCQ
    device: torch.device
    gpu: Gpu
    chosen: dict[tuple[torch.dtype, int], tuple[str, str]] = field(default_factory=dict)
    products: dict[tuple[torch.dtype, str], tuple[launcher.Product, int]] = field(
        default_factory=dict
    )
    weights: dict[Callable[[PackedBCQ], Weight], Weight] = field(default_factory=dict)

    def few(self, x: torch.Tensor) -> bool:
        """Whether a variant multiplies, or cuBLAS does after dequantizing.

        Raises:
            LutlabError: as for a call.
        """
        return self._choose(x) != choice.DENSE

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The product.

        Args:
            x: [..., K] float16, bfloat16 or float32 on the weight's GPU.
            bias: [N] in x's dtype.

        Raises:
            LutlabError: x is not as above, no variant takes the weight here, or a graph is being captured and no such x
                has been multiplied before.
        """
        packed, name = self.packed, self._choose(x)
        if name != choice.DENSE:
            own = x.to(self._own(x.dtype))
            number = self._product(own.dtype, name)
            y = torch.ops.lutlab.lut_gemv(own, number, packed.shape[0]).to(x.dtype)
            return y if bias is None else y.add_(bias)
        dense = torch.ops.lutlab.dequantize_bcq(
            packed.planes, packed.alpha, packed.offset, packed.shape[1], packed.group_size, x.dtype
        )
        if packed.order is not None:
            x = x.index_select(-1, packed.order)
        return torch.nn.functional.linear(x, dense, bias)

    def describe(self, few: bool) -> str:
        """Names of the kernels that multiplied few rows, or many, for a record, and the reason of the choice."""
        if not few:
            return f"dequantize every call, cuBLAS ({self._reasons(True)})"
        kinds = [
            f"{product.describe()}, {str(dtype).removeprefix('torch.')} x"
            for (dtype, _), (product, _) in self.products.items()
        ]
        return f"{' or '.join(kinds) or 'nothing yet'}, {self._reasons(False)}"

    def _reasons(self, dense: bool) -> str:
        reasons = {why for name, why in self.chosen.values() if (name == choice.DENSE) == dense}
        return f"chosen {' and '.join(sorted(reasons))}"

    def _choose(self, x: torch.Tensor) -> str:
        """Name of the variant that multiplies such an x, or choice.DENSE."""
        if x.device != self.device:
            raise LutlabError(f"x is on {x.device}, the weight on {self.device}: move one of them")
        if x.dtype not in DTYPES:
            raise LutlabError(f"x is {x.dtype}: the GPU kernels take float16, bfloat16 and float32")
        key = x.dtype, max(1, x.numel() // self.packed.shape[1])
        if key not in self.chosen:
            wanted = case(self.packed, self._own(x.dtype), key[1])
            gpu_name = torch.cuda.get_device_name(self.device)
            self.chosen[key] = choice.choose(wanted, self.gpu, gpu_name)
        return self.chosen[key][0]

    def _own(self, dtype: torch.dtype) -> torch.dtype:
        """Dtype in which x of a dtype is multiplied."""
        if dtype == torch.bfloat16 and not case(self.packed, dtype).whole_words:
            return torch.float32
        return dtype

    def _product(self, dtype: torch.dtype, name: str) -> int:
        """The number of a variant's product; packed and bound when it is first asked for."""
        if (dtype, name) not in self.products:
            if launcher.capturing():
                raise LutlabError(
                    f"a graph is being captured, and {name} has not multiplied {dtype} yet: call the layer once before"
                )
            variant = lut_gemv.variant(name)
            if variant.pack not in self.weights:
                self.weights[variant.pack] = variant.pack(self.packed).to(self.device)
            weight, number = self.weights[variant.pack], next(_NUMBERS)
            product = launcher.Product(variant, weight, dtype, self.device, self.gpu, {})
            self.products[dtype, name] = product, number
            _PRODUCTS[number] = product
        return self.products[dtype, name][1]


def gpu_linear(packed: PackedBCQ) -> GpuLinear:
    """Make a weight ready for products on the GPU that it is on.

    Raises:
        LutlabError: it is on no GPU, or on one that is too old; CuPy or NVRTC is missing or does not fit the driver.
    """
    device = launcher.device_of(packed.planes.device)
    gpu = launcher.gpu(device)
    lut_gemv.choose(case(packed, torch.float32), gpu)
    return GpuLinear(packed, device, gpu)


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
