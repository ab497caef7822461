"""lane_tables (r3): tables in the bank of the lane that looks them up: no bank conflicts, one block an SM.

A slice of K is 32 words, one a lane, so that its tables of 8 columns in float32 are 128 KB, as they are in half for two
rows of x; in half for one row they are 64 KB. The plan cuts the rows so that slices x blocks of rows just fill the SMs.
"""

from __future__ import annotations

from lutlab.formats import bcq_lanes
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

FILE = "lut_gemv/lane_tables.cu"
AUTO = 0
ENTRIES = 4 * 256 * 32  # of the tables of a block: of a word, a table, lanes
TABLES = {"float": "float", "half": "__half", "pair": "__half2"}  # types of entries
STATIC = 8 * 1024  # more than a block's other shared memory, with what CUDA takes


def refuses(case: Case, knobs: Knobs) -> str | None:
    """See Variant."""
    if knobs["threads"] not in (AUTO, 256, 512, 1024):
        return f"threads={knobs['threads']}: give 256, 512, 1024, or 0 for the plan's choice"
    if knobs["tiles"] < 0:
        return (
            f"tiles={knobs['tiles']}: give how many tiles of rows a block takes, or 0 for the "
            "plan's choice"
        )
    if knobs["table"] not in ("auto", *TABLES):
        return (
            f"table={knobs['table']}: entries of tables are float, half or pair (halves of two rows of x), or auto: "
            "float, but half for x of 16 bits on a GPU with less shared memory"
        )
    if not case.whole_words:
        return f"g={case.group_size}: lane_tables takes groups that are multiples of 32, or one group; paper takes any"
    return None


def plan(case: Case, gpu: Gpu, knobs: Knobs) -> Plan:
    """See Variant."""
    table = _table(case, gpu) if knobs["table"] == "auto" else knobs["table"]
    shared = ENTRIES * (2 if table == "half" else 4)
    x_rows = 2 if table == "pair" else 1
    by_shared = gpu.sm_shared // (shared + STATIC)
    threads = knobs["threads"] or (512 if by_shared < 2 else 256)
    blocks = max(1, min(by_shared, SM_REGISTERS // (threads * _registers(case, x_rows))))
    slices, words = bcq_lanes.cut(case.columns)
    _, scales = bcq_lanes.first_groups(case.columns, case.group_size)
    stride = bcq_lanes.stride(case.rows)
    rows, passes = _rows(case, x_rows), -(-case.m // x_rows)
    tiles = knobs["tiles"] or _tiles(stride // rows, slices * passes, gpu.sms * blocks)
    grid = (-(-stride // (rows * tiles)), slices, passes)
    buffers = ("planes", "alpha", "offset", "x", "y", "partial", "arrived")
    numbers = (case.m, case.rows, case.columns, stride, case.group, words, scales, tiles)
    return Plan(
        file=FILE,
        parameters={
            "BITS": case.bits,
            "ROWS": rows,
            "THREADS": threads,
            "BLOCKS": blocks,
            "DEPTH": _depth(case, x_rows),
            "TABLE_TYPE": TABLES[table],
            **case.types,
        },
        steps=(Step("lut_gemv_lane_tables", grid, threads, (*buffers, *numbers), shared=shared),),
        workspace={
            "partial": Space(case.m * slices * stride * 4),
            "arrived": Space(passes * grid[0] * 4, zeroed=True),
        },
        blocks_per_sm=blocks,
    )


def _table(case: Case, gpu: Gpu) -> str:
    small = gpu.block_shared < 4 * ENTRIES + STATIC
    return "half" if small and case.x.itemsize == 2 else "float"


def _rows(case: Case, x_rows: int) -> int:
    """Of a tile: more where few planes leave a warp little to load ahead; its sums are as many for each row of x."""
    return max(8, {1: 32, 2: 16}.get(case.bits, 8) // x_rows)


def _depth(case: Case, x_rows: int) -> int:
    """Loads of 16 bytes that a lane has under way, beside their scales: from 6 on they fill the bandwidth."""
    items = _rows(case, x_rows) // 4 * case.bits
    return items if items <= 8 else case.bits


def _registers(case: Case, x_rows: int) -> int:
    """Of a thread: what is loaded ahead, sums, and 56 for lookups under way and addresses."""
    ahead = _depth(case, x_rows) * (4 + case.alpha.itemsize)
    return 56 + x_rows * _rows(case, x_rows) + ahead


def _tiles(all_tiles: int, slices: int, blocks: int) -> int:
    """Tiles of a block: as many blocks of rows as fill the GPU once; several rounds if slices alone do."""
    return -(-all_tiles // max(1, blocks // slices))


VARIANT = Variant(
    name="lane_tables",
    idea="every lane its own tables in its own bank: lookups without conflicts",
    knobs={"threads": AUTO, "tiles": AUTO, "table": "auto"},
    pack=bcq_lanes.pack,
    unpack=bcq_lanes.unpack,
    refuses=refuses,
    plan=plan,
)
