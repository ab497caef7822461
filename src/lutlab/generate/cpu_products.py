"""Modules of a model as the structs that the C step reads (kernels/cpu/step.py).

quantized layers    their execution's stream, where it lies: nothing is copied. Those of one geometry that read the
                    same x are one launch
dense layers        the weight in the narrowest dtype that holds it exactly, the model's own where it is that
where a y is not finite, the rows of that product become the dense product's, as in the model's own modules
                    (kernels/cpu/overflow.py): the C step calls back
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.cpu import step
from lutlab.kernels.cpu.overflow import mend
from lutlab.kernels.cpu.rows.linear import CpuLinear
from lutlab.kernels.cpu.rows.row_blocks import ROWS, blocks_of
from lutlab.kernels.cpu.rows.rows_gemv import BATCH, Part, longs
from lutlab.lazy import nn
from lutlab.models.families import weight_of
from lutlab.modules import QuantLinear


@dataclass(frozen=True)
class Placed:
    """A layer's place: its rows in y, its channels, and its execution or dense weight [N, K padded]."""

    at: int
    rows: int
    channels: int
    weight: CpuLinear | torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads."""
        if isinstance(self.weight, CpuLinear):
            return self.weight.bytes_read(1, torch.float32)
        return self.weight.nbytes

    @property
    def dtype(self) -> str:
        """Dtype of a dense weight; bits of a packed one."""
        if isinstance(self.weight, CpuLinear):
            return f"{self.weight.rows.bits} bits"
        return str(self.weight.dtype).removeprefix("torch.")


class Products:
    """All products of a model: their structs, and everything that those point to."""

    def __init__(self, batch: int) -> None:
        self.isa = detect()
        self.batch = batch
        self.placed: dict[int, list[Placed]] = {}  # by the address of the launch
        self.scratch = 0  # floats, for up to BATCH rows of x
        self.failed: BaseException | None = None
        self.mended: set[str] = set()
        self._kept: list[object] = []

    def keep(self, value: object) -> int:
        """Hold a tensor or a ctypes object as long as the structs live; its address."""
        self._kept.append(value)
        if isinstance(value, torch.Tensor):
            return value.data_ptr()
        return ctypes.addressof(value)

    def linear(self, layers: Sequence[nn.Module]) -> tuple[step.Linear, list[int]]:
        """The struct of layers that read the same x, and where each one's rows begin in y."""
        at, placed = 0, []
        for layer in layers:
            one = Placed(at, *self._weight(layer))
            placed.append(one)
            at += blocks_of(one.rows) * ROWS if isinstance(one.weight, CpuLinear) else one.rows
        launches: list[list[Placed]] = []
        for one in placed:
            if launches and _together(launches[-1][0].weight, one.weight):
                launches[-1].append(one)
            else:
                launches.append([one])
        products = (step.Product * len(launches))(*map(self._product, launches))
        for product, launch in zip(products, launches, strict=True):
            self.placed[ctypes.addressof(product)] = launch
        self.keep(products)
        bias = self._bias(layers, placed, at)
        return step.Linear(products, len(launches), at, bias), [one.at for one in placed]

    def channels(self, layer: nn.Module) -> int:
        """Number of a layer's input channels, K."""
        return layer.in_features if isinstance(layer, QuantLinear) else weight_of(layer).shape[1]

    def norm(self, module: nn.Module | None, rms: bool) -> step.Norm:
        """The struct of a norm; None stands for no norm."""
        if module is None:
            return step.Norm()
        size = module.weight.shape if rms else torch.Size(module.normalized_shape)
        ones, zeros = torch.ones(size), torch.zeros(size)
        weight = ones if module.weight is None else module.weight.detach().float()
        if rms:
            return step.Norm(step.RMS_NORM, self.keep(weight), None, module.variance_epsilon)
        bias = zeros if module.bias is None else module.bias.detach().float()
        return step.Norm(step.LAYER_NORM, self.keep(weight), self.keep(bias), module.eps)

    def table(self, module: nn.Module) -> tuple[int, int, int]:
        """A table of embeddings: its address, the number of its dtype, its width."""
        weight = module.weight.detach().contiguous()
        return self.keep(weight), step.TYPES[weight.dtype], weight.shape[1]

    def names(self) -> list[str]:
        """Names of the kernels that multiply, for a record."""
        names = {self._name(one) for many in self.placed.values() for one in many}
        return sorted(names | self.mended)

    def mend(self, product: int, x: int, x_stride: int, m: int, y: int, y_stride: int) -> None:
        """Called by the step where a kernel's y is not finite: put right the rows that are not."""
        try:
            launch = self.placed[product]
            first = launch[0].at
            width = launch[-1].at - first + blocks_of(launch[-1].rows) * ROWS
            found = _floats(y, m, y_stride, width)
            for one in launch:
                inputs = _floats(x, m, x_stride, one.channels)
                there = found[:, one.at - first : one.at - first + one.rows]
                if mend(there, inputs, one.weight.dense()):
                    name = one.weight.kernel.describe()
                    self.mended.add(f"dequantize for rows that overflow ({name}), torch matmul")
        except BaseException as error:  # raised again when the step has returned to Python
            self.failed = error

    def _weight(self, layer: nn.Module) -> tuple[int, int, CpuLinear | torch.Tensor]:
        """Rows, channels, and execution or dense weight of a layer."""
        if isinstance(layer, QuantLinear):
            execution = layer.ready(self.batch, torch.float32)
            if isinstance(execution, CpuLinear):
                return layer.out_features, layer.in_features, execution
            weight = execution.dense()
        else:
            weight = weight_of(layer)
        return *weight.shape, step.dense_rows(weight, self.isa)

    def _product(self, launch: list[Placed]) -> step.Product:
        first = launch[0].weight
        nbytes = sum(one.nbytes for one in launch)
        if isinstance(first, torch.Tensor):
            return step.Product(
                weight=self.keep(first),
                type=step.TYPES[first.dtype],
                channels=launch[0].channels,
                width=first.shape[1],
                rows=launch[0].rows,
                bytes=nbytes,
                at=launch[0].at,
            )
        parts = [(self.keep(o.weight.rows.stream), blocks_of(o.rows)) for o in launch]
        array = (Part * len(parts))(*parts)
        self.keep(array)
        self.scratch = max(self.scratch, BATCH * first.rows.columns)
        return step.Product(
            gemv=ctypes.cast(first.kernel.library.gemv, ctypes.c_void_p).value,
            parts=array,
            count=len(parts),
            geometry=self.keep(longs(first.rows.places)),
            order=None if first.channels is None else self.keep(first.channels),
            ahead=first.kernel.prefetch_bytes,
            bytes=nbytes,
            at=launch[0].at,
        )

    def _bias(self, layers: Sequence[nn.Module], placed: list[Placed], rows: int) -> int | None:
        if all(layer.bias is None for layer in layers):
            return None
        bias = torch.zeros(rows)
        for layer, one in zip(layers, placed, strict=True):
            if layer.bias is not None:
                bias[one.at : one.at + one.rows] = layer.bias.detach()
        return self.keep(bias)

    def _name(self, one: Placed) -> str:
        if isinstance(one.weight, CpuLinear):
            return one.weight.describe(1, torch.float32)
        return f"dense {one.dtype}, {self.isa.name}"


def _together(a: CpuLinear | torch.Tensor, b: CpuLinear | torch.Tensor) -> bool:
    """Whether one call of a kernel multiplies both."""
    if not (isinstance(a, CpuLinear) and isinstance(b, CpuLinear)):
        return False
    orders = (a.channels, b.channels)
    same = a.channels is b.channels or (None not in orders and torch.equal(*orders))
    return (
        same
        and a.kernel.library is b.kernel.library
        and a.kernel.prefetch_bytes == b.kernel.prefetch_bytes
        and a.rows.places == b.rows.places
    )


def _floats(address: int, rows: int, stride: int, width: int) -> torch.Tensor:
    """A view [rows, width] of C's floats."""
    count = (rows - 1) * stride + width
    flat = torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)
    return flat.as_strided((rows, width), (stride, 1))
