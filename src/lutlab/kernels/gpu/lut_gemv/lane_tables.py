"""lane_tables (r3): tables in the bank of the lane that looks them up: no bank conflicts, one block an SM.

A slice of K is 32 words, one a lane, so that its tables of 8 columns in float32 are 128 KB, as they are in half for two
rows of x; in half for one row they are 64 KB. The plan cuts the rows so that slices x blocks of rows just fill the SMs.

The layout. K is cut into the fewest slices of at most 32 words, all of C words: word c of a slice belongs to lane c.
Four rows are side by side, so that a lane reads 16 bytes; quads of rows and planes follow each other (slice 0, q = 2):

    quad 0   plane 0:  [word 0: rows 0 1 2 3] [word 1: rows 0 1 2 3] ... [word C-1: rows 0 1 2 3]
             plane 1:  [word 0: rows 0 1 2 3] ...
    quad 1   plane 0:  [word 0: rows 4 5 6 7] ...

    planes [S, Q, q, C, 4] int32, S = slices, Q = N / 4 for N rounded up to 32
    alpha [S, Q, q, A, 4], offset [S, Q, A, 4] or None: the A groups from the first that the slice touches on; a group
    that lies in two slices is stored twice

Bit k % 32 of a word is 1 for +alpha. Words and rows of padding hold zeros.
"""

from __future__ import annotations

import torch

from lutlab.base.groups import group_count, group_length
from lutlab.formats.bcq import WORD, PackedBCQ
from lutlab.formats.code_words import in_order
from lutlab.kernels.gpu.lut_gemv.variant import (
    SM_REGISTERS,
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

FILE = "lut_gemv/lane_tables.cu"
AUTO = 0
ENTRIES = 4 * 256 * 32  # of the tables of a block: of a word, a table, lanes
TABLES = {"float": "float", "half": "__half", "pair": "__half2"}  # types of entries
STATIC = 8 * 1024  # more than a block's other shared memory, with what CUDA takes
LANES = 32
QUAD = 4  # rows side by side


def cut(columns: int) -> tuple[int, int]:
    """S and C: slices, and words of a slice. Only the last slice has padding, of less than S words.

    >>> cut(12288), cut(1056), cut(40)
    ((12, 32), (2, 17), (1, 2))
    """
    words = -(-columns // WORD)
    slices = -(-words // LANES)
    return slices, -(-words // slices)


def first_groups(columns: int, group_size: int) -> tuple[list[int], int]:
    """The first group that each slice touches, and A: the most groups that one touches.

    >>> first_groups(2048, 128), first_groups(2048, -1), first_groups(2048, 96)
    (([0, 8], 8), ([0, 0], 1), ([0, 10], 12))
    """
    slices, words = cut(columns)
    length = group_length(group_size, columns)
    edges = [min(s * words * WORD, columns) for s in range(slices + 1)]
    first = [edge // length for edge in edges[:-1]]
    last = [(edge - 1) // length for edge in edges[1:]]
    return first, max(b - a for a, b in zip(first, last, strict=True)) + 1


def pack(packed: PackedBCQ) -> Weight:
    """From rows of words."""
    slices, words = cut(packed.shape[1])
    missing = slices * words - packed.planes.shape[2]
    planes = torch.nn.functional.pad(packed.planes, (0, missing)).unflatten(2, (slices, words))

    def place(scales: torch.Tensor) -> torch.Tensor:
        """[q, N, G] -> [S, Q, q, A, 4]; behind the last group it is repeated, and nobody reads it."""
        groups = _stored_groups(packed).clamp(max=scales.shape[2] - 1)
        return _quads(scales[:, :, groups.flatten()].unflatten(2, groups.shape))

    return with_planes(packed, _quads(planes), place, 2)


def unpack(weight: Weight) -> PackedBCQ:
    """The inverse of pack, bit for bit where the offset is not float64."""
    rows, columns = weight.shape
    words = _in_rows(weight.buffer("planes"), rows).flatten(2)[..., : -(-columns // WORD)]

    def back(scales: torch.Tensor) -> torch.Tensor:
        """[S, Q, q, A, 4] -> [q, N, G]."""
        groups = _stored_groups(weight).flatten()
        count = group_count(weight.group_size, columns)
        place = torch.empty(count, dtype=torch.int64)
        inside = groups < count
        place[groups[inside]] = torch.arange(len(groups))[inside]
        return _in_rows(scales, rows).flatten(2)[:, :, place]

    return of_planes(weight, words, back, 2)


def _quads(values: torch.Tensor) -> torch.Tensor:
    """[q, N, S, X] -> [S, Q, q, X, 4]."""
    rows = values.shape[1]
    padded = torch.nn.functional.pad(values, (0, 0, 0, 0, 0, stride(rows) - rows))
    return in_order(padded.unflatten(1, (-1, QUAD)).permute(3, 1, 0, 4, 2))


def _in_rows(values: torch.Tensor, rows: int) -> torch.Tensor:
    """The inverse of _quads: [S, Q, q, X, 4] -> [q, N, S, X]."""
    return values.permute(2, 1, 4, 0, 3).flatten(1, 2)[:, :rows]


def _stored_groups(weight: PackedBCQ | Weight) -> torch.Tensor:
    """[S, A] int64: the group of each place."""
    first, most = first_groups(weight.shape[1], weight.group_size)
    return torch.tensor(first).unsqueeze(1) + torch.arange(most)


def refuses(case: Case, knobs: Knobs) -> str | None:
    """Knobs without a kernel, and groups that are no whole words."""
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
    """One launch, of as many tiles of rows a block as just fill the SMs, or as the knob says."""
    table = _table(case, gpu) if knobs["table"] == "auto" else knobs["table"]
    shared = ENTRIES * (2 if table == "half" else 4)
    x_rows = 2 if table == "pair" else 1
    by_shared = gpu.sm_shared // (shared + STATIC)
    threads = knobs["threads"] or (512 if by_shared < 2 else 256)
    blocks = max(1, min(by_shared, SM_REGISTERS // (threads * _registers(case, x_rows))))
    slices, words = cut(case.columns)
    _, scales = first_groups(case.columns, case.group_size)
    padded = stride(case.rows)
    rows, passes = _rows(case, x_rows), -(-case.m // x_rows)
    tiles = knobs["tiles"] or _tiles(padded // rows, slices * passes, gpu.sms * blocks)
    grid = (-(-padded // (rows * tiles)), slices, passes)
    buffers = ("planes", "alpha", "offset", "x", "y", "partial", "arrived")
    numbers = (case.m, case.rows, case.columns, padded, case.group, words, scales, tiles)
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
        workspace={"partial": case.m * slices * padded * 4},
        zeroed={"arrived": passes * grid[0] * 4},
        blocks_per_sm=blocks,
    )


def _table(case: Case, gpu: Gpu) -> str:
    small = gpu.block_shared < 4 * ENTRIES + STATIC
    return "half" if small and case.x.itemsize == 2 else "float"


def _rows(case: Case, x_rows: int) -> int:
    """Rows of a tile: more where few planes leave a warp little to load ahead; a row of x has as many sums."""
    return max(8, {1: 32, 2: 16}.get(case.bits, 8) // x_rows)


def _depth(case: Case, x_rows: int) -> int:
    """Loads of 16 bytes that a lane has under way, beside their scales: from 6 on they fill the bandwidth."""
    items = _rows(case, x_rows) // 4 * case.bits
    return items if items <= 8 else case.bits


def _registers(case: Case, x_rows: int) -> int:
    """Registers of a thread: loads ahead, sums, and 56 for lookups under way and addresses."""
    ahead = _depth(case, x_rows) * (4 + case.alpha.itemsize)
    return 56 + x_rows * _rows(case, x_rows) + ahead


def _tiles(all_tiles: int, slices: int, blocks: int) -> int:
    """Tiles of a block: as many blocks of rows as fill the GPU once; several rounds if slices alone do."""
    return -(-all_tiles // max(1, blocks // slices))


VARIANT = declare(
    Variant(
        name="lane_tables",
        short="r3",
        rank=3,
        idea="every lane its own tables in its own bank: lookups without conflicts",
        knobs={"threads": AUTO, "tiles": AUTO, "table": "auto"},
        pack=pack,
        unpack=unpack,
        refuses=refuses,
        plan=plan,
    )
)
