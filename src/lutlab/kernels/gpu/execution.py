"""A packed weight on a GPU as an execution: few rows of x by a variant, many by dequantizing and cuBLAS.

An operation says by three methods what variants it has, which one is best for so many rows of x, and how its weights
are dequantized. What has been made stays: a layout for each way of packing, a bound product for each dtype of x and
variant. The first layout that gives the stored form back bit for bit takes its place; what else reads the stored form,
as the product of many rows, makes it again for the call.

What cannot run raises LutlabError before any launch; nothing takes its place.
"""

from __future__ import annotations

import copy
import functools
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic

import torch

from lutlab.base.errors import LutlabError
from lutlab.formats.contract import Format, dtype_name
from lutlab.kernels import ran
from lutlab.kernels.contract import KernelOp, OnGrids, Packed, decoded, encoded
from lutlab.kernels.gpu import choice
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.kernels.gpu.lut_gemv.variant import Gpu, Knobs, Variant, Weight
from lutlab.kernels.numbered import DTYPES, Numbered

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11, for type checkers only


class GpuOp(KernelOp[Packed]):
    """An operation that has variants.

    Attributes:
        execution: the class of what it prepares.
    """

    options: ClassVar[tuple[str, ...]] = ("variant", "knobs")
    execution: ClassVar[type[GpuExecution]]

    def prepare(
        self,
        packed: Packed,
        device: torch.device,
        rows: int,
        dtype: torch.dtype,
        variant: str | None = None,
        knobs: Knobs | None = None,
        **options: Any,
    ) -> GpuExecution[Packed]:
        """The weight in a variant's layout; variant: name of the one for every x, None: the best; knobs: its."""
        self.check_options(options)
        if knobs and variant is None:
            raise LutlabError(f"knobs {dict(knobs)} belong to a variant: name it")
        device, (plain, on_grids) = launcher.device_of(device), decoded(packed)
        made = self.execution(plain, device, launcher.gpu(device), variant, dict(knobs or {}))
        made.on_grids = on_grids
        return made.ready(rows, dtype)


@dataclass(eq=False)
class GpuExecution(Numbered, Generic[Packed]):
    """A weight for the kernels of its GPU.

    Attributes:
        stored: the weight as it was given, coefficients of second order decoded; where a layout has taken its place, on
            the meta device, all but its order.
        variant: name of the variant for every x; None: what is best for dtype and rows.
        knobs: knobs of the variant, in the place of its defaults.
        chosen: (dtype, rows of x) -> a variant's name or choice.DENSE, and MODEL or RACE, by which it was chosen.
        products: (dtype of x, variant) -> product.
        weights: packed weights, by the layout that packs them; variants share them.
        recover: function that makes the stored form of the layout that has taken its place; None: nothing has.
        on_grids: format and grids of coefficients of second order, on which `stored` lies; None: there are none.
    """

    stored: Packed
    device: torch.device
    gpu: Gpu
    variant: str | None = None
    knobs: dict[str, Any] = field(default_factory=dict)
    chosen: dict[tuple[torch.dtype, int], tuple[str, str]] = field(default_factory=dict)
    products: dict[tuple[torch.dtype, str], launcher.Product] = field(default_factory=dict)
    weights: dict[Callable[..., Weight], Weight] = field(default_factory=dict)
    recover: functools.partial[Packed] | None = None
    on_grids: OnGrids | None = None

    # ---- of an operation ----

    @abstractmethod
    def variant_of(self, name: str) -> Variant:
        """A variant by its name.

        Raises:
            LutlabError: there is none of this name.
        """

    @abstractmethod
    def best(self, rows: int, dtype: torch.dtype) -> tuple[str, str]:
        """A variant's name or choice.DENSE for so many rows of x, and by what it was chosen."""

    @abstractmethod
    def multiply_dense(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product with the weight dequantized."""

    @property
    @abstractmethod
    def read_dense(self) -> Format | Weight:
        """The weight that multiply_dense reads."""

    def used_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Dtype in which x of a dtype is multiplied."""
        return dtype

    def bind(self, variant: Variant, weight: Weight, dtype: torch.dtype) -> launcher.Product:
        """The product of a variant with x of a dtype."""
        return launcher.Product(variant, weight, dtype, self.device, self.gpu, self.knobs)

    # ---- Execution ----

    @property
    def replaces(self) -> bool:
        """Whether a layout has taken the stored form's place."""
        return self.recover is not None

    @property
    def plain(self) -> Packed:
        """The stored weight with coefficients of first order."""
        return self.recover() if self.recover else self.stored

    @property
    def packed(self) -> Format:
        """The stored weight."""
        return encoded(self.plain, self.on_grids)

    def ready(self, rows: int, dtype: torch.dtype) -> Self:
        """Pack, compile and load for so many rows of x of a dtype that it multiplies; returns itself."""
        if dtype not in DTYPES:
            return self
        name, _ = self._choose(rows, dtype)
        if name != choice.DENSE:
            self._product(self.used_dtype(dtype), name).prepare(rows)
            self._let_go(self.variant_of(name))
        return self

    def _let_go(self, variant: Variant) -> None:
        """Hold the weight in a variant's layout alone, where that gives the stored form back bit for bit."""
        if self.recover or variant.unpack is None:
            return
        recover = functools.partial(variant.unpack, self.weight_of(variant))
        if _same(recover(), self.stored):
            empty = type(self.stored).from_layout(self.stored.layout(), "meta")
            self.stored = empty.with_buffers({"order": self.stored.buffers["order"]})
            self.recover = recover

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The product; x: [..., K] float16, bfloat16 or float32 on the weight's GPU, bias: [N] in x's dtype.

        Raises:
            LutlabError: x is not as above, no variant takes the weight here, or a graph is being captured and no such x
                has been multiplied before.
        """
        if x.device != self.device:
            raise LutlabError(f"x is on {x.device}, the weight on {self.device}: move one of them")
        if x.dtype not in DTYPES:
            raise LutlabError(f"x is {x.dtype}: the GPU kernels take float16, bfloat16 and float32")
        return self.product(x, bias, self.stored.shape[0])

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product by the variant that is best for so many rows, or with the weight dequantized."""
        rows = max(1, x.numel() // self.stored.shape[1])
        name, _ = self._choose(rows, x.dtype)
        ran.note(self.describe(rows, x.dtype))
        if name == choice.DENSE:
            return self.multiply_dense(x, bias)
        converted = _readable(x.to(self.used_dtype(x.dtype)))
        y = self._product(converted.dtype, name)(converted).to(x.dtype)
        return y if bias is None else y.add_(bias)

    def dense(self) -> torch.Tensor:
        """W [N, K] float32, as the stored form gives it."""
        return self.dequantize()

    def describe(self, rows: int, dtype: torch.dtype) -> str:
        """Variant, knobs and architecture, or cuBLAS, and by what it was chosen."""
        name, why = self._choose(max(1, rows), dtype)
        if name == choice.DENSE:
            return f"dequantize every call, cuBLAS (chosen {why})"
        used = self.used_dtype(dtype)
        kind = self._product(used, name).describe()
        chosen = "" if self.variant else f", chosen {why}"
        return f"{kind}, {dtype_name(used)} x{chosen}"

    def bytes_read(self, rows: int, dtype: torch.dtype) -> int:
        """Bytes of the variant's own layout, or of the weight that is dequantized."""
        name, _ = self._choose(max(1, rows), dtype)
        if name != choice.DENSE:
            return self._product(self.used_dtype(dtype), name).bytes_read
        return launcher.layout_bytes(self.read_dense)

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """The stored form, where no layout has taken its place, and every variant's layout."""
        layouts: list[Format | Weight] = [*([] if self.recover else [self.stored])]
        layouts += self.weights.values()
        grids = () if self.on_grids is None else self.on_grids[1][:2]
        return (
            *(b for layout in layouts for b in layout.buffers.values() if b is not None),
            *grids,
        )

    def copy(self) -> Self:
        """A copy with layouts and workspaces of its own; the stored form is shared where nobody dequantizes it."""
        dense = any(name == choice.DENSE for name, _ in self.chosen.values())
        stored = copy.deepcopy(self.stored) if dense else self.stored
        other = type(self)(stored, self.device, self.gpu, self.variant, self.knobs)
        other.on_grids = self.on_grids
        other.chosen = dict(self.chosen)
        other.weights = {pack: copy.deepcopy(weight) for pack, weight in self.weights.items()}
        if self.recover:
            (which,) = (p for p, weight in self.weights.items() if weight is self.recover.args[0])
            other.recover = functools.partial(self.recover.func, other.weights[which])
        for (dtype, name), product in self.products.items():
            for rows in product.rows:
                other._product(dtype, name).prepare(rows)
        return other

    def _choose(self, rows: int, dtype: torch.dtype) -> tuple[str, str]:
        """Variant for so many rows of x, and by what it was chosen."""
        key = dtype, rows
        if key not in self.chosen:
            self.chosen[key] = (self.variant, "by name") if self.variant else self.best(rows, dtype)
        return self.chosen[key]

    def _product(self, dtype: torch.dtype, name: str) -> launcher.Product:
        """Product of a variant, packed and bound at its first use."""
        if (dtype, name) not in self.products:
            if launcher.capturing():
                raise LutlabError(
                    f"a graph is being captured, and {name} has not multiplied {dtype} yet: call the layer once before"
                )
            variant = self.variant_of(name)
            # refuses before anything is packed
            variant.plan_for(variant.case(self.stored, dtype), self.gpu, self.knobs)
            self.products[dtype, name] = self.bind(variant, self.weight_of(variant), dtype)
        return self.products[dtype, name]

    def weight_of(self, variant: Variant) -> Weight:
        """The weight in the layout of a variant, packed at its first use."""
        if variant.pack not in self.weights:
            self.weights[variant.pack] = variant.packed(self.plain).to(self.device)
        return self.weights[variant.pack]


def _same(first: Format, second: Format) -> bool:
    """Whether two weights are the same bit for bit, and of one format: planes of uniform codes are not."""
    buffers = second.stored_buffers
    return first.layout() == second.layout() and all(
        torch.equal(b, buffers[name]) for name, b in first.stored_buffers.items()
    )


def _readable(x: torch.Tensor) -> torch.Tensor:
    """Contiguous, beginning where vectors may be read."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % launcher.ALIGNMENT else x
