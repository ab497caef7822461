"""The knobs of the papers' kernel, and the additions that it takes by LUT-GEMM ICLR Eq. 2; torch is not needed.

    additions = C_build + C_read = ceil(N / t_h) tables 2^mu  +  q N tables,      tables = ceil(K / mu)

where groups are whole tables: a table never leaves its group. Every t_h rows build tables of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from lutlab.base.errors import LutlabError
from lutlab.base.groups import group_length

KNOBS = {"mu": 8, "luts": 8, "rows": 2048}  # as in the papers: mu = 8, l = 8, t_h = 2048
MOST_MU, TABLE_BYTES = 12, 2**20


def check(knobs: Mapping[str, int]) -> None:
    """Refuse knobs that the kernel has not, or not with these values.

    Raises:
        LutlabError: the message says which, and what to give.
    """
    if unknown := sorted(knobs.keys() - KNOBS):
        raise LutlabError(
            f"{unknown[0]} is a knob of the GPU's kernel: on a CPU kernel=paper has {', '.join(KNOBS)}"
        )
    for name, value in knobs.items():
        if type(value) is not int or value < 1 or (name == "mu" and value > MOST_MU):
            most = f" to {MOST_MU}" if name == "mu" else " or more"
            raise LutlabError(f"{name}={value}: give a whole number of 1{most}")
    every = KNOBS | dict(knobs)
    if (size := 4 * every["luts"] * 2 ** every["mu"]) > TABLE_BYTES:
        raise LutlabError(
            f"{every['luts']} tables of mu={every['mu']} take {size} bytes, more than 1 MiB: give fewer luts"
        )


def additions(shape: tuple[int, int], q: int, g: int, knobs: Mapping[str, int]) -> tuple[int, int]:
    """Additions that build tables, and those that read them, of one row of x: LUT-GEMM ICLR Eq. 2, counted.

    Args:
        shape: (N, K) of the weight.
        q: number of its planes.
        g: group size; a tile never leaves its group.
        knobs: mu, luts and rows, where they differ from the papers'.
    """
    every, (rows, columns) = KNOBS | dict(knobs), shape
    length, mu = group_length(g, columns), every["mu"]
    whole, rest = divmod(columns, length)
    tables = whole * -(-length // mu) + -(-rest // mu)
    return -(-rows // every["rows"]) * tables * 2**mu, q * rows * tables
