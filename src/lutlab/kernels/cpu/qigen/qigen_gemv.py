"""QIGen's matrix-vector product on this CPU: parameters, packing, launch (QIGen section 3).

    y[m, n] = sum_k x[m, k] s[j, n] (codes[n, k] - z[j, n]),  j = k // g       x [M, K], y [M, N], float32 both

    packed = prepare(tensor)         # Algorithm 4: m_u, t_u as searched, m_b, t_b by integer programming; packs
    y = gemv(x, packed)              # generates and compiles on first use; sums of x are shared by all outputs

Rows of x are taken one after the other on a block that lies in the cache: the paper's case is M = 1. The sums are
float32 (Eq. 1 and 2): where x has a mean far from zero, the sum of x codes and z sum of x cancel, and with a single
scale a column an output's error is that of its two large terms. Rows of x whose sums overflow or that have NaN or inf
are multiplied by the dequantized weight (overflow.py). AVX2 where the CPU has it, also under AVX-512; else portable C.

The sizes of a layer, m_b and t_b are arguments of the generated function, as in the authors' released module: a source
serves every layer of a model. The authors' notation is kept: x [m], y [t]; m_u input channels are unpacked at a time
into m_u t_u registers, t_u registers accumulate eight outputs each.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.groups import group_length
from lutlab.base.kept import findings
from lutlab.base.lazy import torch
from lutlab.base.tensors import UniformTensor
from lutlab.kernels.codegen import library
from lutlab.kernels.codegen.isa import Isa, detect, features
from lutlab.kernels.codegen.templates import render
from lutlab.kernels.cpu.overflow import mend
from lutlab.kernels.cpu.qigen import qigen_blocks, qigen_model
from lutlab.kernels.cpu.qigen.qigen_blocks import LANES, UNIT, Blocks, PackedQIGen

log = logging.getLogger(__name__)
# ---- the source ----

# Vector registers of AVX and AVX2, the eta of Eq. 4.
REGISTERS = 16


@dataclass(frozen=True)
class MicroKernel:
    """m_u: input channels unpacked at a time; t_u: accumulators of eight outputs."""

    m_u: int
    t_u: int

    @property
    def registers(self) -> int:
        """Left side of Eq. 4: x, W and y of a step."""
        return self.m_u + self.m_u * self.t_u + self.t_u


def micro_kernels(bits: int, registers: int = REGISTERS) -> tuple[MicroKernel, ...]:
    """Every micro kernel within Eq. 4 whose m_u divides a unit: what the empirical search chooses from.

    >>> [(k.m_u, k.t_u) for k in micro_kernels(4, registers=8)]
    [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    """
    divisors = [m for m in range(1, UNIT[bits] + 1) if UNIT[bits] % m == 0]
    every = (MicroKernel(m, t) for m in divisors for t in range(1, registers))
    return tuple(kernel for kernel in every if kernel.registers <= registers)


def groups_in_unit(bits: int, group_size: int, in_features: int) -> int:
    """Groups in a unit, for the source: 0, one scale a column; 1, groups of whole units; else their count."""
    length = group_length(group_size, in_features)
    if length >= in_features:
        return 0
    return max(1, UNIT[bits] // length)


def source(bits: int, groups: int, kernel: MicroKernel, lanes: str) -> str:
    """C source of `qigen_gemv` (its arguments are in kernels/cpu/qigen/gemv.c).

    groups: from `groups_in_unit`; kernel: within Eq. 4 or not: a larger one spills registers; lanes: `avx2` or
    `portable`.

    Raises:
        LutlabError: m_u does not divide a unit.
    """
    if kernel.t_u < 1 or kernel.m_u < 1 or UNIT[bits] % kernel.m_u:
        raise LutlabError(
            f"{kernel} for q={bits}: m_u must divide the {UNIT[bits]} values that are unpacked "
            "together, and t_u be at least 1"
        )
    return render(
        "qigen/gemv.c",
        bits=bits,
        m_u=kernel.m_u,
        t_u=kernel.t_u,
        groups_in_unit=groups,
        lanes=lanes,
    )


# ---- its parameters, packing, launch ----

# For a machine that has not been searched. The authors' own is m_u = 2, t_u = 4: as fast in most cases, but gcc spills
# registers in its 2-bit form with a scale a column.
DEFAULT = MicroKernel(m_u=1, t_u=4)
# Search: a layer of 2^20 weights, in the second-level cache or near it; the fastest of so many runs counts.
_SEARCH_SIDE = 1024
_SEARCH_RUNS = 30
# Where y is among the kernel's buffers.
_OUT = 5


def prepare(tensor: UniformTensor, blocks: Blocks | None = None) -> PackedQIGen:
    """Pack a uniform weight for this machine; `blocks` overrides what the model finds.

    Raises:
        LutlabError: bits or group size that QIGen has no kernel for.
    """
    rows, in_features = tensor.codes.shape
    if blocks is None:
        blocks = parameters((rows, in_features), tensor.bits, tensor.group_size)[0]
    return qigen_blocks.pack(tensor, blocks)


def parameters(
    shape: tuple[int, int],
    bits: int,
    group_size: int,
    kernel: MicroKernel | None = None,
    cores: int | None = None,
) -> tuple[Blocks, bool]:
    """Algorithm 4, steps 1 to 3, for a layer [N, K]; and whether m_u, t_u were measured here, or are DEFAULT.

    kernel: m_u, t_u; None takes those of `search` on this machine, or DEFAULT; cores: number of cores that share the
    outputs; None takes torch's threads.

    Raises:
        LutlabError: bits or group size that QIGen has no kernel for.
    """
    qigen_blocks.check_groups(bits, group_size, shape[1])
    measured = kernel or _searched().get(bits)
    kernel = measured or DEFAULT
    gamma = 8 * qigen_model.caches()["l1"]
    strip, cores = LANES * kernel.t_u, cores or torch.get_num_threads()
    options = qigen_model.candidates(shape[0], strip, cores)
    m_b, t_b = qigen_model.cache_blocks(
        shape[1], tuple(options), qigen_blocks.step(bits, group_size, shape[1]), bits, gamma
    )
    panel = options[-1] // t_b  # the largest candidate is a core's share
    blocks, taken = (
        Blocks(m_b, t_b, kernel.m_u, kernel.t_u, panel),
        qigen_model.footprint(m_b, t_b, bits),
    )
    log.info(
        "QIGen q=%d g=%d [%d, %d]: %s, %d of %d bits of L1%s",
        bits, group_size, *shape, blocks, taken, gamma, "" if measured else "; m_u, t_u not searched here",
    )  # fmt: skip
    return blocks, measured is not None


def gemv(x: torch.Tensor, packed: PackedQIGen, threads: int | None = None) -> torch.Tensor:
    """Multiply: x W^T.

    Args:
        x: [..., K] float32 on the CPU; a copy is made where it is not contiguous.
        packed: the weight, made by `prepare`.
        threads: number of threads; None takes torch's.

    Returns:
        [..., N] float32.

    Raises:
        LutlabError: dtype, shape or device is another one.
        NoCompiler: there is no C compiler.
    """
    _check(x, packed, threads)
    in_features = packed.shape[1]
    x = x.detach()
    flat = (x if packed.order is None else x[..., packed.order.long()]).reshape(-1, in_features)
    buffers, sizes = _arguments(flat, packed, threads or torch.get_num_threads())
    form = groups_in_unit(packed.bits, packed.group_size, in_features)
    kernel = MicroKernel(packed.blocks.m_u, packed.blocks.t_u)
    launch = _function(packed.bits, form, kernel, instructions())
    finite = launch(*(buffer.data_ptr() for buffer in buffers), *sizes)
    rows = packed.shape[0]
    y = buffers[_OUT][:, :rows].contiguous()
    if not finite:
        mend(y, x.reshape(-1, in_features), packed.dequantize())
    return y.view(*x.shape[:-1], rows)


def _arguments(
    flat: torch.Tensor, packed: PackedQIGen, threads: int
) -> tuple[list[torch.Tensor], list[int]]:
    """Buffers and sizes as kernels/cpu/qigen/gemv.c lists them; flat is x as [M, K]."""
    in_features, blocks = packed.shape[1], packed.blocks
    n_size, k_size = size = qigen_blocks.padded(packed.shape, packed.bits, blocks.t_u)
    flat = torch.nn.functional.pad(flat, (0, k_size - in_features)).contiguous()
    tokens, groups = len(flat), len(packed.scale)
    sums, out = torch.empty(tokens, groups), torch.empty(tokens, n_size)
    places, panels = _tables(size, packed.bits, blocks)
    length = group_length(packed.group_size, in_features)
    panel_outputs = blocks.t_b * blocks.panel
    return (
        [flat, packed.words, packed.scale, packed.zero, sums, out, places, panels],
        [len(panels) - 1, tokens, k_size, n_size, length, groups, blocks.m_b, blocks.t_b, panel_outputs, threads],
    )  # fmt: skip


def variant(packed: PackedQIGen, threads: int | None = None) -> str:
    """Name of the kernel that `gemv` runs, for a record."""
    cut = " ".join(f"{name}={value}" for name, value in asdict(packed.blocks).items())
    return (
        f"qigen q{packed.bits} g{packed.group_size} {cut}, {instructions().name}, "
        f"{threads or torch.get_num_threads()} threads"
    )


def instructions() -> Isa:
    """Instruction set: AVX2 where it runs, also on CPUs with AVX-512, else plain C; LUTLAB_ISA overrides it."""
    return detect(without="avx512")


def search(bits: int) -> dict[MicroKernel, float]:
    """Algorithm 4, step 2: time every micro kernel within Eq. 4 on this machine and keep the fastest.

    One thread, groups of 128. The choice is written beside the compiled libraries, where `parameters` finds it.

    Returns:
        Nanoseconds a weight of each.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, _SEARCH_SIDE, generator=generator)
    runs = {}
    for kernel in micro_kernels(bits):
        rows = _SEARCH_SIDE // (LANES * kernel.t_u) * LANES * kernel.t_u
        codes = torch.randint(0, 2**bits, (rows, _SEARCH_SIDE), generator=generator).byte()
        groups = _SEARCH_SIDE // 128
        zero = torch.full((rows, groups), 2 ** (bits - 1), dtype=torch.int16)
        tensor = UniformTensor(codes, torch.ones(rows, groups), zero, bits, 128)
        cut = parameters((rows, _SEARCH_SIDE), bits, 128, kernel, cores=1)[0]
        packed = prepare(tensor, cut)
        runs[kernel] = (functools.partial(gemv, x, packed, 1), codes.numel())
    times = {kernel: _seconds(run) for kernel, (run, _) in runs.items()}  # compiles, warms up
    for _ in range(_SEARCH_RUNS):  # all in turn: what else the machine does meets each of them
        for kernel, (run, _) in runs.items():
            times[kernel] = min(times[kernel], _seconds(run))
    times = {kernel: times[kernel] / weights * 1e9 for kernel, (_, weights) in runs.items()}
    best = min(times, key=times.__getitem__)
    log.info("QIGen q=%d: %s is the fastest, %.4f ns a weight", bits, best, times[best])
    findings.keep(
        _parameter_file(), lambda: decisions(qigen_blocks.UNIT) | {str(bits): asdict(best)}
    )
    return times


def decisions(bits: Collection[float]) -> dict[str, dict[str, int]]:
    """Findings of `search` for this machine at some bits, part of the ids of QIGen's speeds; {} without a search."""
    return {str(q): asdict(kernel) for q, kernel in _searched().items() if q in bits}


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _parameter_file() -> Path:
    """File of this CPU's parameters: home folders may be shared between machines."""
    machine = json.dumps([sorted(features()), qigen_model.caches()])
    digest = hashlib.sha256(machine.encode()).hexdigest()[:16]
    return library.cache_folder() / f"qigen-{instructions().name}-{digest}.sealed"


def _searched() -> dict[int, MicroKernel]:
    """Micro kernels that `search` kept for this machine, by bits."""
    return findings.kept(_parameter_file(), _checked, {})


def _checked(searched: dict[str, Any]) -> dict[int, MicroKernel]:
    """Raises ValueError or the like: none of the micro kernels that are searched."""
    kernels = {int(bits): MicroKernel(**kernel) for bits, kernel in searched.items()}
    for bits, kernel in kernels.items():
        if kernel not in micro_kernels(bits):
            raise ValueError(f"q={bits}: {kernel} is none of those that are searched")
    return kernels


def _check(x: torch.Tensor, packed: PackedQIGen, threads: int | None) -> None:
    rows, in_features = packed.shape
    if x.dtype != torch.float32:
        raise LutlabError(
            f"QIGen multiplies float32 activations, these are {x.dtype}: pass x.float()"
        )
    if x.dim() == 0 or x.shape[-1] != in_features:
        raise LutlabError(
            f"activations of shape {tuple(x.shape)} for a weight [{rows}, {in_features}]: the last "
            f"axis must be {in_features}"
        )
    if x.device.type != "cpu" or packed.words.device.type != "cpu":
        raise LutlabError(
            f"QIGen runs on the CPU; x is on {x.device}, the weight on {packed.words.device}: move both there"
        )
    if threads is not None and threads < 1:
        raise LutlabError(f"threads={threads}: give at least 1, or None for torch's")


@functools.lru_cache(maxsize=256)
def _tables(size: tuple[int, int], bits: int, blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor]:
    """The schedule as the kernel reads it: [B, 3] and [P + 1] int64."""
    order, panels = qigen_blocks.schedule(size, bits, blocks)
    return torch.tensor(order, dtype=torch.int64), torch.tensor(panels, dtype=torch.int64)


@functools.cache
def _function(bits: int, groups: int, kernel: MicroKernel, isa: Isa) -> Callable[..., None]:
    text = source(bits, groups, kernel, "avx2" if isa.name == "avx2" else "portable")
    function = library.load(text, f"qigen-q{bits}", isa).qigen_gemv
    function.restype = ctypes.c_int
    function.argtypes = [*[ctypes.c_void_p] * 8, *[ctypes.c_int64] * 9, ctypes.c_int]
    return function
