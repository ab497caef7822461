"""float_sums (r1): paper.py with float32 sums, 16-byte loads, K in slices and no atomicAdd.

It is deterministic, and a graph needs no memset.

A block's cost in lookups of 8 weights is taken as (rows x slice x q / 8) for the product, 32 x slice for its tables and
8 x rows for the partial sums; the plan takes the slice and the rows whose busiest SM has least to do.

Tables are float32: rounded to half they alone take y off by about 2e-4, as much as the rounding of a float16 y does,
and both together by 3e-4, for 2.8 in the place of 3.2 wavefronts a lookup (knob table=half).
"""

from __future__ import annotations

from lutlab.formats import lut_gemm
from lutlab.kernels.gpu.lut_gemv.variant import (
    SM_REGISTERS,
    Case,
    Gpu,
    Knobs,
    Plan,
    Space,
    Step,
    Variant,
)

FILE = "lut_gemv/float_sums.cu"
SLICES = (256, 512, 768, 1024)
PASSES = (1, 2, 4)
AUTO = 0
REGISTERS = 64  # of a thread: what the loads under way need


def refuses(case: Case, knobs: Knobs) -> str | None:
    """See Variant."""
    mu, slice_, rows, threads, table = (
        knobs[name] for name in ("mu", "slice", "rows", "threads", "table")
    )
    if mu not in (1, 2, 4, 8):
        return f"mu={mu}: float_sums cuts a word of 32 weights into whole lookups, mu is 1, 2, 4 or 8; paper takes any"
    if slice_ < 0 or slice_ % 32:
        return f"slice={slice_}: give a multiple of 32 columns, or 0 for the plan's choice"
    if rows < 0 or rows % 4:
        return f"rows={rows}: give a multiple of 4 rows, or 0 for the plan's choice"
    if threads not in (32, 64, 128, 256, 512, 1024):
        return f"threads={threads}: give a power of two from 32 to 1024"
    if table not in ("half", "float"):
        return f"table={table}: entries of tables are half or float"
    if not case.whole_words:
        return f"g={case.group_size}: float_sums takes groups that are multiples of 32, or one group; paper takes any"
    return None


def plan(case: Case, gpu: Gpu, knobs: Knobs) -> Plan:
    """See Variant."""
    mu, threads = knobs["mu"], knobs["threads"]
    half = knobs["table"] == "half"
    entry_bytes = 2 if half else 4
    slice_, rows = _blocks(case, gpu, knobs, entry_bytes)
    stride = lut_gemm.stride(case.rows)
    grid = (-(-stride // rows), -(-case.columns // slice_), case.m)
    shared = slice_ // mu * 2**mu * entry_bytes
    static = 4 * slice_ + slice_ // 8 + 2048  # x, sums of words, what CUDA takes
    by_shared = gpu.sm_shared // (shared + static)
    blocks = max(1, min(by_shared, SM_REGISTERS // (REGISTERS * threads)))
    arguments = ("planes", "alpha", "offset", "x", "y", "partial", "arrived")
    return Plan(
        file=FILE,
        parameters={
            "BITS": case.bits,
            "MU": mu,
            "SLICE": slice_,
            "ROWS": rows,
            "THREADS": threads,
            "BLOCKS": blocks,
            "TABLE_TYPE": "__half" if half else "float",
            **case.types,
        },
        steps=(
            Step(
                "lut_gemv_float_sums",
                grid,
                threads,
                (*arguments, case.rows, case.columns, stride, case.group),
                shared=shared,
            ),
        ),
        workspace={
            "partial": Space(case.m * grid[1] * stride * 4),
            "arrived": Space(case.m * grid[0] * 4, zeroed=True),
        },
        blocks_per_sm=blocks,
    )


def _blocks(case: Case, gpu: Gpu, knobs: Knobs, entry_bytes: int) -> tuple[int, int]:
    """Columns and rows of a block: the knobs, or what gives the busiest SM least to do."""
    whole = -(-case.columns // 32) * 32
    slices = [knobs["slice"] or min(slice_, whole) for slice_ in SLICES]
    passes = [knobs["rows"] or 4 * knobs["threads"] * count for count in PASSES]
    sizes = [(slice_, rows) for slice_ in slices for rows in passes]
    lookup = 2 ** knobs["mu"] // knobs["mu"] * entry_bytes  # bytes of tables a column

    def busiest(size: tuple[int, int]) -> float:
        slice_, rows = size
        blocks = -(-case.rows // rows) * -(-case.columns // slice_) * case.m
        cost = slice_ * (rows * case.bits / 8 + 32) + 8 * rows
        return -(-blocks // gpu.sms) * cost

    fitting = [s for s in sizes if s[0] * (lookup + 4) + 1024 <= gpu.block_shared // 2]
    return min(fitting or sizes[:1], key=busiest)


VARIANT = Variant(
    name="float_sums",
    idea="float32 sums, 16-byte loads, slices of K, no atomics",
    knobs={"mu": 8, "slice": AUTO, "rows": AUTO, "threads": 256, "table": "float"},
    pack=lut_gemm.pack,
    unpack=lut_gemm.unpack,
    refuses=refuses,
    plan=plan,
)
