"""paper (r0): the papers' kernel, the baseline of record. mu, l and t_h are knobs, as they are in the papers.

LUT-GEMM v3 section 3.3 and nuQmm section IV: l tables of 2^mu entries a thread block, t_h rows, arithmetic in the dtype
of x, atomicAdd into y. Unlike the authors' code it takes any K, N, g and q: a tile of columns never leaves its group.

The weight is in LUT-GEMM's own order, the words of neighbouring rows side by side, as a warp reads them.
planes[w, b, n] holds the signs of columns 32 w .. 32 w + 31 of row n, bit k % 32; 1 is +alpha, 0 is -alpha:

                     row 0   row 1   ...   row N-1   padding to a multiple of 32 rows
    w = 0   b = 0    word    word    ...   word      0 ...
            b = 1    word    word    ...
    w = 1   b = 0    ...

    planes [W, q, S] int32, W = ceil(K / 32), S = N rounded up to 32;  alpha [G, q, S], offset [G, S] or None

A row of words begins at a multiple of 128 bytes. Padding holds zeros.
"""

from __future__ import annotations

import torch

from lutlab.formats.bcq import PackedBCQ
from lutlab.kernels.gpu.lut_gemv.variant import (
    Case,
    Gpu,
    Knobs,
    Plan,
    Step,
    Variant,
    Weight,
    declare,
    of_planes,
    stride,
    with_planes,
)

FILE = "lut_gemv/paper.cu"


def pack(packed: PackedBCQ) -> Weight:
    """From rows of words."""
    words = side_by_side(packed.planes)
    return with_planes(packed, words, side_by_side, 1)


def unpack(weight: Weight) -> PackedBCQ:
    """The inverse of pack, bit for bit where the offset is not float64."""
    rows = weight.shape[0]

    def back(values: torch.Tensor) -> torch.Tensor:
        return values[..., :rows].permute(1, 2, 0)

    return of_planes(weight, back(weight.buffer("planes")), back, 1)


def side_by_side(values: torch.Tensor) -> torch.Tensor:
    """[q, N, W or G] -> [W or G, q, S]."""
    turned = values.permute(2, 0, 1)
    out = turned.new_zeros(*turned.shape[:-1], stride(turned.shape[-1]))
    out[..., : turned.shape[-1]] = turned
    return out


def refuses(case: Case, knobs: Knobs) -> str | None:
    """Tables and blocks without a kernel, and x in bfloat16."""
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
    """Tiles are cut so that none is longer than a group: fewer tables where groups are short."""
    mu = knobs["mu"]
    luts = min(knobs["luts"], -(-case.group // mu))
    tile = luts * mu
    groups = -(-case.columns // case.group)
    grid = (
        -(-case.rows // knobs["rows"]),
        groups * -(-case.group // tile),
        case.m,
    )
    arguments = ("planes", "alpha", "offset", "x", "y", case.rows, case.columns, stride(case.rows))
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


VARIANT = declare(
    Variant(
        name="paper",
        short="r0",
        rank=5,
        idea="LUT-GEMM as in the papers: tables in the dtype of x, atomicAdd",
        # LUT-GEMM: mu = 8, t_h = 2048 "is a practical number"; the authors' code has l = 4 or 8, tiles of 32 or 64
        knobs={"mu": 8, "luts": 8, "rows": 2048, "threads": 256},
        pack=pack,
        unpack=unpack,
        refuses=refuses,
        plan=plan,
        deterministic=False,
    )
)
