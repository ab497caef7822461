"""uniform_mma (r5): uniform codes, made halves in registers, times x on tensor cores; 16 rows cost little more than 1.

One scale a group in the place of q: 7 to 10 % fewer bytes than the same weight in BCQ. Codes and activations of 16 bits
are exact in a half (bfloat16, divided by a power of two, down to 2^-31 of its row's largest), sums are float32. A
block's bytes are those of its weights, of x and of its partial sums; the plan takes the slice that leaves the busiest
SM the least to move, slower where too few loads are under way.
"""

from __future__ import annotations

import torch

from lutlab.formats import tile_codes
from lutlab.groups import group_count
from lutlab.kernels.gpu.lut_gemv.variant import Case, Gpu, Knobs, Plan, Space, Step, Variant

FILE = "lut_gemv/uniform_mma.cu"
AUTO = 0
SLICES = (256, 512, 1024, 2048, 4096)
MOST_ROWS = 16  # of x in one pass over the weights
FLUSHES = (128, 64, 32)  # columns; a group is whole flushes
RESERVED = 1024  # bytes of shared memory that CUDA takes of each block
# Bytes that memory delivers to an SM while a block begins and ends (1.5 us on an H200), and that have to be under way
# for all of the bandwidth: by the model, not measured.
START, UNDER_WAY = 48 * 1024, 33 * 1024


def refuses(case: Case, knobs: Knobs) -> str | None:
    """See Variant."""
    warps, slice_ = knobs["warps"], knobs["slice"]
    if not case.uniform:
        return (
            "the weight has no uniform codes with one scale a group (Eq. 5): uniform_mma takes those, lane_tables any "
            "binary code"
        )
    if case.x == torch.float32:
        return "x is torch.float32: uniform_mma multiplies halves; convert x to float16 or bfloat16, or take bit_planes"
    if case.group % 32 and case.group != case.columns:
        return f"g={case.group_size}: uniform_mma takes groups that are multiples of 32, or one group; paper takes any"
    if warps not in (1, 2, 4, 8, 16):
        return f"warps={warps}: give 1, 2, 4, 8 or 16 warps a block"
    chunk = _chunk(case)
    if slice_ < 0 or slice_ % chunk:
        return f"slice={slice_}: give a multiple of {chunk} columns, or 0 for the plan's choice"
    return None


def plan(case: Case, gpu: Gpu, knobs: Knobs) -> Plan:
    """See Variant."""
    warps, tiles, flush = knobs["warps"], _tiles(case), _flush(case)
    blocks = _blocks_per_sm(case, warps)
    slice_ = knobs["slice"] or _slice(case, gpu, warps, blocks)
    chunks = -(-case.columns // _chunk(case))
    grid = (
        -(-case.rows // (tile_codes.TILE_ROWS * warps)),
        -(-chunks * _chunk(case) // slice_),
        -(-case.m // (8 * tiles)),
    )
    stride = grid[0] * warps * tile_codes.TILE_ROWS
    groups = group_count(case.group_size, case.columns)
    sizes = (case.rows, case.columns, case.m, chunks, groups)
    buffers = ("words", "scales", "x", "y", "partial", "arrived")
    return Plan(
        file=FILE,
        parameters={
            "BITS": case.bits,
            "UNITS": tile_codes.UNITS[case.bits],
            "FLUSH": flush,
            "GROUP": 0 if case.group == case.columns else case.group // flush,
            "SLICE": slice_,
            "TILES": tiles,
            "WARPS": warps,
            "BLOCKS": blocks,
            "X_TYPE": case.types["X_TYPE"],
            "SCALE_TYPE": case.types["ALPHA_TYPE"],
        },
        steps=(
            Step(
                "lut_gemv_uniform_mma",
                grid,
                32 * warps,
                (*buffers, *sizes),
                shared=_x_bytes(case, slice_),
            ),
        ),
        workspace={
            "partial": Space(case.m * grid[1] * stride * 4),
            "arrived": Space(grid[0] * grid[2] * 4, zeroed=True),
        },
        blocks_per_sm=blocks,
    )


def _chunk(case: Case) -> int:
    """Columns of a chunk."""
    return tile_codes.UNIT * tile_codes.UNITS[case.bits]


def _flush(case: Case) -> int:
    """Columns after which scales are applied; no more than a chunk has."""
    if case.group == case.columns:
        return FLUSHES[0]
    return next(flush for flush in FLUSHES if case.group % flush == 0)


def _blocks_per_sm(case: Case, warps: int) -> int:
    """24, 16 or 8 warps an SM, of 80, 128 or 255 registers a thread: what NVRTC compiles without spills, by trial."""
    scales = _chunk(case) // _flush(case) * case.alpha.itemsize
    load = 2 * case.bits * tile_codes.UNITS[case.bits] + 3 * scales + 28 * _tiles(case)
    most = 96 if _flush(case) == FLUSHES[0] else 127
    return max(1, (24 if load <= 72 else 16 if load <= most else 8) // warps)


def _tiles(case: Case) -> int:
    """Of 8 rows of x, in one pass over the weights."""
    return 1 if case.m <= 8 else 2


def _x_bytes(case: Case, slice_: int) -> int:
    """Dynamic shared memory: a slice of the rows of x of one pass."""
    return min(case.m, MOST_ROWS) * (slice_ + 32) * 2


def _slice(case: Case, gpu: Gpu, warps: int, blocks: int) -> int:
    """Columns of a block: the cheapest of those that leave shared memory for all blocks of an SM."""
    chunk, rows = _chunk(case), tile_codes.TILE_ROWS * warps
    whole = -(-case.columns // chunk) * chunk

    def fits(slice_: int) -> bool:
        of_row = slice_ // _flush(case) + (1 + warps) * (case.x == torch.bfloat16)  # totals, units
        bytes_ = _x_bytes(case, slice_) + 4 * of_row * MOST_ROWS + RESERVED
        return bytes_ * blocks <= gpu.sm_shared

    def cost(slice_: int) -> float:
        count = -(-case.rows // rows) * -(-case.columns // slice_)
        each, together = -(-count // gpu.sms), min(blocks, -(-count // gpu.sms))
        moved = rows * slice_ * case.bits / 8 + case.m * (2 * slice_ + 8 * rows)
        open_ = together * warps * chunk * tile_codes.TILE_ROWS * case.bits / 8
        return -(-each // blocks) * START + each * moved * max(1.0, UNDER_WAY / open_)

    return min(filter(fits, {min(s, whole) for s in SLICES if s % chunk == 0}), key=cost)


VARIANT = Variant(
    name="uniform_mma",
    idea="uniform codes as halves, tensor cores, 16 rows of x at once",
    knobs={"slice": AUTO, "warps": 8},
    pack=tile_codes.pack,
    codes=True,
    refuses=refuses,
    plan=plan,
    batch=lambda case: MOST_ROWS,
)
