"""QIGen's performance model: the cache blocks m_b, t_b that fill the first-level cache, by integer programming.

    maximise  L = 32 m_b + b m_b t_b + 32 t_b   subject to   L <= gamma,  t_b mod 8 t_u = 0,  m_b mod m_u = 0     Eq. 5

gamma is the size of the L1 data cache in bits. The product m_b t_b is not linear. It becomes linear because t_b has few
candidates T_1 .. T_I, those that divide a core's share of the outputs (as the authors' generator demands): z_i in
{0, 1} chooses one of them, and m_i, a whole number of steps of s channels, is 0 unless z_i = 1. Then

    maximise  sum_i (32 + b T_i) s m_i + 32 T_i z_i   subject to   it <= gamma,  sum_i z_i = 1,  z_i <= m_i <= M z_i

is Eq. 5 exactly, and HiGHS (scipy.optimize.milp) solves it. A step s is a unit of the packed words, and a group where
scales are by group: both hold whole m_u.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np

from lutlab.base.errors import LutlabError

_SYSFS = Path("/sys/devices/system/cpu/cpu0/cache")
# Where the system does not say: what the smallest x86 and ARM cores of the last ten years have.
_FALLBACK = {1: 32 * 2**10, 2: 256 * 2**10, 3: 2 * 2**20}
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@functools.cache
def caches(folder: Path = _SYSFS) -> dict[str, Any]:
    """Bytes of the first core's data caches l1, l2, l3; origin: `sysfs`, or `assumed` for what that does not say."""
    stated = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size = (
                (index / name).read_text().strip() for name in ("type", "level", "size")
            )
            if kind != "Instruction":
                stated[int(level)] = int(size.rstrip("KMG")) * _UNITS.get(size[-1], 1)
        except (OSError, ValueError):  # an entry that says nothing counts as absent: `origin` tells
            continue
    origin = "sysfs" if stated.keys() >= _FALLBACK.keys() else "assumed"
    sizes = _FALLBACK | stated
    return {f"l{level}": sizes[level] for level in (1, 2, 3)} | {"origin": origin}


def footprint(m_b: int, t_b: int, bits: int) -> int:
    """Left side of Eq. 3 and 5, in bits: a block's part of x, its words, its part of y."""
    return 32 * m_b + bits * m_b * t_b + 32 * t_b


def candidates(outputs: int, strip: int, cores: int) -> list[int]:
    """t_b that are whole strips and divide a core's share of the outputs, which is rounded up to whole strips."""
    share = -(-outputs // (strip * cores))
    return [strip * d for d in range(1, share + 1) if share % d == 0]


@functools.lru_cache(maxsize=256)
def cache_blocks(
    in_features: int, t_candidates: tuple[int, ...], step: int, bits: int, gamma: int
) -> tuple[int, int]:
    """Choose cache blocks by solving Eq. 5.

    Args:
        in_features: K; m_b is at most K rounded up to a whole step.
        t_candidates: possible t_b, in outputs.
        step: s, what m_b is a multiple of.
        bits: b, of a weight.
        gamma: bits of the L1 data cache.

    Returns:
        m_b, t_b of an optimum; of several the solver's. Where not even the smallest block fits (a group longer than
        the cache is deep), that one.

    Raises:
        LutlabError: the solver fails.
    """
    from scipy.optimize import LinearConstraint, milp

    if footprint(step, min(t_candidates), bits) > gamma:
        return step, min(t_candidates)
    t = np.array([c for c in t_candidates if footprint(step, c, bits) <= gamma])
    most, count = -(-in_features // step), len(t)
    weight = np.concatenate([(32 + bits * t) * step, 32 * t])  # of m_1 .. m_I, z_1 .. z_I
    unit = math.gcd(*weight.tolist())  # small coefficients, small rounding errors in the solver
    chosen = np.concatenate([np.zeros(count), np.ones(count)])
    eye = np.eye(count)
    best = milp(
        -weight / unit,
        integrality=np.ones(2 * count),
        bounds=(0, np.concatenate([np.full(count, most), np.ones(count)])),
        constraints=[
            LinearConstraint(weight / unit, 0, gamma // unit),
            LinearConstraint(chosen, 1, 1),
            LinearConstraint(np.hstack([eye, -eye]), 0, np.inf),
            LinearConstraint(np.hstack([eye, -most * eye]), -np.inf, 0),
        ],
        options={"mip_rel_gap": 0},
    )
    if best.x is None:
        raise LutlabError(f"the solver found no blocks for {gamma} bits of cache: {best.message}")
    steps, picked = np.round(best.x[:count]).astype(int), best.x[count:].argmax()
    return int(steps[picked]) * step, int(t[picked])
