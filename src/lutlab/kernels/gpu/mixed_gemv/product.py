"""Groups of 2, 3 and 4 bits on tensor cores: mixed_async (Algorithm 1 of the 2/4/16-bit paper) and mixed_sync.

    mixed_async   cp.async brings the next chunks, and a chunk's codes while its second-order scales are dequantized
    mixed_sync    the same arithmetic, one chunk after the other: copied, waited for, dequantized, multiplied

Li et al., "Fast and Efficient 2-bit LLM Inference on GPU" (ICCAD 2024), section 5. Codes and x of 16 bits are exact in
a half, float32 x are two; sums are float32 in one order. Outliers: `outliers=fused` adds them in the same launch;
`cusparse`, as the paper has it, in a second one (mixed_linear.py).

Memory-aligned blocks are read in tiles of the same bits (mixed_tiles.py, blocks.cu), other weights in chunks of
one width (mixed_chunks.py, streams.cu).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lutlab.base.errors import LutlabError
from lutlab.base.tensors import MIXED_WIDTHS
from lutlab.formats.mixed import PackedMixed
from lutlab.kernels.gpu.lut_gemv.variant import (
    C_TYPES,
    Gpu,
    Knobs,
    Plan,
    Sizes,
    Step,
    Variant,
    declare,
)
from lutlab.kernels.gpu.mixed_gemv import mixed_chunks, mixed_tiles
from lutlab.kernels.gpu.mixed_gemv.mixed_tiles import CHUNK, CODE_BYTES, SCALE_BYTES, MixedWeight

AUTO = 0
# Halves that share one reading of the weights: so many rows of x, half as many of float32.
SLOTS = 4
STAGES = (2, 4)  # least and most chunks that a warp of mixed_async has room for
AHEAD = 8  # outliers that a thread loads before it needs them, at most
OUTLIERS = ("fused", "cusparse")
RESERVED = 1024  # bytes of shared memory that CUDA takes of each block
_X_BLOCK, _SLOT_UNIT = 144, 64  # bytes of a block of x; of which a slot takes an odd number


@dataclass(frozen=True)
class MixedCase(Sizes):
    """A product with a weight of mixed groups.

    x: dtype of x and y; most_outliers: of a row of W; chunks: of a tile, of 2, 3 and 4 bits, None of memory-aligned
    blocks; by_row: groups of 4 bits have a scale a row; group_size, scale_group: columns of a group, rows of a
    second-order one.
    """

    x: torch.dtype
    most_outliers: int
    chunks: tuple[int, int, int] | None = None
    by_row: bool = True
    group_size: int = 16
    scale_group: int = 16

    @property
    def of_row(self) -> int:
        """Number of chunks of a row."""
        return mixed_tiles.chunks(self.columns) if self.chunks is None else sum(self.chunks)

    @property
    def stage(self) -> int:
        """Bytes of the largest chunk."""
        if self.chunks is None:
            return CODE_BYTES + SCALE_BYTES
        widths = [w for w, count in zip(MIXED_WIDTHS, self.chunks, strict=True) if count]
        scaled = max((w for w in widths if w < 4 or not self.by_row), default=2)
        return 512 * max(widths) + (304 if scaled > 2 else 240)

    @property
    def parts(self) -> int:
        """Number of halves of an x."""
        return 2 if self.x == torch.float32 else 1

    @property
    def batch(self) -> int:
        """Rows of x in one pass over the weights."""
        return -(-self.m // -(-self.m // (SLOTS // self.parts)))

    @property
    def few(self) -> bool:
        """Whether one product of tensor cores has the slots of all rows of a pass."""
        return self.batch * self.parts <= 2


def case(weight: PackedMixed | MixedWeight, x: torch.dtype, m: int = 1) -> MixedCase:
    """The case of a weight, packed for the kernel or not, for m rows of x.

    Raises:
        LutlabError: x is not float16, bfloat16 or float32.
    """
    if x not in C_TYPES:
        raise LutlabError(
            f"x is {x}: the GPU kernels take float16, bfloat16 and float32; convert it"
        )
    by_row = weight.buffers["row_scale"] is not None
    if isinstance(weight, PackedMixed):
        most = mixed_tiles.most_outliers(weight)
        g, rows = weight.group_size, weight.scale_group
        chunks = None if weight.aligned else mixed_chunks.chunks(weight.of_width, g)
        return MixedCase(m, *weight.shape, x, most, chunks, by_row, g, rows)
    return MixedCase(m, *weight.shape, x, weight.most_outliers, weight.chunks, by_row)


def pack(packed: PackedMixed) -> MixedWeight:
    """The weight as its kernel reads it."""
    return mixed_tiles.pack(packed) if packed.aligned else mixed_chunks.pack(packed)


def refuses(case: MixedCase, knobs: Knobs) -> str | None:
    """Groups that are no pieces of 16 columns and 16 rows, and knobs without a kernel."""
    if case.group_size % 16 or case.scale_group % 16:
        return (
            f"g={case.group_size}, scale_group={case.scale_group}: the GPU kernel reads pieces of 16 columns and "
            "16 rows; take multiples of 16"
        )
    stages, warps, slices = (knobs.get(name, AUTO) for name in ("stages", "warps", "slices"))
    if stages != AUTO and not 2 <= stages <= 8:
        return f"stages={stages}: give 2 to 8 chunks that a warp has room for, or 0 for the plan's choice"
    if warps not in (AUTO, 1, 2, 4, 8, 16):
        return f"warps={warps}: give a power of two up to 16, or 0 for the plan's choice"
    if slices < 0:
        return f"slices={slices}: give the number of slices of K, or 0 for the plan's choice"
    if knobs["outliers"] not in OUTLIERS:
        return f"outliers={knobs['outliers']}: give fused (in the same launch) or cusparse (in one of its own)"
    if knobs["outliers"] == "cusparse" and case.x == torch.bfloat16:
        return (
            "x is torch.bfloat16: cuSPARSE takes outliers in the dtype of x, and bfloat16 rounds them; take "
            "outliers=fused"
        )
    return None


def plan(case: MixedCase, gpu: Gpu, knobs: Knobs, overlap: bool = True) -> Plan:
    """One launch; overlap: mixed_async."""
    tiles = -(-case.rows // mixed_tiles.ROWS)
    slice_, warps, stages, blocks = _shape(case, gpu, knobs, tiles)
    stages = stages if overlap else 1
    slices, passes = -(-case.of_row // slice_), -(-case.m // case.batch)
    turns = -(-tiles // max(1, gpu.sms * blocks // slices))  # tiles that a block takes
    fused = case.most_outliers > 0 and knobs["outliers"] == "fused"
    sizes = (case.rows, case.columns, case.m)
    layout, words, widths = "blocks", ["codes", "scales"], {}
    numbers = [*sizes, case.of_row, slice_]
    if case.chunks is not None:
        layout, words, numbers = "streams", ["words"], [*sizes, slice_, *case.chunks]
        _, threes, fours = case.chunks
        widths = {"HAS_3": int(threes > 0), "HAS_4": int(fours > 0), "ROW_SCALES": int(case.by_row)}
    return Plan(
        file=f"mixed_gemv/{layout}.cu",
        parameters={
            "ASYNC": int(overlap),
            "STAGES": stages,
            "WARPS": warps,
            "BLOCKS": blocks,
            "BATCH": case.batch,
            "AHEAD": min(AHEAD, -(-case.most_outliers // (2 * warps))) if fused else 0,
            "STAGE_BYTES": case.stage,
            "X_TYPE": C_TYPES[case.x],
            **widths,
        },
        steps=(
            Step(
                f"mixed_gemv_{layout}",
                (-(-tiles // turns), slices, passes),
                32 * warps,
                (
                    *words,
                    *("row_scale", "row_zero", "source", "outlier_first", "outliers"),
                    *("x", "y", "partial", "arrived"),
                    *numbers,
                ),
                shared=_x_bytes(case, slice_) + warps * stages * case.stage,
            ),
        ),
        workspace={"partial": case.m * slices * case.rows * 4 if slices > 1 else 4},
        zeroed={"arrived": passes * tiles * 4},
        blocks_per_sm=blocks,
    )


def _x_bytes(case: MixedCase, slice_: int) -> int:
    """Bytes of shared memory for a slice of so many chunks of x: its slots, and the sums of its groups."""
    blocks = slice_ * CHUNK
    slot = (blocks * _X_BLOCK // _SLOT_UNIT | 1) * _SLOT_UNIT
    return case.batch * (case.parts * slot + blocks * 4 * 4) + _X_BLOCK


def _shape(case: MixedCase, gpu: Gpu, knobs: Knobs, tiles: int) -> tuple[int, int, int, int]:
    """Chunks of a slice; warps of a block of threads, chunks that each has room for, blocks that share an SM.

    The knobs, or the fewest slices that leave shared memory for all threads of an SM and no SM without a block.

    Where none leaves any, one that does not fit, of which why_not tells.
    """
    chunks = case.of_row
    warps = knobs["warps"] or min(8 if case.few else 4, 1 << (chunks - 1).bit_length())
    most = [knobs["slices"]] if knobs["slices"] else range(1, 1 + -(-chunks // warps))
    tried = (_fitted(case, gpu, knobs, -(-chunks // slices), warps) for slices in most)
    shapes = [shape for shape in tried if shape]
    if not shapes:
        return -(-chunks // most[-1]), warps, knobs.get("stages") or STAGES[0], 1
    best = max(blocks for *_, blocks in shapes)
    good = [shape for shape in shapes if shape[-1] == best]
    busy = (shape for shape in good if tiles * -(-chunks // shape[0]) >= gpu.sms)
    return next(busy, good[-1])


def _fitted(
    case: MixedCase, gpu: Gpu, knobs: Knobs, slice_: int, warps: int
) -> tuple[int, int, int, int] | None:
    """As _shape, with as many blocks on an SM as have room and registers, each with as many chunks under way as fit."""
    least, most = STAGES
    # Of 128, 168 and 255 registers: what NVRTC compiles without spills, by trial.
    threads = 512 if case.few else 384 if case.chunks is None else 256
    rest = _x_bytes(case, slice_) + RESERVED + 512 + case.batch * 128 * (1 + 2 * warps)
    for blocks in range(max(1, threads // (32 * warps)), 0, -1):
        room = min(gpu.sm_shared // blocks, gpu.block_shared + RESERVED) - rest
        stages = knobs.get("stages") or max(least, min(most, room // (warps * case.stage)))
        if stages * warps * case.stage <= room:
            return slice_, warps, stages, blocks
    return None


def _variant(name: str, idea: str, knobs: Knobs, overlap: bool, rank: int) -> Variant:
    return declare(
        Variant(
            name=name,
            idea=idea,
            knobs={**knobs, "warps": AUTO, "slices": AUTO, "outliers": OUTLIERS[0]},
            pack=pack,
            codes=True,
            refuses=refuses,
            plan=lambda case, gpu, knobs: plan(case, gpu, knobs, overlap),
            batch=lambda case: SLOTS // case.parts,
            op="mixed_gemv_gpu",
            rank=rank,
            case=case,
        )
    )


ASYNC = _variant(
    "mixed_async",
    "scales dequantized while codes are copied",
    {"stages": AUTO},
    overlap=True,
    rank=1,
)
SYNC = _variant(
    "mixed_sync", "copies, then dequantizes: the twin without overlap", {}, overlap=False, rank=0
)
