"""Products on the CPU by kernels over blocks of rows: the operations uniform_gemv, bcq_gemv and mixed_gemv.

    uniform codes of 4 to 8 bits   uniform_gemv
    uniform codes of 1 to 3 bits   bcq_gemv, planes that share a scale (Eq. 5): a bit costs less than a conversion
    binary codes                   bcq_gemv
    mixed groups                   mixed_gemv
    from dense_rows rows of x on   the kernel dequantizes, torch multiplies; nothing dense is kept

The blocks of rows replace the packed weight, which is recovered from them bit for bit.

Planes are packed for the tables that are fastest here (bcq_gemv); tables="int16" names faster and less exact ones, and
makes planes of all uniform codes. The variant's name, in every record, says what ran. LUTLAB_TUNE=1 tries prefetch
distances and panels for a shape that was not tuned yet (rows_tuning).

The product is torch.ops.lutlab.rows_gemv, which torch.compile and graphs take as one operation. It passes no gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from lutlab.errors import LutlabError, nearest
from lutlab.formats.bcq import WORD, PackedBCQ
from lutlab.formats.contract import Format
from lutlab.formats.mixed import PackedMixed
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.contract import Execution, KernelOp
from lutlab.kernels.cpu import VERSIONS
from lutlab.kernels.cpu.bcq import bcq_gemv, bcq_rows
from lutlab.kernels.cpu.bcq.bcq_rows import PackedBCQRows
from lutlab.kernels.cpu.mixed import mixed_gemv, mixed_rows
from lutlab.kernels.cpu.mixed.mixed_rows import PackedMixedRows
from lutlab.kernels.cpu.mixed.mixed_sections import why_not
from lutlab.kernels.cpu.rows import rows_tuning
from lutlab.kernels.cpu.rows.row_blocks import geometry
from lutlab.kernels.cpu.rows.rows_gemv import Kernel
from lutlab.kernels.cpu.rows.rows_ops import Rows, kernel_of, layout_of, name_of
from lutlab.kernels.cpu.uniform import uniform_rows
from lutlab.kernels.cpu.uniform.uniform_rows import PackedUniformRows
from lutlab.registry import register

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# The stream of a record that only says what there is to build.
_NOTHING = torch.empty(0, dtype=torch.uint8)


@register("kernel", "uniform_gemv")
class UniformGemv(KernelOp):
    """Codes in fields of 4 or 8 bits, converted and multiplied."""

    version: ClassVar[int] = VERSIONS["uniform_gemv"]

    def takes(self, packed: Format, device: torch.device) -> str:
        """See KernelOp."""
        if not isinstance(packed, PackedUniform):
            return "it multiplies format uniform"
        if packed.bits < 4:
            return f"q={packed.bits}: codes of 1 to 3 bits are faster as planes"
        dtype = packed.scale.dtype
        return _why_not(
            PackedUniformRows(_NOTHING, packed.shape, packed.bits, packed.group_size, dtype)
        )

    def prepare(
        self, packed: Format, device: torch.device, rows: int, dtype: torch.dtype, **options: Any
    ) -> CpuLinear:
        """See KernelOp; there are no options."""
        _check_options("uniform_gemv", options, ())
        pack = functools.partial(uniform_rows.pack, packed.unpack())
        return _tuned(pack, bcq_gemv.EXACT)


@register("kernel", "bcq_gemv")
class BCQGemv(KernelOp):
    """Planes of bits, by lookup tables in registers; those of uniform codes share a scale."""

    version: ClassVar[int] = VERSIONS["bcq_gemv"]

    def takes(self, packed: Format, device: torch.device) -> str:
        """See KernelOp."""
        if not isinstance(packed, PackedBCQ | PackedUniform):
            return "it multiplies formats bcq and uniform"
        try:
            lanes = self._lanes(packed, bcq_gemv.EXACT)
        except LutlabError as error:
            return str(error)
        if isinstance(packed, PackedUniform):
            dtypes = packed.scale.dtype, torch.int16
        else:
            offset = None if packed.offset is None else packed.offset.dtype
            dtypes = packed.alpha.dtype, torch.float32 if offset == torch.float64 else offset
        sizes = packed.shape, packed.bits, packed.group_size
        return _why_not(PackedBCQRows(_NOTHING, *sizes, *dtypes, lane_bytes=lanes))

    def prepare(
        self,
        packed: Format,
        device: torch.device,
        rows: int,
        dtype: torch.dtype,
        tables: str = bcq_gemv.EXACT,
        **options: Any,
    ) -> CpuLinear:
        """See KernelOp; tables: exact, or int16, which some CPUs have (kernel=int16 of a product)."""
        _check_options("bcq_gemv", options, ("tables",))
        lanes = self._lanes(packed, tables)
        if isinstance(packed, PackedUniform):
            pack = functools.partial(bcq_rows.pack_uniform, packed.unpack(), lane_bytes=lanes)
            return _tuned(pack, tables)
        wide = packed.offset is not None and packed.offset.dtype == torch.float64
        pack = functools.partial(bcq_rows.pack, packed, lane_bytes=lanes)
        return _tuned(pack, tables, packed.offset if wide else None)

    def _lanes(self, packed: Format, tables: str) -> int:
        return bcq_gemv.lane_bytes(detect(), packed.group_size, packed.shape[1], tables)


@register("kernel", "mixed_gemv")
class MixedGemv(KernelOp):
    """Column groups of 2, 3 and 4 bits and outliers in one call; panels and prefetch distance are not tuned."""

    version: ClassVar[int] = VERSIONS["mixed_gemv"]

    def takes(self, packed: Format, device: torch.device) -> str:
        """See KernelOp."""
        if not isinstance(packed, PackedMixed):
            return "it multiplies format mixed"
        why = why_not(packed.shape[1], packed.group_size, packed.scale_group)
        if why:
            return why
        try:
            kernel_of(layout_of(self._empty(packed), bcq_gemv.EXACT, None))
        except LutlabError as error:
            return str(error)
        return ""

    def prepare(
        self, packed: Format, device: torch.device, rows: int, dtype: torch.dtype, **options: Any
    ) -> CpuLinear:
        """See KernelOp; there are no options."""
        _check_options("mixed_gemv", options, ())
        weight = mixed_rows.pack(packed.unpack(), mixed_gemv.interleaved(mixed_gemv.instructions()))
        layout = layout_of(weight, bcq_gemv.EXACT, None)
        return CpuLinear(weight, weight.channels, kernel_of(layout), layout)

    def _empty(self, packed: PackedMixed) -> PackedMixedRows:
        """The record of what there is to build."""
        outliers = None if packed.outlier_value is None else len(packed.outlier_value)
        return PackedMixedRows(
            _NOTHING,
            packed.shape,
            packed.group_size,
            packed.scale_group,
            packed.of_width,
            packed.row_scale is not None,
            outliers,
            packed.aligned,
            mixed_gemv.interleaved(mixed_gemv.instructions()),
        )


@dataclass(frozen=True, eq=False)
class CpuLinear(Execution):
    """A weight in blocks of rows, for the kernel of this machine.

    wide_offset: [N, G] float64, which the blocks hold in float32; None where they hold all.
    """

    replaces: ClassVar[bool] = True
    device: ClassVar[torch.device] = torch.device("cpu")

    rows: Rows
    channels: torch.Tensor | None  # rows.channels; torch.compile cannot read a cached property
    kernel: Kernel
    layout: str
    wide_offset: torch.Tensor | None = None

    @property
    def packed(self) -> Format:
        """See Execution."""
        if isinstance(self.rows, PackedMixedRows):
            return PackedMixed.pack(mixed_rows.unpack(self.rows))
        if isinstance(self.rows, PackedUniformRows):
            return PackedUniform.pack(uniform_rows.unpack(self.rows))
        if self.rows.uniform:
            return PackedUniform.pack(bcq_rows.unpack_uniform(self.rows))
        packed = bcq_rows.unpack(self.rows)
        return packed if self.wide_offset is None else replace(packed, offset=self.wide_offset)

    def takes(self, x: torch.Tensor) -> bool:
        """A product in 16 or 32 bits."""
        gradients = x.requires_grad and torch.is_grad_enabled()
        return x.dtype in DTYPES and x.device.type == "cpu" and not gradients

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """See Execution."""
        return torch.ops.lutlab.rows_gemv(x, bias, self.rows.stream, self.channels, self.layout)

    def dense(self) -> torch.Tensor:
        """See Execution."""
        return torch.ops.lutlab.rows_dense(self.rows.stream, self.channels, self.layout)

    def describe(self, rows: int, dtype: torch.dtype) -> str:
        """Variant, instruction set, threads."""
        return name_of(self.layout, rows < self.kernel.dense_rows, self.kernel.threads())

    def bytes_read(self, rows: int, dtype: torch.dtype) -> int:
        """Bytes of the stream."""
        return self.rows.stream.nbytes

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """The stream, and what belongs to it."""
        held = (self.rows.stream, self.rows.order, self.channels, self.wide_offset)
        return tuple(one for one in held if one is not None)

    def copy(self) -> CpuLinear:
        """With a stream of its own."""
        return replace(self, rows=replace(self.rows, stream=self.rows.stream.clone()))


def _check_options(op: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in options:
        raise LutlabError(f"{op} has no option '{name}': {nearest(name, known)}")


def _why_not(empty: Rows) -> str:
    """Reason for there being no kernel for such blocks of rows; builds it where there is one."""
    try:
        geometry(empty.shape[1], empty.group_size, WORD)  # refuses group sizes
        kernel_of(layout_of(empty, bcq_gemv.EXACT, None))
    except LutlabError as error:
        return str(error)
    return ""


def _tuned(
    pack: Callable[..., Rows], tables: str, wide_offset: torch.Tensor | None = None
) -> CpuLinear:
    """Pack for the kernel, with the panels and the prefetch distance that are known to be best."""
    rows = pack()
    kernel = kernel_of(layout_of(rows, tables, None))
    best = rows_tuning.choose(kernel, rows, lambda panel: pack(panel_columns=panel))
    if best.panel_columns != rows.panel_columns:
        rows = pack(panel_columns=best.panel_columns)
    layout = layout_of(rows, tables, best.prefetch_bytes)
    return CpuLinear(rows, rows.channels, kernel_of(layout), layout, wide_offset)
