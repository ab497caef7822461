"""small_tables (r2): tables of at most 128 bytes, which have no bank conflicts, for thousands of columns a block.

A word is cut into fields of 5 bits (float tables) or 6 (half) and one of what is left: 25 or 20 bytes a column, and 4
of x. Float costs fewer instructions: a lookup more a word, but none has to be converted. The plan takes the number of
slices of K whose busiest SM has least to do: tiles of 128 rows, and tables to build.
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

FILE = "lut_gemv/small_tables.cu"
AUTO = 0
TILE = 128  # rows of a warp
STATIC = 17 * 1024 + 2048  # sums of warps for two passes at 512 threads, what CUDA takes
# Instructions of a warp, counted in the cubin; a word of a tile and plane takes as many as a tile has rows.
BUILD = 80  # for the tables of a word
GROUP = 15  # for the scales of a group and plane
PASS = 1000  # to add the sums of the parts, and for the barrier


def refuses(case: Case, knobs: Knobs) -> str | None:
    """See Variant."""
    mu, threads, slices, table = (knobs[name] for name in ("mu", "threads", "slices", "table"))
    if table not in ("half", "float"):
        return f"table={table}: entries of tables are half or float"
    most = 6 if knobs["table"] == "half" else 5
    if not 0 <= mu <= most:
        return f"mu={mu}: a table of more than 128 bytes has bank conflicts: give 1 to {most}, or 0 for {most}"
    if threads not in (128, 256, 512):
        return f"threads={threads}: give 128, 256 or 512"
    if slices < 0:
        return f"slices={slices}: give into how many slices K is cut, or 0 for the plan's choice"
    if not case.whole_words:
        return f"g={case.group_size}: small_tables takes groups that are multiples of 32, or one group; paper takes any"
    return None


def plan(case: Case, gpu: Gpu, knobs: Knobs) -> Plan:
    """See Variant."""
    half = knobs["table"] == "half"
    mu = knobs["mu"] or (6 if half else 5)
    threads = knobs["threads"]
    slices, tiles = _cut(case, gpu, knobs, mu, half)
    words = -(-_words(case) // slices)
    slices = -(-_words(case) // words)
    parts = _parts(words, threads // 32)
    stride = lut_gemm.stride(case.rows)
    shared = _shared(words, mu, half)
    by_shared = gpu.sm_shared // (shared + STATIC)
    blocks = max(1, min(by_shared, SM_REGISTERS // (_registers(case) * threads)))
    grid = (-(-stride // (TILE * tiles)), slices, case.m)
    buffers = ("planes", "alpha", "offset", "x", "y", "partial", "arrived")
    return Plan(
        file=FILE,
        parameters={
            "BITS": case.bits,
            "MU": mu,
            "THREADS": threads,
            "PARTS": parts,
            "AHEAD": _ahead(case),
            "BLOCKS": blocks,
            "TABLE_TYPE": "__half" if half else "float",
            **case.types,
        },
        steps=(
            Step(
                "lut_gemv_small_tables",
                grid,
                threads,
                (*buffers, case.rows, case.columns, stride, -(-case.group // 32), words, tiles),
                shared=shared,
            ),
        ),
        workspace={
            "partial": Space(case.m * slices * stride * 4),
            "arrived": Space(case.m * grid[0] * 4, zeroed=True),
        },
        blocks_per_sm=blocks,
    )


def _words(case: Case) -> int:
    return -(-case.columns // 32)


def _shared(words: int, mu: int, half: bool) -> int:
    """Bytes of shared memory for some words: tables, those of last fields, x, its sums."""
    entry = 2 if half else 4
    rest = entry << 32 % mu if 32 % mu else 0
    return words * (32 // mu * (entry << mu) + 33 * 4) + -(-words * rest // 16) * 16


def _ahead(case: Case) -> int:
    """Words that a lane loads ahead, all their planes: 4 to 8 loads of 16 bytes."""
    return {1: 4, 2: 2, 3: 2}.get(case.bits, 1)


def _registers(case: Case) -> int:
    """Of a thread: loads ahead, sums and scales of all planes, and 48 for lookups under way and addresses."""
    return min(128, 48 + case.bits * (4 * _ahead(case) + 4 + case.alpha.itemsize))


def _parts(words: int, warps: int) -> int:
    """Warps that share rows: all, unless that left each less than two words."""
    parts = warps
    while parts > 1 and words < 2 * parts:
        parts //= 2
    return parts


def _cut(case: Case, gpu: Gpu, knobs: Knobs, mu: int, half: bool) -> tuple[int, int]:
    """Slices, and tiles of rows of a block: the knobs, or what gives the busiest SM least to do."""
    words, all_tiles, warps = _words(case), -(-case.rows // TILE), knobs["threads"] // 32
    room = (gpu.block_shared - STATIC) // _shared(2, mu, half) * 2
    least = min(words, knobs["slices"] or -(-words // room))
    most = min(words, knobs["slices"] or max(least, 32))

    def cost(slices: int) -> tuple[float, int]:
        of_slice = -(-words // slices)
        parts = _parts(of_slice, warps)
        tiles = -(-all_tiles // max(1, gpu.sms // (slices * case.m)))
        rounds = -(-slices * case.m * -(-all_tiles // tiles) // gpu.sms)
        passes = -(-tiles * parts // warps)
        of_pass = _warp_cost(-(-of_slice // parts), case) * warps + PASS
        return rounds * (passes * of_pass + BUILD * of_slice), tiles

    slices = min(range(least, most + 1), key=lambda count: cost(count)[0])
    return slices, cost(slices)[1]


def _warp_cost(words: int, case: Case) -> int:
    """Instructions for some words of a tile, and for the groups that they lie in."""
    of_group = -(-case.group // 32)
    groups = words // of_group if words % of_group == 0 else words // of_group + 1
    return TILE * words * case.bits + GROUP * groups * case.bits


VARIANT = Variant(
    name="small_tables",
    idea="tables of 128 bytes: lookups without conflicts, rows in lanes, few slices of K",
    knobs={"mu": AUTO, "threads": 512, "slices": AUTO, "table": "float"},
    pack=lut_gemm.pack,
    unpack=lut_gemm.unpack,
    refuses=refuses,
    plan=plan,
)
