"""Products on a GPU: the operation lut_gemv, by the kernel that fits the stored form and the number of rows of x.

    few rows of x    a variant of lut_gemv that takes format, dtype and GPU; which one: choice.py
    many rows        dequantize once a call, torch.matmul (cuBLAS); from how many rows on: choice.py
    bfloat16 x       with groups that are no whole words of 32: few rows are multiplied in float32 and rounded back, as
                     paper, which alone takes such groups, computes in the dtype of x, and not in bfloat16

Uniform codes are read as they are by variants that take them; the others, and the dequantizer, read the planes of
Eq. 5, which are made when they are first asked for. What has been made stays beside the stored form: many rows are
dequantized from the plain planes, few are multiplied from a variant's own layout.

torch.ops.lutlab.gpu_linear is what torch.compile and CUDA graphs see. It passes no gradients. What cannot run raises
LutlabError before any launch; nothing takes its place.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch

from lutlab.errors import LutlabError, nearest
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.contract import Format
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels import ran
from lutlab.kernels.contract import Execution, KernelOp
from lutlab.kernels.gpu import VERSIONS, choice, lut_gemv
from lutlab.kernels.gpu.dequantize import dequantize
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.kernels.gpu.lut_gemv.variant import Gpu, Weight, case
from lutlab.registry import register

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_LIBRARY = torch.library.Library("lutlab", "FRAGMENT")
_LIBRARY.define("gpu_linear(Tensor x, Tensor? bias, int execution, int rows) -> Tensor")
# An execution travels as a number: torch's schemas know no records.
_EXECUTIONS: weakref.WeakValueDictionary[int, GpuLinear] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()
Stored = PackedBCQ | PackedUniform


@register("kernel", "lut_gemv")
class LutGemv(KernelOp):
    """The variants of lut_gemv, and the dequantizer for cuBLAS."""

    version: ClassVar[int] = VERSIONS["lut_gemv"]

    def takes(self, packed: Format, device: torch.device) -> str:
        """See KernelOp."""
        if not isinstance(packed, Stored):
            return "it multiplies formats bcq and uniform"
        try:
            lut_gemv.choose(case(packed, torch.float32), launcher.gpu(launcher.device_of(device)))
        except LutlabError as error:  # no GPU, an old one, no CuPy, no variant for the groups
            return str(error)
        return ""

    def prepare(
        self,
        packed: Format,
        device: torch.device,
        rows: int,
        dtype: torch.dtype,
        variant: str | None = None,
        knobs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> GpuLinear:
        """See KernelOp; variant: of lut_gemv, to take for every x; knobs: of that variant."""
        for name in options:
            raise LutlabError(
                f"lut_gemv has no option '{name}': {nearest(name, ('variant', 'knobs'))}"
            )
        if knobs and variant is None:
            raise LutlabError(f"knobs {dict(knobs)} belong to a variant: name it")
        device = launcher.device_of(device)
        linear = GpuLinear(packed, device, launcher.gpu(device), variant, dict(knobs or {}))
        return linear.ready(rows, dtype) if dtype in DTYPES else linear


@dataclass(eq=False)
class GpuLinear(Execution):
    """A weight for the kernels of its GPU.

    Attributes:
        stored: the weight as it was given.
        variant: for every x; None: what choice.py says of dtype and rows.
        knobs: of the variant, in the place of its defaults.
        chosen: by dtype and rows of x, a variant's name or choice.DENSE, and by what it was chosen.
        products: by dtype of x and variant.
        weights: packed, by what packs; variants share them.
    """

    replaces: ClassVar[bool] = False

    stored: Stored
    device: torch.device
    gpu: Gpu
    variant: str | None = None
    knobs: dict[str, Any] = field(default_factory=dict)
    chosen: dict[tuple[torch.dtype, int], tuple[str, str]] = field(default_factory=dict)
    products: dict[tuple[torch.dtype, str], launcher.Product] = field(default_factory=dict)
    weights: dict[Callable[..., Weight], Weight] = field(default_factory=dict)
    number: int = field(default_factory=lambda: next(_NUMBERS))

    def __post_init__(self) -> None:
        _EXECUTIONS[self.number] = self

    @property
    def packed(self) -> Stored:
        """As it was given."""
        return self.stored

    @cached_property
    def planes(self) -> PackedBCQ:
        """The plain planes, which the dequantizer reads."""
        return self.stored.to_bcq()

    def ready(self, rows: int, dtype: torch.dtype) -> GpuLinear:
        """Pack, compile and load for so many rows of x of a dtype; returns itself."""
        name, _ = self._choose(rows, dtype)
        if name != choice.DENSE:
            self._product(self._own(dtype), name).prepare(rows)
        return self

    def takes(self, x: torch.Tensor) -> bool:
        """One in 16 or 32 bits on the GPU."""
        gradients = x.requires_grad and torch.is_grad_enabled()
        return x.dtype in DTYPES and x.device == self.device and not gradients

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The product.

        Args:
            x: [..., K] float16, bfloat16 or float32 on the weight's GPU.
            bias: [N] in x's dtype.

        Raises:
            LutlabError: x is not as above, no variant takes the weight here, or a graph is being captured and no such x
                has been multiplied before.
        """
        if x.device != self.device:
            raise LutlabError(f"x is on {x.device}, the weight on {self.device}: move one of them")
        if x.dtype not in DTYPES:
            raise LutlabError(f"x is {x.dtype}: the GPU kernels take float16, bfloat16 and float32")
        return torch.ops.lutlab.gpu_linear(x, bias, self.number, self.stored.shape[0])

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product that the operation runs."""
        rows = max(1, x.numel() // self.stored.shape[1])
        name, _ = self._choose(rows, x.dtype)
        ran.note(self.describe(rows, x.dtype))
        if name != choice.DENSE:
            own = _readable(x.to(self._own(x.dtype)))
            y = self._product(own.dtype, name)(own).to(x.dtype)
            return y if bias is None else y.add_(bias)
        if self.stored.order is not None:
            x = x.index_select(-1, self.stored.order)
        return torch.nn.functional.linear(x, dequantize(self.planes, x.dtype), bias)

    def dense(self) -> torch.Tensor:
        """See Execution."""
        return self.stored.dequantize()

    def describe(self, rows: int, dtype: torch.dtype) -> str:
        """Variant, knobs and architecture, or cuBLAS, and by what it was chosen."""
        name, why = self._choose(max(1, rows), dtype)
        if name == choice.DENSE:
            return f"dequantize every call, cuBLAS (chosen {why})"
        own = self._own(dtype)
        kind = self._product(own, name).describe()
        chosen = "" if self.variant else f", chosen {why}"
        return f"{kind}, {str(own).removeprefix('torch.')} x{chosen}"

    def bytes_read(self, rows: int, dtype: torch.dtype) -> int:
        """Bytes of the variant's own layout, or of the planes that are dequantized."""
        name, _ = self._choose(max(1, rows), dtype)
        read = self.planes if name == choice.DENSE else self._product(self._own(dtype), name).weight
        held = (tensor for key, tensor in read.buffers.items() if key != "order")
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """The stored form, the planes where they were made, and every variant's layout."""
        made = [self.stored, *self.weights.values()]
        if "planes" in self.__dict__:
            made.append(self.planes)
        held = {id(b): b for one in made for b in one.buffers.values() if b is not None}
        return tuple(held.values())

    def copy(self) -> GpuLinear:
        """With layouts and workspaces of its own; the stored form is shared where nobody dequantizes it."""
        dense = any(name == choice.DENSE for name, _ in self.chosen.values())
        stored = copy.deepcopy(self.stored) if dense else self.stored
        other = GpuLinear(stored, self.device, self.gpu, self.variant, self.knobs)
        other.chosen = dict(self.chosen)
        other.weights = {pack: copy.deepcopy(weight) for pack, weight in self.weights.items()}
        for (dtype, name), product in self.products.items():
            for rows in product.rows:
                other._product(dtype, name).prepare(rows)
        return other

    def _choose(self, rows: int, dtype: torch.dtype) -> tuple[str, str]:
        """Variant for so many rows of x, and by what it was chosen."""
        key = dtype, rows
        if key not in self.chosen:
            if self.variant:
                self.chosen[key] = self.variant, "by name"
            else:
                wanted = case(self.stored, self._own(dtype), rows)
                gpu_name = torch.cuda.get_device_name(self.device)
                self.chosen[key] = choice.choose(wanted, self.gpu, gpu_name)
        return self.chosen[key]

    def _own(self, dtype: torch.dtype) -> torch.dtype:
        """Dtype in which x of a dtype is multiplied."""
        if dtype == torch.bfloat16 and not case(self.stored, dtype).whole_words:
            return torch.float32
        return dtype

    def _product(self, dtype: torch.dtype, name: str) -> launcher.Product:
        """Of a variant; packed and bound when it is first asked for."""
        if (dtype, name) not in self.products:
            if launcher.capturing():
                raise LutlabError(
                    f"a graph is being captured, and {name} has not multiplied {dtype} yet: call the layer once before"
                )
            variant = lut_gemv.variant(name)
            variant.plan_for(
                case(self.stored, dtype), self.gpu, self.knobs
            )  # refuses before anything is packed
            if variant.pack not in self.weights:
                self.weights[variant.pack] = variant.packed(self.stored).to(self.device)
            weight = self.weights[variant.pack]
            product = launcher.Product(variant, weight, dtype, self.device, self.gpu, self.knobs)
            self.products[dtype, name] = product
        return self.products[dtype, name]


def _readable(x: torch.Tensor) -> torch.Tensor:
    """Contiguous, beginning where vectors may be read."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % launcher.ALIGNMENT else x


# ---- the operation ----


@torch.library.impl(_LIBRARY, "gpu_linear", "CompositeExplicitAutograd")
def _gpu_linear(
    x: torch.Tensor, bias: torch.Tensor | None, execution: int, rows: int
) -> torch.Tensor:
    if execution not in _EXECUTIONS:
        raise LutlabError(f"execution {execution} of another process, or of a layer that is gone")
    return _EXECUTIONS[execution].multiply(x, bias)


@torch.library.register_fake("lutlab::gpu_linear")
def _gpu_linear_shape(
    x: torch.Tensor, bias: torch.Tensor | None, execution: int, rows: int
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], rows)
