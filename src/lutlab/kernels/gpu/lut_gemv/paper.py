"""paper (r0): the papers' kernel, the baseline of record. mu, l and t_h are knobs, as they are in the papers.

LUT-GEMM v3 section 3.3 and nuQmm section IV: l tables of 2^mu entries a thread block, t_h rows, arithmetic in the dtype
of x, atomicAdd into y. Unlike the authors' code it takes any K, N, g and q: a tile of columns never leaves its group.
"""

from __future__ import annotations

import torch

from lutlab.formats import lut_gemm
from lutlab.kernels.gpu.lut_gemv.variant import Case, Gpu, Knobs, Plan, Step, Variant

FILE = "lut_gemv/paper.cu"


def refuses(case: Case, knobs: Knobs) -> str | None:
    """See Variant."""
    mu, luts, rows, threads = (knobs[name] for name in ("mu", "luts", "rows", "threads"))
    if case.x == torch.bfloat16:
        return (
            "x is torch.bfloat16: paper computes in the dtype of x, as the papers do in float16; convert x to "
            "float16 or float32, or take lane_tables if groups are whole words"
        )
    if not 1 <= mu <= 8:
        return f"mu={mu}: a table has 2^mu entries, and mu is 1 to 8"
    if luts < 1 or rows < 2 or rows % 2:
        return f"luts={luts}, rows={rows}: give at least one table, and an even number of rows"
    if threads not in (32, 64, 128, 256, 512, 1024):
        return f"threads={threads}: give a power of two from 32 to 1024"
    table_bytes = luts * 2**mu * case.x.itemsize
    if table_bytes > 48 * 1024:
        return (
            f"{luts} tables of mu={mu} take {table_bytes} bytes, more than 48 KB: give fewer luts"
        )
    return None


def plan(case: Case, gpu: Gpu, knobs: Knobs) -> Plan:
    """See Variant. Tiles are cut so that none is longer than a group: fewer tables where groups are short."""
    mu = knobs["mu"]
    luts = min(knobs["luts"], -(-case.group // mu))
    tile = luts * mu
    stride = lut_gemm.stride(case.rows)
    groups = -(-case.columns // case.group)
    grid = (
        -(-case.rows // knobs["rows"]),
        groups * -(-case.group // tile),
        case.m,
    )
    arguments = ("planes", "alpha", "offset", "x", "y", case.rows, case.columns, stride)
    return Plan(
        file=FILE,
        parameters={
            "MU": mu,
            "LUTS": luts,
            "ROWS": knobs["rows"],
            "THREADS": knobs["threads"],
            "WHOLE_WORDS": int(case.whole_words and 32 % mu == 0 and tile % 32 == 0),
            **case.types,
        },
        steps=(
            Step("lut_gemv_paper", grid, knobs["threads"], (*arguments, case.bits, case.group)),
        ),
        zero_y=True,
        blocks_per_sm=1024 // knobs["threads"],
    )


VARIANT = Variant(
    name="paper",
    idea="LUT-GEMM as in the papers: tables in the dtype of x, atomicAdd",
    # LUT-GEMM: mu = 8, t_h = 2048 "is a practical number"; l = 4 or 8, a tile of 32 or 64 columns, in the authors' code
    knobs={"mu": 8, "luts": 8, "rows": 2048, "threads": 256},
    pack=lut_gemm.pack,
    unpack=lut_gemm.unpack,
    refuses=refuses,
    plan=plan,
    deterministic=False,
)
