"""QIGen's generator: bits, group size and the micro kernel's m_u, t_u -> C source (QIGen section 3, Algorithm 4).

The sizes of a layer, m_b and t_b are arguments of the generated function, as in the authors' released module: a source
serves every layer of a model. The authors' notation is kept: x [m], y [t]; m_u input channels are unpacked at a time
into m_u t_u registers, t_u registers accumulate eight outputs each.
"""

from __future__ import annotations

from dataclasses import dataclass

from lutlab.errors import LutlabError
from lutlab.groups import group_length
from lutlab.kernels.codegen.templates import render
from lutlab.kernels.cpu.qigen.qigen_blocks import UNIT

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

    Args:
        bits: 2, 3 or 4.
        groups: groups in a unit, from `groups_in_unit`.
        kernel: within Eq. 4 or not: a larger one spills registers.
        lanes: `avx2` or `portable`.

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
