"""A weight in blocks of rows as an execution, and what the operations that make one have in common.

The blocks of rows replace the packed weight, which is recovered from them bit for bit. From DENSE_ROWS rows of x on
the kernel dequantizes and torch multiplies; nothing dense is kept.

Planes are packed for the tables that are fastest here (bcq_gemv); tables="int16" names faster and less exact ones, and
makes planes of all uniform codes. The variant's name, in every record, says what ran. LUTLAB_TUNE=1 tries prefetch
distances and panels for a shape that was not tuned yet (rows_tuning).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch

from lutlab.base.errors import LutlabError
from lutlab.formats.contract import Format
from lutlab.formats.second_order import SecondOrder
from lutlab.kernels import ran
from lutlab.kernels.contract import KernelOp, OnGrids, Packed, decoded, encoded
from lutlab.kernels.cpu.rows import rows_tuning
from lutlab.kernels.cpu.rows.rows_gemv import (
    DENSE_ROWS,
    EXACT,
    Kernel,
    RowsWeight,
    check_input,
    kernel,
)
from lutlab.kernels.numbered import Numbered

# Instructions by which kernels decode coefficients of second order: elsewhere they take more time than the bytes they
# save, and a weight gets its coefficients in float16 when it is made ready.
DECODES = "avx512"


class RowsOp(KernelOp[Packed]):
    """An operation over blocks of rows.

    Attributes:
        multiplies: names of the formats that it takes, for a message.
        formats: their classes.
        tuned: whether panel and prefetch distance are.
    """

    multiplies: ClassVar[str]
    formats: ClassVar[tuple[type, ...]]
    tuned: ClassVar[bool] = True

    @abstractmethod
    def empty(self, packed: Packed, tables: str) -> RowsWeight[Packed]:
        """The layout of a weight, without its stream.

        Raises:
            LutlabError: there is none, or no such tables.
        """

    def takes(self, packed: Format, device: torch.device) -> str:
        """Why there is no layout of the weight, or no kernel, which is built where there is one."""
        if not isinstance(packed, self.formats):
            return f"it multiplies {self.multiplies}"
        try:
            empty = self.empty(cast("Packed", packed), EXACT)  # of one of its formats
            _ = empty.places  # refuses group sizes
            kernel(empty)
        except LutlabError as error:
            return str(error)
        return ""

    def prepare(
        self, packed: Packed, device: torch.device, rows: int, dtype: torch.dtype, **options: Any
    ) -> CpuLinear:
        """The weight in blocks of rows, ready for any number of rows of x and any dtype."""
        self.check_options(options)
        tables, on_grids = options.get("tables", EXACT), None
        empty = self.empty(packed, tables)
        if isinstance(packed, SecondOrder) and empty.instructions().name != DECODES:
            packed, on_grids = cast("tuple[Packed, OnGrids]", decoded(packed))
            empty = self.empty(packed, tables)
        weight, built = empty.filled(packed), kernel(empty, tables=tables)
        if self.tuned:  # with the panels and the prefetch distance that are known to be best

            def pack(panel: int) -> RowsWeight[Packed]:
                return replace(empty, panel_columns=panel).filled(packed)

            best = rows_tuning.choose(built, weight, pack)
            built = replace(built, prefetch_bytes=best.prefetch_bytes)
            if best.panel_columns != weight.panel_columns:
                weight = pack(best.panel_columns)
        return CpuLinear(weight, weight.channels, built, on_grids)


@dataclass(frozen=True, eq=False)
class CpuLinear(Numbered):
    """A weight in blocks of rows, for the kernel of this machine.

    on_grids: of coefficients of second order that `rows` has decoded, their format and its grids.
    """

    replaces: ClassVar[bool] = True
    device: ClassVar[torch.device] = torch.device("cpu")

    rows: RowsWeight
    channels: torch.Tensor | None  # rows.channels; torch.compile cannot read a cached property
    kernel: Kernel
    on_grids: OnGrids | None = None

    @property
    def packed(self) -> Format:
        """The stored form, recovered."""
        return encoded(self.rows.stored(), self.on_grids)

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The product, through torch's operation."""
        return self.product(x, bias, self.rows.shape[0])

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """The product by the kernel; of DENSE_ROWS rows of x and more by torch, of the weight dequantized."""
        few = x.numel() < DENSE_ROWS * self.rows.shape[1]
        ran.note(self._name(few))
        if not few:
            check_input(x, self.rows.shape[1])
            dense = self.kernel.dense(self.rows).to(x.dtype)
            return torch.nn.functional.linear(x, dense, bias)
        y = self.kernel.gemv(x, self.rows).contiguous()  # of N padded to blocks
        return y if bias is None else y.add_(bias)

    def dense(self) -> torch.Tensor:
        """W [N, K] float32, through torch's operation."""
        return torch.ops.lutlab.packed_dense(self.number_tensor, *self.rows.shape)

    def dequantize(self) -> torch.Tensor:
        """W [N, K] float32, by the kernel."""
        ran.note(self._name(False))
        return self.kernel.dense(self.rows)

    def describe(self, rows: int, dtype: torch.dtype) -> str:
        """Variant, instruction set, threads."""
        return self._name(rows < DENSE_ROWS)

    def _name(self, few: bool) -> str:
        """Name of the kernel for few rows of x, or many, for a record."""
        name = self.kernel.describe()
        return name if few else f"dequantize every call ({name}), torch matmul"

    def bytes_read(self, rows: int, dtype: torch.dtype) -> int:
        """Bytes of the stream."""
        return self.rows.stream.nbytes

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """The stream, and what belongs to it."""
        return self.rows.buffers + (() if self.on_grids is None else self.on_grids[1][:2])

    def copy(self) -> CpuLinear:
        """A copy with a stream of its own."""
        return replace(self, rows=replace(self.rows, stream=self.rows.stream.clone()))
