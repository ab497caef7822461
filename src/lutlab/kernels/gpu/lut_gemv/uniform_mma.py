"""uniform_mma (r5): uniform codes, made halves in registers, times x on tensor cores; 16 rows cost little more than 1.

One scale a group in the place of q: 7 to 10 % fewer bytes than the same weight in BCQ. Codes and activations of 16 bits
are exact in a half (bfloat16, divided by a power of two, down to 2^-31 of its row's largest), sums are float32. A
block's bytes are those of its weights, of x and of its partial sums; the plan takes the slice that leaves the busiest
SM the least to move, slower where too few loads are under way.

The layout: codes in tiles of 16 rows x 64 columns, where each lane of a warp finds its operands of tensor cores.

    W[n, k] = s[group of k, n] * (code[n, k] - zero[group of k, n])                             LUT-GEMM Eq. 5

Lane l has q words of a tile: 16 pairs of codes, pair 4 i + r being operand register r of the i-th m16n8k16 product.

    pair 4 i + r, half h, lane l  =  row  l / 4 + 8 (r % 2),  column  16 i + 4 (l % 4) + 2 (r / 2) + h

The bits of a code stand in up to three parts (q = 3: two bits and one), each in words of its own, and in both halves of
a word alike: pair p's part is rotated right by `turn` and then stands at bit `base` + (first bit of the part) of either
half. Pairs of a set share their turns and differ by base, so that a set costs one rotation a part and each pair two
masks. `places` gives word and bit of every bit; no bit is left over.

A chunk is the tiles of so many units of 64 columns that a lane has whole uint4s of words:

    words [T, C, V, 32, 4] int32     T = ceil(N / 16) tiles of rows, C chunks, V uint4 a lane
    scales [G, T, 8, 4]              s of rows r and r + 8, zero of both; float16 where that is exact, else float32
"""

from __future__ import annotations

import functools

import torch

from lutlab.base.groups import group_count
from lutlab.formats.code_words import unpack_words
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.gpu.lut_gemv.variant import (
    Case,
    Gpu,
    Knobs,
    Plan,
    Step,
    Variant,
    Weight,
    declare,
    scales_and_zeros,
)

FILE = "lut_gemv/uniform_mma.cu"
AUTO = 0
SLICES = (256, 512, 1024, 2048, 4096)
MOST_ROWS = 16  # of x in one pass over the weights
FLUSHES = (128, 64, 32)  # columns; a group is whole flushes
RESERVED = 1024  # bytes of shared memory that CUDA takes of each block
# Bytes that memory delivers to an SM while a block begins and ends (1.5 us on an H200), and that have to be under way
# for all of the bandwidth: by the model, not measured.
START, UNDER_WAY = 48 * 1024, 33 * 1024
TILE_ROWS = 16
UNIT = 64
LANES = 32
PAIRS = 16  # of a lane in a unit
# Units of a chunk by bits: 4 to 28 words a lane.
UNITS = {1: 4, 2: 8, 3: 4, 4: 4, 5: 4, 6: 2, 7: 4, 8: 2}
# Weights packed at a time: bounds the temporaries (some 8 q bytes a weight) at some 200 MB.
CHUNK_WEIGHTS = 2**22


def parts(q: int) -> tuple[tuple[int, int], ...]:
    """(bits, first bit) of the parts of a code; the first part has the most.

    >>> parts(7)
    ((4, 0), (2, 4), (1, 6))
    """
    out, first = [], 0
    for width in (8, 4, 2, 1):
        if q - first >= width:
            out.append((width, first))
            first += width
    return tuple(out)


def bases(q: int) -> int:
    """Number of pairs in a set: base + q is at most the 10 bits of a half's mantissa."""
    return 1 if q == 7 else 8 // parts(q)[0][0]


@functools.cache
def places(q: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """[pair][bit of the code] -> (word of the lane, bit of the word's lower half); the upper half's is 16 higher.

    A bit beyond the lower half's 16 is the upper half's, and the other way round: rotations are of the whole word.
    """
    step, count = parts(q)[0][0], bases(q)
    of_pairs = []
    for pair in range(PAIRS):
        of_pair, first_word = [], 0
        for width, first in parts(q):
            turns = step // width * (16 // (step * count))  # of a word
            word, i = divmod(pair // count, turns)
            turn = i % (step // width) * width + i // (step // width) * step * count
            at = first + pair % count * step + turn
            of_pair += [(first_word + word, at + j) for j in range(width)]
            first_word += width
        of_pairs.append(tuple(of_pair))
    return tuple(of_pairs)


@functools.cache
def _bits(q: int) -> torch.Tensor:
    """[16 rows, 64 columns, q] -> index of the bit in a tile's [lane, word, 32]."""
    at = torch.empty(TILE_ROWS, UNIT, q, dtype=torch.int64)
    for lane in range(LANES):
        for pair, of_pair in enumerate(places(q)):
            row = lane // 4 + 8 * (pair % 2)
            column = 16 * (pair // 4) + 4 * (lane % 4) + 2 * (pair % 4 // 2)
            for half in range(2):
                for j, (word, bit) in enumerate(of_pair):
                    at[row, column + half, j] = (lane * q + word) * 32 + (bit + 16 * half) % 32
    return at.view(-1)


def pack(packed: PackedUniform) -> Weight:
    """Pack a stored weight."""
    q, (rows, columns), device = packed.bits, packed.shape, packed.qweight.device
    chunk = UNITS[q] * UNIT
    tiles, chunks = -(-rows // TILE_ROWS), -(-columns // chunk)
    to = _bits(q).to(device)
    source = torch.empty_like(to)
    source[to] = torch.arange(len(to), device=device)
    weight, place = source // q, (source % q).to(torch.uint8)
    shift = torch.arange(32, dtype=torch.int32, device=device)
    shape = (tiles, chunks * UNITS[q], LANES, q)
    words = torch.empty(shape, dtype=torch.int32, device=device)
    step = max(1, CHUNK_WEIGHTS // (TILE_ROWS * chunks * chunk))
    for first in range(0, tiles, step):
        at = slice(first * TILE_ROWS, (first + step) * TILE_ROWS)
        codes = unpack_words(packed.qweight[at], q, columns)
        codes = torch.nn.functional.pad(
            codes, (0, chunks * chunk - columns, 0, -len(codes) % TILE_ROWS)
        )
        codes = codes.view(-1, TILE_ROWS, shape[1], UNIT).transpose(1, 2)
        bits = codes.reshape(-1, shape[1], TILE_ROWS * UNIT)[..., weight] >> place & 1
        bits = bits.view(-1, *shape[1:], 32).int() << shift
        words[first : first + step] = bits.sum(dim=-1, dtype=torch.int32)
    buffers = {"words": _vectors(words, q), "scales": _side_by_side(packed, tiles)}
    return Weight(buffers, packed.shape, q, packed.group_size, packed.order)


def _vectors(words: torch.Tensor, q: int) -> torch.Tensor:
    """[T, units, 32, q] -> [T, C, V, 32, 4]."""
    tiles, units, lanes, _ = words.shape
    chunks = units // UNITS[q]
    words = words.view(tiles, chunks, UNITS[q], lanes, q).transpose(2, 3)
    words = words.reshape(tiles, chunks, lanes, -1, 4)
    return words.transpose(2, 3).contiguous()


def _side_by_side(packed: PackedUniform, tiles: int) -> torch.Tensor:
    """[G, T, 8, 4]: scale of rows r and r + 8 of a tile, zero point of both."""
    scale, zero = scales_and_zeros(packed)
    rows, groups = scale.shape
    out = scale.new_zeros(2, tiles * TILE_ROWS, groups)
    out[0, :rows], out[1, :rows] = scale, zero
    out = out.view(2, tiles, 2, 8, groups)
    return out.permute(4, 1, 3, 0, 2).reshape(groups, tiles, 8, 4).contiguous()


def refuses(case: Case, knobs: Knobs) -> str | None:
    """Codes that are not uniform, x in float32, and warps or slices without a kernel."""
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
    """One launch, of slices of K that the knob says or that cost least by the model."""
    warps, tiles, flush = knobs["warps"], _tiles(case), _flush(case)
    blocks = _blocks_per_sm(case, warps)
    slice_ = knobs["slice"] or _slice(case, gpu, warps, blocks)
    chunks = -(-case.columns // _chunk(case))
    grid = (
        -(-case.rows // (TILE_ROWS * warps)),
        -(-chunks * _chunk(case) // slice_),
        -(-case.m // (8 * tiles)),
    )
    stride = grid[0] * warps * TILE_ROWS
    groups = group_count(case.group_size, case.columns)
    sizes = (case.rows, case.columns, case.m, chunks, groups)
    buffers = ("words", "scales", "x", "y", "partial", "arrived")
    return Plan(
        file=FILE,
        parameters={
            "BITS": case.bits,
            "UNITS": UNITS[case.bits],
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
        workspace={"partial": case.m * grid[1] * stride * 4},
        zeroed={"arrived": grid[0] * grid[2] * 4},
        blocks_per_sm=blocks,
    )


def _chunk(case: Case) -> int:
    """Number of columns of a chunk."""
    return UNIT * UNITS[case.bits]


def _flush(case: Case) -> int:
    """Columns after which scales are applied; no more than a chunk has."""
    if case.group == case.columns:
        return FLUSHES[0]
    return next(flush for flush in FLUSHES if case.group % flush == 0)


def _blocks_per_sm(case: Case, warps: int) -> int:
    """24, 16 or 8 warps an SM, of 80, 128 or 255 registers a thread: what NVRTC compiles without spills, by trial."""
    scales = _chunk(case) // _flush(case) * case.alpha.itemsize
    load = 2 * case.bits * UNITS[case.bits] + 3 * scales + 28 * _tiles(case)
    most = 96 if _flush(case) == FLUSHES[0] else 127
    return max(1, (24 if load <= 72 else 16 if load <= most else 8) // warps)


def _tiles(case: Case) -> int:
    """Number of tiles of 8 rows of x in one pass over the weights."""
    return 1 if case.m <= 8 else 2


def _x_bytes(case: Case, slice_: int) -> int:
    """Dynamic shared memory: a slice of the rows of x of one pass."""
    return min(case.m, MOST_ROWS) * (slice_ + 32) * 2


def _slice(case: Case, gpu: Gpu, warps: int, blocks: int) -> int:
    """Columns of a block: the cheapest of those that leave shared memory for all blocks of an SM."""
    chunk, rows = _chunk(case), TILE_ROWS * warps
    whole = -(-case.columns // chunk) * chunk

    def fits(slice_: int) -> bool:
        of_row = slice_ // _flush(case) + (1 + warps) * (case.x == torch.bfloat16)  # totals, units
        bytes_ = _x_bytes(case, slice_) + 4 * of_row * MOST_ROWS + RESERVED
        return bytes_ * blocks <= gpu.sm_shared

    def cost(slice_: int) -> float:
        count = -(-case.rows // rows) * -(-case.columns // slice_)
        each, together = -(-count // gpu.sms), min(blocks, -(-count // gpu.sms))
        moved = rows * slice_ * case.bits / 8 + case.m * (2 * slice_ + 8 * rows)
        open_ = together * warps * chunk * TILE_ROWS * case.bits / 8
        return -(-each // blocks) * START + each * moved * max(1.0, UNDER_WAY / open_)

    return min(filter(fits, {min(s, whole) for s in SLICES if s % chunk == 0}), key=cost)


VARIANT = declare(
    Variant(
        name="uniform_mma",
        short="r5",
        rank=1,
        idea="uniform codes as halves, tensor cores, 16 rows of x at once",
        knobs={"slice": AUTO, "warps": 8},
        pack=pack,
        codes=True,
        refuses=refuses,
        plan=plan,
        batch=lambda case: MOST_ROWS,
    )
)
