"""Launcher of the kernels over blocks of rows (row_blocks.py): checks, geometry, one call into C.

y[M, N] = x[M, K] W[N, K]^T for M rows of x at once; the weights are read once for up to 64 rows. x may be float16,
bfloat16 or float32 and is computed on in float32; rows that are not contiguous are copied. From DENSE_ROWS rows of x
on a layer calls `dense` and multiplies with torch. Rows that are not finite are put right (overflow.py).
"""

from __future__ import annotations

import ctypes
import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Generic

import torch

from lutlab.base.errors import LutlabError
from lutlab.base.tensors import UniformSecondOrderTensor, UniformTensor
from lutlab.formats.code_words import in_order
from lutlab.formats.uniform import PackedUniform
from lutlab.formats.uniform_second_order import PackedUniformSecondOrder
from lutlab.kernels import ran
from lutlab.kernels.codegen import library
from lutlab.kernels.codegen.isa import Isa, detect
from lutlab.kernels.contract import Packed
from lutlab.kernels.cpu.overflow import mend
from lutlab.kernels.cpu.rows import row_blocks
from lutlab.kernels.cpu.rows.row_blocks import PANEL_COLUMNS, ROWS, Geometry, blocks_of
from lutlab.kernels.numbered import DTYPES

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11, for type checkers only


EXACT = "exact"  # what tables hold, where nobody asks for less
C_NAMES = {torch.float16: "f16", torch.float32: "f32", torch.int16: "i16", torch.uint8: "u8"}
BATCH = 64  # rows of x that share one reading of the weights
# Rows of x from which on all of W is dequantized and torch multiplies. That is no longer faster: today's kernels are
# ahead up to 1,024 rows and more (AVX2, bench_prefill.py's way `whole`). It stays, since the two ways round
# differently: another number would change the last bits of published perplexities.
DENSE_ROWS = 768
THREAD_BYTES = 2**18  # of weights that a thread is worth starting for, about 25 us
# How far ahead the stream is fetched, by instruction set ("": all others); rows_tuning.py finds better ones.
PREFETCH_BYTES = {"avx512": 8192, "": 4096}


class Part(ctypes.Structure):
    """The C struct part of kernels/cpu/rows/parts.h: a stream of blocks; a call takes several of one geometry."""

    _fields_ = (("stream", ctypes.c_void_p), ("blocks", ctypes.c_long))


@dataclass(frozen=True, kw_only=True)
class RowsWeight(ABC, Generic[Packed]):
    """A weight [N, K] in blocks of rows; without a stream it only says what there is to build.

    bits: planes, or of a code; order: of columns, as the stored form has it; stream: [bytes] uint8; prefetch_bytes: how
    far ahead of its use the stream is fetched, by instruction set ("": all others); grids: scale_step, scale_zero and
    scale_bits of coefficients of second order.
    """

    shape: tuple[int, int]
    bits: int
    group_size: int
    panel_columns: int = PANEL_COLUMNS
    order: torch.Tensor | None = None
    prefetch_bytes: ClassVar[dict[str, int]] = PREFETCH_BYTES
    stream: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    grids: tuple[torch.Tensor, torch.Tensor, int] | None = None

    @abstractmethod
    def filled(self, stored: Packed) -> Self:
        """The same with the stream of a weight.

        Raises:
            LutlabError: a scale is inf or nan.
        """

    @abstractmethod
    def stored(self) -> Packed:
        """The inverse of filled, bit for bit."""

    def stored_codes(
        self, codes: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor
    ) -> PackedUniform | PackedUniformSecondOrder:
        """The stored form of uniform codes; shift: offsets, or zero points, which are integers."""
        q, g, order = self.bits, self.group_size, self.order
        if self.grids is not None:
            step, zeros, bits = self.grids
            few = (scale.unsqueeze(0), step, zeros, shift.to(torch.int16))
            return PackedUniformSecondOrder.pack(
                UniformSecondOrderTensor(codes, *few, q, g, bits, order)
            )
        zero, offset = (shift, None) if shift.dtype == torch.int16 else (None, shift)
        return PackedUniform.pack(UniformTensor(codes, scale, zero, q, g, order, offset))

    def with_grids(self, step: torch.Tensor, zero: torch.Tensor, bits: int) -> Self:
        """The same with grids [P, N] behind all units: of each block and coefficient 32 steps, then 32 step * zero."""
        first = (step.float() * zero).half()  # exact, of 11 significant bits
        by_row = row_blocks.lanes(torch.stack((step, first), dim=1).permute(2, 0, 1), len(step[0]))
        behind = in_order(by_row.permute(0, 2, 3, 1)).view(torch.uint8).flatten()
        return replace(self, grids=(step, zero, bits), stream=torch.cat((self.stream, behind)))

    @abstractmethod
    def source(self, isa: Isa, tables: str = EXACT) -> tuple[str, str, str]:
        """C source of the kernel, a name for its library, and the variant's for a record.

        Raises:
            LutlabError: there is none for this layout, instruction set and these tables, which an operation names.
        """

    def instructions(self) -> Isa:
        """The instruction set of this CPU in which the kernel is fastest."""
        return detect()

    @property
    def word_columns(self) -> int:
        """Columns of a word of 32 bits."""
        return 32

    @cached_property
    def geometry(self) -> Geometry:
        """Places of the columns in the stream."""
        return row_blocks.geometry(
            self.shape[1], self.group_size, self.word_columns, self.panel_columns
        )

    @property
    def columns(self) -> int:
        """Number of stored columns, padding included."""
        return self.geometry.columns

    @property
    def places(self) -> tuple[int, ...]:
        """The C struct columns of kernels/cpu/rows/activations.h, or what a kernel of its own has instead.

        Raises:
            LutlabError: no kernel takes the group size.
        """
        geo = self.geometry
        return geo.in_features, geo.units, geo.unit_words, geo.panel_units

    @cached_property
    def channels(self) -> torch.Tensor | None:
        """[columns] int32: the input channel of each stored column, -1 for padding; None: they are in order."""
        return row_blocks.channels(self.geometry, self.order)

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """All tensors that it holds."""
        tensors = (self.stream, self.order, self.channels, *(self.grids or ())[:2])
        return tuple(tensor for tensor in tensors if tensor is not None)

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32, as the stored form has it."""
        return self.stored().dequantize()


@dataclass(frozen=True)
class Kernel:
    """A built library for one kind of weight, and what a record says of it."""

    library: ctypes.CDLL
    variant: str
    isa: str
    prefetch_bytes: int

    def __post_init__(self) -> None:
        """Tell ctypes the arguments of kernels/cpu/rows/gemv.h, which is faster than wrapping each in every call."""
        pointer, long, integer = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
        self.library.gemv.argtypes = [
            *(pointer, long, long, pointer, long, pointer, pointer),
            *(pointer, long, pointer, long, integer),
        ]
        self.library.dequantize.argtypes = [pointer, pointer, pointer, long, pointer, integer]

    def describe(self, threads: int | None = None) -> str:
        """Variant, instruction set and the most threads that a call uses, for a record."""
        return f"{self.variant}, {self.isa}, {self.threads(threads)} threads"

    def threads(self, threads: int | None = None) -> int:
        """Number of threads of a call. Raises LutlabError: a number below one."""
        count = torch.get_num_threads() if threads is None else threads
        if count < 1:
            raise LutlabError(f"{count} threads: give 1 or more, or None for torch's number")
        return count if getattr(self.library, "openmp", True) else 1

    def gemv(
        self,
        x: torch.Tensor,
        packed: RowsWeight,
        threads: int | None = None,
    ) -> torch.Tensor:
        """The product x [..., K] -> y [..., N] in x's dtype.

        Args:
            x: float16, bfloat16 or float32 on the CPU, any strides.
            packed: the weight this kernel was made for.
            threads: number of threads; None: torch.get_num_threads(), fewer for a weight so small that starting them
                would cost more.

        Raises:
            LutlabError: dtype, shape or device is not as above.
        """
        rows, in_features = packed.shape
        check_input(x, in_features)
        plain = x.dtype == torch.float32 and x.is_contiguous()
        m, inputs = x.numel() // in_features, x if plain else x.float().contiguous()
        padded, channels = blocks_of(rows) * ROWS, packed.channels
        y = torch.empty(m, padded)
        scratch = torch.empty(min(m, BATCH), packed.columns)
        if threads is None:
            work = packed.stream.numel() * m
            used = min(self.threads(), max(1, work // THREAD_BYTES))
        else:
            used = self.threads(threads)
        finite = self.library.gemv(
            inputs.data_ptr(),
            in_features,
            m,
            ctypes.byref(Part(packed.stream.data_ptr(), padded // ROWS)),
            1,
            longs(packed.places),
            None if channels is None else channels.data_ptr(),
            y.data_ptr(),
            padded,
            scratch.data_ptr(),
            self.prefetch_bytes,
            used,
        )
        if not finite:
            flat = x.reshape(m, in_features)
            if mend(y[:, :rows], flat, self.dense(packed, threads=threads)):
                ran.note(
                    f"dequantize for rows that overflow ({self.describe(threads)}), torch matmul"
                )
        return y[:, :rows].reshape(*x.shape[:-1], rows).to(x.dtype)

    def dense(
        self,
        packed: RowsWeight,
        out: torch.Tensor | None = None,
        threads: int | None = None,
    ) -> torch.Tensor:
        """W [N, K] float32, for a product with many rows of x; into `out` where that is given.

        The float32 nearest to each weight, as packed.dequantize() gives it: a rest beside every float32 sum stands
        for that one's float64.

        Raises:
            LutlabError: out is not a contiguous float32 [N, K].
        """
        if out is None:
            out = torch.empty(packed.shape)
        elif (tuple(out.shape), out.dtype) != (
            packed.shape,
            torch.float32,
        ) or not out.is_contiguous():
            raise LutlabError(
                f"out is {out.dtype} {tuple(out.shape)}: expected a contiguous float32 {packed.shape}"
            )
        channels = packed.channels
        self.library.dequantize(
            packed.stream.data_ptr(),
            longs(packed.places),
            None if channels is None else channels.data_ptr(),
            packed.shape[0],
            out.data_ptr(),
            self.threads(threads),
        )
        return out


def kernel(weight: RowsWeight, isa: Isa | None = None, tables: str = EXACT) -> Kernel:
    """The kernel for a weight, built now or before; isa: None: the best.

    Raises:
        NoCompiler: there is no C compiler.
        LutlabError: no kernel takes the group size, or the weight is not packed for these tables and instructions.
    """
    isa = isa or weight.instructions()
    text, name, variant = weight.source(isa, tables)
    ahead = weight.prefetch_bytes.get(isa.name, weight.prefetch_bytes[""])
    return Kernel(_library(text, name, isa), variant, isa.name, ahead)


@functools.cache
def _library(text: str, name: str, isa: Isa) -> ctypes.CDLL:
    """Once a process, with a compiler or without: launches ask whether they are of one library."""
    return library.load(text, name, isa)


def check_input(x: torch.Tensor, in_features: int) -> None:
    """Raises LutlabError unless x is [..., K], of 16 or 32 bit floats, on the CPU."""
    if x.device.type != "cpu":
        raise LutlabError(f"x is on {x.device}: this kernel runs on the CPU; move x or the layer")
    if x.dtype not in DTYPES:
        raise LutlabError(f"x is {x.dtype}: expected float16, bfloat16 or float32")
    if x.dim() == 0 or x.shape[-1] != in_features:
        raise LutlabError(f"x has shape {tuple(x.shape)}: expected [..., K] with K = {in_features}")


@functools.cache
def longs(numbers: tuple[int, ...]) -> ctypes.Array[ctypes.c_long]:
    """A struct of nothing but longs."""
    return (ctypes.c_long * len(numbers))(*numbers)
