"""half_bits (r6): bits as halves where they stand, times up to 16 rows of x on tensor cores (sm_80 and newer).

    y[m, n] = sum over blocks of 128 columns of unit ( sum_b alpha[g, b, n] sum_k B_b[n, k] X[k] + z[g, n] sum_k X[k] )

X = x / unit as halves, unit a power of two of a row of x and a block. The bit of a weight, alone in a half, is a power
of two or zero, and x was divided by that power: nothing is decoded. A block of threads keeps its slice of x in shared
memory and takes several tiles of rows with it; K is cut into slices, whose partial sums the last block of the rows
adds in order: y is the same in every run.

Accuracy. X keeps 11 bits (a float32 x 22) down to 2^-17 of the largest of its row and block, and is wrong by 2^-29 of
that below; half_bits.cu says what tensor cores lose, kernels/README.md has the errors. A row of x with an inf or a nan
gives a y of nan. Sums below 2^-121 may be zero.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from lutlab.kernels.gpu.lut_gemv import binary_tiles
from lutlab.kernels.gpu.lut_gemv.variant import (
    Case,
    Gpu,
    Knobs,
    Plan,
    Step,
    Variant,
    declare,
)

FILE = "lut_gemv/half_bits.cu"
AUTO = 0
MOST_TILES = {1: 2, 2: 4, 4: 4}  # of 8 columns of tensor cores, by parts of a block of 128 columns
WARPS = {1: 16, 2: 12, 4: 8}  # that share an SM, by tiles: what registers allow
STAGES = (2, 6)  # least and most blocks of columns that a warp has under way
FLAG = 16  # bytes of shared memory for last_to_arrive
RESERVED = 1024 + FLAG  # bytes of an SM's shared memory that a block takes besides
TURNS = (1, 2, 3, 4, 6, 8)  # tiles of 32 rows that a warp takes
# By the model, not measured: bytes that memory delivers to an SM while a block begins and ends (1.5 us on an H200),
# and that have to be under way for all of the bandwidth; warps of an SM that leave no gaps between dependent products,
# 8 in a row of 33 clocks each; what a byte of x costs, beside one that is only read: 128 x take some 65 instructions.
START, UNDER_WAY, BUSY, OF_X = 48 * 1024, 33 * 1024, 12, 2


def refuses(case: Case, knobs: Knobs) -> str | None:
    """See Variant."""
    if knobs["warps"] not in (AUTO, 1, 2, 4, 8, 16):
        return f"warps={knobs['warps']}: give a power of two up to 16, or 0 for the plan's choice"
    if knobs["turns"] < 0:
        return f"turns={knobs['turns']}: give the tiles of 32 rows that a warp takes, or 0 for the plan's choice"
    if knobs["slice"] < 0 or knobs["slice"] % binary_tiles.COLUMNS:
        return f"slice={knobs['slice']}: give a multiple of 128 columns, or 0 for the plan's choice"
    if not case.whole_words:
        return f"g={case.group_size}: half_bits takes groups that are multiples of 32, or one group; paper takes any"
    return None


def plan(case: Case, gpu: Gpu, knobs: Knobs) -> Plan:
    """See Variant."""
    layout = binary_tiles.cut(case.group_size, case.columns)
    at_once = _at_once(case, layout.parts)
    tiles = _tiles(case, layout.parts, at_once)
    cut = _cut(case, gpu, knobs["warps"], knobs["turns"], knobs["slice"])
    rows = 32 * cut.warps * cut.turns
    grid = (-(-case.rows // rows), -(-layout.blocks // cut.slice), -(-case.m // at_once))
    span = binary_tiles.COLUMNS if layout.parts > 1 else case.group
    return Plan(
        file=FILE,
        parameters={
            "BITS": case.bits,
            "PARTS": layout.parts,
            "TILES": tiles,
            "WARPS": cut.warps,
            "STAGES": cut.stages,
            "BLOCKS": cut.blocks,
            "STAGE_BYTES": _stage_bytes(case, layout.parts),
            "X_BYTES": _x_bytes(tiles, layout.parts),
            **case.types,
        },
        steps=(
            Step(
                "lut_gemv_half_bits",
                grid,
                32 * cut.warps,
                (
                    *("planes", "alpha", "offset", "x", "y", "partial", "arrived"),
                    *(case.m, case.rows, case.columns, layout.blocks),
                    *(cut.turns, cut.slice, layout.groups, span, layout.run),
                ),
                shared=cut.shared,
            ),
        ),
        workspace={"partial": case.m * grid[1] * grid[0] * rows * 4},
        zeroed={"arrived": grid[0] * grid[2] * 4},
        blocks_per_sm=cut.blocks,
    )


def most_at_once(case: Case) -> int:
    """Rows of x that one reading of the weights serves: 16, 8 with groups of 32; half as many of float32."""
    parts = binary_tiles.cut(case.group_size, case.columns).parts
    return 8 * MOST_TILES[parts] // parts // _halves(case)


def _at_once(case: Case, parts: int) -> int:
    """Rows of x of a pass: what the least tiles hold with which there are no more passes."""
    needed = -(-case.m // -(-case.m // most_at_once(case)))
    columns = next(8 * t // parts for t in (1, 2, 4) if 8 * t // parts >= needed * _halves(case))
    return columns // _halves(case)


def _tiles(case: Case, parts: int, at_once: int) -> int:
    """Number of tiles of 8 tensor-core columns: a column for each half of each row of x and part."""
    return at_once * _halves(case) * parts // 8


def _halves(case: Case) -> int:
    """Number of halves that make an x."""
    return case.x.itemsize // 2


def _x_bytes(tiles: int, parts: int) -> int:
    """Bytes of shared memory for a pass's rows of x and a block of columns: operands, and initial sums."""
    return 8 * tiles // parts * 256 + tiles * 64


def _stage_bytes(case: Case, parts: int) -> int:
    """Bytes that a warp reads of its tile and a block of columns: planes, alpha, offset."""
    offset = 0 if case.offset is None else case.offset.itemsize
    return case.bits * 512 + 32 * parts * (case.bits * case.alpha.itemsize + offset)


@dataclass(frozen=True)
class _Cut:
    """Work of a block of threads: warps, tiles of 32 rows of a warp, blocks of columns, stages, shared bytes.

    blocks: that share an SM.
    """

    warps: int
    turns: int
    slice: int
    stages: int
    shared: int
    blocks: int


@functools.cache
def _cut(case: Case, gpu: Gpu, warps: int, turns: int, slice_: int) -> _Cut:
    """The cheapest of those that fit; one that does not fit where none does, which Variant.why_not refuses.

    warps, turns, slice_: as the knobs give them, AUTO for any.
    """
    layout = binary_tiles.cut(case.group_size, case.columns)
    tiles = _tiles(case, layout.parts, _at_once(case, layout.parts))
    stage, of_x = _stage_bytes(case, layout.parts), _x_bytes(tiles, layout.parts)
    given = min(slice_ // binary_tiles.COLUMNS, layout.blocks)
    cuts = []
    for w in [warps] if warps else (8, 4):
        for blocks in range(max(1, WARPS[tiles] // w), 0, -1):
            room = min(gpu.sm_shared // blocks - RESERVED, gpu.block_shared - FLAG)
            most = min(layout.blocks, (room - STAGES[0] * w * stage) // of_x)
            for s in [given] if given else range(1, 1 + most):
                stages = max(STAGES[0], min(STAGES[1], (room - s * of_x) // (w * stage)))
                shared = s * of_x + stages * w * stage
                if shared <= room:
                    each = [turns] if turns else TURNS
                    cuts += [_Cut(w, t, s, stages, shared, blocks) for t in each]
    if not cuts:
        w, s = warps or 4, given or 1
        return _Cut(w, 1, s, STAGES[0], s * of_x + STAGES[0] * w * stage, 1)
    return min(cuts, key=lambda cut: _cost(case, gpu, cut))


def _cost(case: Case, gpu: Gpu, cut: _Cut) -> float:
    """Bytes that the busiest SM moves, or could while its blocks begin and end."""
    layout = binary_tiles.cut(case.group_size, case.columns)
    at_once, rows = _at_once(case, layout.parts), 32 * cut.warps * cut.turns
    weights = cut.warps * _stage_bytes(case, layout.parts)  # of a block of columns
    # Partial sums are written and read: 8 bytes a row.
    of_x = OF_X * binary_tiles.COLUMNS * case.x.itemsize * cut.slice + 8 * rows
    moved = cut.slice * cut.turns * weights + at_once * of_x
    slices, passes = -(-layout.blocks // cut.slice), -(-case.m // at_once)
    each = -(-(-(-case.rows // rows) * slices * passes) // gpu.sms)
    together = min(each, cut.blocks)
    slower = max(
        1.0, UNDER_WAY / (together * (cut.stages - 1) * weights), BUSY / (together * cut.warps)
    )
    return -(-each // cut.blocks) * START + each * moved * slower


VARIANT = declare(
    Variant(
        name="half_bits",
        short="r6",
        rank=4,
        idea="bits as halves where they stand, tensor cores, 16 rows of x at once",
        knobs={"slice": AUTO, "warps": AUTO, "turns": AUTO},
        pack=binary_tiles.pack,
        unpack=binary_tiles.unpack,
        refuses=refuses,
        plan=plan,
        batch=most_at_once,
    )
)
