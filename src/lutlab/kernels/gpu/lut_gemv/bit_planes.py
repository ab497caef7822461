"""bit_planes (r4): x as planes of bits times the planes of W on binary tensor cores (sm_80 and newer); no table.

    y[n] = sum over blocks of 128 columns of unit ( sum_b alpha[g, b, n] sum_k B_b[n, k] X[k] + z[g, n] sum_k X[k] )

X = rint(x / unit) has P bits (knob x_bits), unit = max |x| of the block / (2^(P-1) - 1). The sums over k are exact
integers, what follows is float32 in one order: y is the same in every run.

Accuracy. x differs from unit X by unit / 2 at most, evenly spread (errors by P: kernels/README.md); a few x of 100
times the others make the unit of their block. The default is P = 16 for x of 16 bits, P = 24, what float32 sums leave,
for float32 x. Tensor cores take planes in eights: P = 20 costs what P = 24 costs.

A row of x with an inf or a nan gives a y of nan. x below 1e-30 counts as if its block had a 1e-30.
"""

from __future__ import annotations

from lutlab.kernels.gpu.lut_gemv import binary_tiles
from lutlab.kernels.gpu.lut_gemv.variant import Case, Gpu, Knobs, Plan, Step, Variant, declare

FILE = "lut_gemv/bit_planes.cu"
AUTO = 0
BATCH = 4  # rows of x that share one reading of the weights
STAGES = (2, 6)  # least and most blocks of columns that a warp has under way
FIXED = 3  # to begin and end a block of threads, in blocks of columns of a warp
RESERVED = 1024  # bytes of shared memory that CUDA takes a block


def refuses(case: Case, knobs: Knobs) -> str | None:
    """Knobs without a kernel, and groups that are no whole words."""
    x_bits, tiles, warps, stages, launches = (
        knobs[name] for name in ("x_bits", "tiles", "warps", "stages", "launches")
    )
    if x_bits != AUTO and not 8 <= x_bits <= 24:
        return f"x_bits={x_bits}: give 8 to 24 bits, or 0 for 16 with x of 16 bits and 24 with float32 x"
    if tiles not in (AUTO, 1, 2, 4):
        return f"tiles={tiles}: give 1, 2 or 4 tiles of 32 rows, or 0 for the plan's choice"
    if warps not in (AUTO, 1, 2, 4, 8, 16):
        return f"warps={warps}: give a power of two up to 16, or 0 for the plan's choice"
    if stages != AUTO and not 2 <= stages <= 16:
        return f"stages={stages}: give 2 to 16 blocks under way, or 0 for the plan's choice"
    if launches not in (AUTO, 1, 2):
        return f"launches={launches}: planes of x are made by the product's launch (1) or one before (2); 0 chooses"
    if knobs["slices"] < 0:
        return (
            f"slices={knobs['slices']}: give the number of slices of K, or 0 for the plan's choice"
        )
    if not case.whole_words:
        return f"g={case.group_size}: bit_planes takes groups that are multiples of 32, or one group; paper takes any"
    return None


def plan(case: Case, gpu: Gpu, knobs: Knobs) -> Plan:
    """One launch, or two, of which the first makes the planes of x."""
    layout = binary_tiles.cut(case.group_size, case.columns)
    x_bits = knobs["x_bits"] or {2: 16, 4: 24}[case.x.itemsize]
    batch = -(-case.m // -(-case.m // BATCH))
    tiles = knobs["tiles"] or _tiles(case, gpu, batch)
    record = -(-x_bits // 8) * 128 + layout.parts * 16 + 32
    stage = tiles * _tile_bytes(case, layout.parts) + batch * record
    warps, stages, blocks = _ring(gpu, knobs, stage, batch * tiles, -(-x_bits // 8))
    tiles_of_all = -(-case.rows // (32 * tiles))
    chunks = -(-case.m // batch)
    slice_ = _slice(gpu, knobs, layout.blocks, warps, tiles_of_all * chunks, blocks)
    slices = -(-layout.blocks // slice_)
    span = 128 if layout.parts > 1 else case.group
    grid = (tiles_of_all, slices, chunks)
    # One launch where the first blocks of threads are enough to make all planes of x at once.
    at_once = min(tiles_of_all * slices * chunks, gpu.sms * blocks)
    launches = knobs["launches"] or (1 if at_once >= case.m * layout.blocks else 2)
    of_x = (case.columns, layout.blocks)
    return Plan(
        file=FILE,
        parameters={
            "BITS": case.bits,
            "X_BITS": x_bits,
            "PARTS": layout.parts,
            "BATCH": batch,
            "TILES": tiles,
            "WARPS": warps,
            "STAGES": stages,
            "BLOCKS": blocks,
            "LAUNCHES": launches,
            "STAGE_BYTES": stage,
            "RECORD_BYTES": record,
            **case.types,
        },
        steps=(
            Step(
                "lut_gemv_bit_planes_of_x",
                (layout.blocks, 1, case.m),
                32,
                ("x", "records", *of_x, span, layout.run),
            ),
            Step(
                "lut_gemv_bit_planes",
                grid,
                32 * warps,
                (
                    *("planes", "alpha", "offset", "x", "records", "progress", "y", "partial"),
                    *("arrived", case.m, case.rows, *of_x, slice_, layout.groups, span, layout.run),
                ),
                shared=warps * stages * stage,
            ),
        )[-launches:],
        workspace={
            "records": case.m * layout.blocks * record,
            "partial": case.m * slices * case.rows * 4,
        },
        zeroed={
            "progress": 12,
            "arrived": chunks * tiles_of_all * 4,
        },
        blocks_per_sm=blocks,
    )


def _tile_bytes(case: Case, parts: int) -> int:
    """Bytes that a warp reads of a tile of 32 rows and a block of columns: planes, alpha, offset."""
    offset = 0 if case.offset is None else case.offset.itemsize
    return 32 * (16 * case.bits + parts * (case.bits * case.alpha.itemsize + offset))


def _tiles(case: Case, gpu: Gpu, batch: int) -> int:
    """Tiles of a warp, which share its reading of x: with one and two planes of W, x would be much of what is read."""
    tiles = {1: 4, 2: 2}.get(case.bits, 1) if batch == 1 else 1
    while tiles > 1 and case.rows < 32 * tiles * gpu.sms:
        tiles //= 2
    return tiles


def _ring(gpu: Gpu, knobs: Knobs, stage: int, sums: int, eights: int) -> tuple[int, int, int]:
    """Warps of a block, stages of a warp, blocks that share an SM: as many bytes under way as shared memory holds.

    sums: tiles times rows of x, which a warp keeps in registers, and of which a block adds its warps' in shared memory.
    eights: of planes of x.
    """
    threads = 768 if sums * eights <= 4 else 512 if sums * eights <= 8 else 256  # registers allow
    least, most = STAGES
    for warps in [knobs["warps"]] if knobs["warps"] else (8, 4, 2, 1):
        blocks = max(1, threads // (32 * warps))
        static = warps * sums * 128 + RESERVED
        stages = max(least, min(most, (gpu.sm_shared // blocks - static) // (warps * stage)))
        shared = warps * (knobs["stages"] or stages) * stage + static
        if shared <= gpu.block_shared:
            break
    return warps, knobs["stages"] or stages, max(1, min(blocks, gpu.sm_shared // shared))


def _slice(gpu: Gpu, knobs: Knobs, blocks: int, warps: int, tiles: int, on_an_sm: int) -> int:
    """Blocks of columns of a slice: the knob, or what gives the busiest SM least to do.

    blocks: of columns; on_an_sm: blocks of threads at a time, which begin and end together.
    """

    def busiest(slice_: int) -> int:
        of_threads = tiles * -(-blocks // slice_)
        waves = -(-of_threads // (gpu.sms * on_an_sm))
        return -(-of_threads // gpu.sms) * -(-slice_ // warps) + waves * FIXED

    slices = [knobs["slices"]] if knobs["slices"] else range(1, 1 + -(-blocks // warps))
    return min((-(-blocks // count) for count in slices), key=busiest)


def cheap(case: Case) -> int:
    """Rows of x that hide behind a reading of the weights, by the model: 219, 357, 455 and 557 instructions for 1 to 4
    rows of x and 12,288 bits (q = 3, counted by hand in the cubin for sm_90, with the loop around them), which an SM of
    an H200 reads in the time of some 440; groups that share a block multiply it again.
    """
    return 3 if binary_tiles.cut(case.group_size, case.columns).parts == 1 else 1


VARIANT = declare(
    Variant(
        name="bit_planes",
        short="r4",
        rank=2,
        idea="x as bit planes on binary tensor cores",
        knobs={
            "x_bits": AUTO,
            "tiles": AUTO,
            "warps": AUTO,
            "stages": AUTO,
            "slices": AUTO,
            "launches": AUTO,
        },
        pack=binary_tiles.pack,
        unpack=binary_tiles.unpack,
        refuses=refuses,
        plan=plan,
        batch=cheap,
    )
)
