"""A variant of the kernel: from a case and a GPU to a plan, which is data that two executors run.

    Case, Gpu --Variant.plan--> Plan (source file, parameters, launches, workspace)
                                  ├ launcher.py                  CuPy on a GPU
                                  └ tests/kernels/gpu/plans.py       the same .cu as C++ on a CPU

No function of a variant touches a tensor or a driver, so that all of them are tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.groups import group_length
from lutlab.base.registry import register
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.code_words import in_order
from lutlab.formats.contract import Format
from lutlab.formats.uniform import PackedUniform

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11, for type checkers only

C_TYPES = {torch.float16: "__half", torch.bfloat16: "bfloat_t", torch.float32: "float"}


@dataclass(frozen=True)
class Weight:
    """A packed weight as a kernel reads it.

    buffers: by the names that plans use, None for one that is absent; order: [K] int32, stored column j is of input
    channel order[j]; None: channel j.
    """

    buffers: Mapping[str, torch.Tensor | None]
    shape: tuple[int, int]
    bits: int
    group_size: int
    order: torch.Tensor | None = None

    @property
    def uniform(self) -> bool:
        """Whether it has uniform codes with one scale a group."""
        return "scales" in self.buffers

    def buffer(self, name: str) -> torch.Tensor:
        """A buffer that every weight of the layout has."""
        tensor = self.buffers[name]
        assert tensor is not None  # as the caller's layout has it
        return tensor

    @property
    def alpha(self) -> torch.Tensor:
        """The scales, with zero points beside them where codes are uniform."""
        return self.buffer("scales" if self.uniform else "alpha")

    @property
    def offset(self) -> torch.Tensor | None:
        """Of binary codes."""
        return self.buffers.get("offset")

    def to(self, device: torch.device | str) -> Self:
        """The same weight on a device."""
        buffers = {name: b if b is None else b.to(device) for name, b in self.buffers.items()}
        order = None if self.order is None else self.order.to(device)
        return replace(self, buffers=buffers, order=order)


# ---- layouts of planes: each says where words and scales lie; an offset is one more scale ----

Move = Callable[[torch.Tensor], torch.Tensor]


def with_planes(stored: PackedBCQ, planes: torch.Tensor, place: Move, axis: int) -> Weight:
    """A weight in a layout of planes. An offset in float64 becomes float32.

    Args:
        stored: binary codes.
        planes: int32, as the layout has them.
        place: scales [q, N, G] -> as the layout has them.
        axis: axis of the planes among these, which an offset has not.
    """
    offset = stored.offset
    if offset is not None:
        narrow = offset.float() if offset.dtype == torch.float64 else offset
        offset = place(narrow.unsqueeze(0)).squeeze(axis)
    buffers = {"planes": planes, "alpha": place(stored.alpha), "offset": offset}
    return Weight(buffers, stored.shape, stored.bits, stored.group_size, stored.order)


def of_planes(weight: Weight, planes: torch.Tensor, back: Move, axis: int) -> PackedBCQ:
    """The inverse of with_planes, bit for bit where the offset is not float64; planes: [q, N, W]; back undoes place."""
    offset = weight.offset
    return PackedBCQ(
        planes=in_order(planes),
        alpha=in_order(back(weight.alpha)),
        offset=None if offset is None else in_order(back(offset.unsqueeze(axis))[0]),
        shape=weight.shape,
        group_size=weight.group_size,
        order=weight.order,
    )


def stride(rows: int) -> int:
    """Rows of a layout that has them side by side: N rounded up to 32.

    >>> stride(1), stride(33)
    (32, 64)
    """
    return -(-rows // 32) * 32


EXACT_IN_HALF = 2048  # integers up to here


def scales_and_zeros(packed: PackedUniform) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points [N, G], both in float16 where they are exact in it, else in float32."""
    scale, zero = packed.scale, packed.zero_point
    assert zero is not None  # a case with a float offset is not uniform, and refused
    small = bool((zero.abs() <= EXACT_IN_HALF).all())
    dtype = torch.float16 if small and scale.dtype == torch.float16 else torch.float32
    return scale.to(dtype), zero.to(dtype)


@dataclass(frozen=True)
class Gpu:
    """arch: as sm_90; sms: multiprocessors; block_shared, sm_shared: bytes of shared memory of a block, of an SM."""

    arch: str
    sms: int
    block_shared: int
    sm_shared: int


# One of each architecture that is tested, by its data sheet. A launch asks the device.
A100 = Gpu("sm_80", 108, 166_912, 167_936)
RTX_3090 = Gpu("sm_86", 82, 101_376, 102_400)
H200 = Gpu("sm_90", 132, 232_448, 233_472)
GPUS = (A100, RTX_3090, H200)
SM_REGISTERS = 65_536  # of all three
GRID_LIMIT = 65_535  # blocks in y and in z
LEAST_ARCH = 80


@dataclass(frozen=True)
class Sizes:
    """A product y[m, rows] = x[m, columns] W^T, of any operation."""

    m: int
    rows: int
    columns: int


@dataclass(frozen=True)
class Case(Sizes):
    """A product of lut_gemv: all that a plan depends on, beside the GPU and the knobs.

    uniform: the weight is a uniform code with one scale a group, Eq. 5.
    """

    bits: int
    group_size: int
    x: torch.dtype  # of x and y
    alpha: torch.dtype
    offset: torch.dtype | None
    uniform: bool = False

    @property
    def group(self) -> int:
        """Columns of a full group."""
        return group_length(self.group_size, self.columns)

    @property
    def whole_words(self) -> bool:
        """Whether every group begins with a word of 32 columns."""
        return self.group % 32 == 0 or self.group == self.columns

    @property
    def types(self) -> dict[str, int | str]:
        """Parameters that most kernels have."""
        return {
            "X_TYPE": C_TYPES[self.x],
            "ALPHA_TYPE": C_TYPES[self.alpha],
            "OFFSET_TYPE": C_TYPES.get(self.offset or torch.float32, "float"),
            "HAS_OFFSET": int(self.offset is not None),
        }


def case(weight: Weight | PackedBCQ | PackedUniform, x: torch.dtype, m: int = 1) -> Case:
    """The case of a weight, packed for a kernel or not, for m rows of x.

    Raises:
        LutlabError: x is not float16, bfloat16 or float32.
    """
    if x not in C_TYPES:
        raise LutlabError(
            f"x is {x}: the GPU kernels take float16, bfloat16 and float32; convert it"
        )
    rows, columns = weight.shape
    offset = None if weight.offset is None else weight.offset.dtype
    if isinstance(weight, PackedUniform):  # its planes, where a variant takes those, have an offset
        alpha, uniform = weight.scale.dtype, offset is None
        offset = torch.float32
    else:
        alpha, uniform = weight.alpha.dtype, weight.uniform
    if offset == torch.float64:
        offset = torch.float32  # as layouts store it
    return Case(m, rows, columns, weight.bits, weight.group_size, x, alpha, offset, uniform)


@dataclass(frozen=True)
class Step:
    """One launch. arguments: names of buffers (the weight's, the workspace's, "x", "y") are pointers, ints are ints."""

    function: str
    grid: tuple[int, int, int]
    block: int
    arguments: tuple[str | int, ...]
    shared: int = 0  # bytes of dynamic shared memory


@dataclass(frozen=True)
class Plan:
    """Launches and memory of a case.

    file: below kernels/cuda; parameters: its #defines; steps: launches, in order; workspace, zeroed: bytes of buffers
    that a product keeps, by name, the latter zero before the first launch and left so by each; zero_y: y is zeroed
    before them; blocks_per_sm: blocks of the last step that shall share an SM, for which registers and shared memory
    must suffice.
    """

    file: str
    parameters: Mapping[str, int | str]
    steps: tuple[Step, ...]
    workspace: Mapping[str, int] = field(default_factory=dict)
    zeroed: Mapping[str, int] = field(default_factory=dict)
    zero_y: bool = False
    blocks_per_sm: int = 1


Knobs = Mapping[str, Any]  # as a row has them: `refuses` says which numbers and words are none


@dataclass(frozen=True)
class Variant:
    """One kernel: its source, parameters, limits and plan.

    name: as `paper`; short: for the command line, as `r0`, or none; rank: its place among those of equally many
    readings, 0: never chosen; idea: half a sentence for tables; knobs: what may be swept, with defaults; pack: from
    binary codes, or, with `codes`, from uniform ones; unpack: its inverse, or None where that takes far more memory
    than the weight; refuses: why it cannot take a case with these knobs, a sentence with a cure, or None; plan: how
    it runs one; deterministic: whether y is the same to the last bit in every run; batch:
    rows of x that take, by the model, hardly longer than one reading of the weights, of a case with many; op: the
    operation that it is a variant of, whose cases and stored weights its functions take; case: of a weight and a dtype
    and rows of x.
    """

    name: str
    idea: str
    knobs: Knobs
    pack: Callable[[Any], Weight]
    refuses: Callable[[Any, Knobs], str | None]
    plan: Callable[[Any, Gpu, Knobs], Plan]
    deterministic: bool = True
    batch: Callable[[Any], int] = lambda case: 1
    codes: bool = False
    unpack: Callable[[Weight], Any] | None = None
    op: str = "lut_gemv"
    case: Callable[..., Sizes] = case
    short: str = ""
    rank: int = 0

    def packed(self, weight: Format) -> Weight:
        """A weight that it takes, as it reads it; planes are those of Eq. 5 where the weight is uniform."""
        if isinstance(weight, PackedUniform) and not self.codes:
            weight = weight.to_bcq()
        return self.pack(weight)

    def readings(self, case: Sizes) -> int:
        """Time of all rows of x, in readings of the weights."""
        return -(-case.m // self.batch(case))

    def with_knobs(self, changes: Knobs) -> dict[str, Any]:
        """The defaults, changed by some knobs.

        Raises:
            LutlabError: it has no such knob.
        """
        for name in changes:
            if name not in self.knobs:
                raise LutlabError(f"{self.name} has no knob '{name}': {nearest(name, self.knobs)}")
        return {**self.knobs, **changes}

    def why_not(self, case: Sizes, gpu: Gpu, changes: Knobs | None = None) -> str | None:
        """Reason for not running a case on a GPU, or None."""
        if int(gpu.arch[3:].rstrip("af")) < LEAST_ARCH:
            return f"the GPU is {gpu.arch}: {self.name} needs sm_{LEAST_ARCH} or newer"
        knobs = self.with_knobs(changes or {})
        if why := self.refuses(case, knobs):
            return why
        steps = self.plan(case, gpu, knobs).steps
        if max(n for step in steps for n in step.grid[1:]) > GRID_LIMIT:
            return (
                f"{self.name} would launch {steps[-1].grid} blocks for {case.m} rows of x and K={case.columns}, CUDA "
                f"takes {GRID_LIMIT} in y and z: multiply fewer rows at a time, or take longer groups or tiles"
            )
        shared = max(step.shared for step in steps)
        if shared > gpu.block_shared:
            return (
                f"{self.name} with {knobs} needs {shared} bytes of shared memory a block, {gpu.arch} has "
                f"{gpu.block_shared}: choose a smaller table or slice"
            )
        return None

    def plan_for(self, case: Sizes, gpu: Gpu, changes: Knobs | None = None) -> Plan:
        """The plan, or why there is none.

        Raises:
            LutlabError: it cannot run this case here.
        """
        if why := self.why_not(case, gpu, changes):
            raise LutlabError(why)
        return self.plan(case, gpu, self.with_knobs(changes or {}))


def declare(variant: Variant) -> Variant:
    """Register a variant of its operation by its name; returns it."""
    return register(variant.op, variant.name)(variant)
