"""Memory-aligned blocks of 2/4-bit weights on tensor cores: mixed_async (Algorithm 1 of the paper) and mixed_sync.

    mixed_async   cp.async brings the next chunks, and a chunk's codes while its second-order scales are dequantized
    mixed_sync    the same arithmetic, one chunk after the other: copied, waited for, dequantized, multiplied

Li et al., "Fast and Efficient 2-bit LLM Inference on GPU" (ICCAD 2024), section 5. Codes and x of 16 bits are exact in
a half, float32 x are two; sums are float32 in one order. Outliers: `outliers=fused` adds them in the same launch;
`cusparse`, as the paper has it, in a second one (sparse.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lutlab.errors import LutlabError
from lutlab.formats import mixed_tiles
from lutlab.formats.mixed import PackedMixed
from lutlab.formats.mixed_tiles import CHUNK, CODE_BYTES, SCALE_BYTES, PackedMixedTiles
from lutlab.kernels.gpu.lut_gemv.variant import (
    C_TYPES,
    Gpu,
    Knobs,
    Plan,
    Space,
    Step,
    Variant,
)

FILE = "mixed_gemv/blocks.cu"
AUTO = 0
SLOTS = (
    4  # halves that share one reading of the weights: so many rows of x, half as many of float32
)
STAGE = CODE_BYTES + SCALE_BYTES
STAGES = (2, 4)  # least and most chunks that a warp of mixed_async has room for
AHEAD = 8  # outliers that a thread loads before it needs them, at most
OUTLIERS = ("fused", "cusparse")
RESERVED = 1024  # bytes of shared memory that CUDA takes of each block
_X_BLOCK, _SLOT_UNIT = 144, 64  # bytes of a block of x; of which a slot takes an odd number


@dataclass(frozen=True)
class MixedCase:
    """A product y[m, rows] = x[m, columns] W^T with a weight in blocks.

    x: dtype of x and y; most_outliers: of a row of W.
    """

    m: int
    rows: int
    columns: int
    x: torch.dtype
    most_outliers: int

    @property
    def parts(self) -> int:
        """Halves of an x."""
        return 2 if self.x == torch.float32 else 1

    @property
    def batch(self) -> int:
        """Rows of x in one pass over the weights."""
        return -(-self.m // -(-self.m // (SLOTS // self.parts)))

    @property
    def few(self) -> bool:
        """Whether one product of tensor cores has the slots of all rows of a pass."""
        return self.batch * self.parts <= 2


@dataclass(frozen=True)
class Shape:
    """Chunks of a slice; warps of a block of threads, chunks that each has room for, blocks that share an SM."""

    slice: int
    warps: int
    stages: int
    blocks: int


def case(weight: PackedMixed | PackedMixedTiles, x: torch.dtype, m: int = 1) -> MixedCase:
    """The case of a weight, packed for the kernel or not, for m rows of x.

    Raises:
        LutlabError: x is not float16, bfloat16 or float32.
    """
    if x not in C_TYPES:
        raise LutlabError(
            f"x is {x}: the GPU kernels take float16, bfloat16 and float32; convert it"
        )
    if isinstance(weight, PackedMixedTiles):
        most = weight.most_outliers
    else:
        count = weight.outlier_count
        most = 0 if count is None else int(count.max())
    return MixedCase(m, *weight.shape, x, most)


def refuses(case: MixedCase, knobs: Knobs) -> str | None:
    """See Variant."""
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
    """See Variant; overlap: mixed_async."""
    chunks, tiles = mixed_tiles.chunks(case.columns), -(-case.rows // mixed_tiles.ROWS)
    shape = _shape(case, gpu, knobs, chunks, tiles)
    stages = shape.stages if overlap else 1
    slices, passes = -(-chunks // shape.slice), -(-case.m // case.batch)
    turns = -(-tiles // max(1, gpu.sms * shape.blocks // slices))  # tiles that a block takes
    fused = case.most_outliers > 0 and knobs["outliers"] == "fused"
    return Plan(
        file=FILE,
        parameters={
            "ASYNC": int(overlap),
            "STAGES": stages,
            "WARPS": shape.warps,
            "BLOCKS": shape.blocks,
            "BATCH": case.batch,
            "AHEAD": min(AHEAD, -(-case.most_outliers // (2 * shape.warps))) if fused else 0,
            "STAGE_BYTES": STAGE,
            "X_TYPE": C_TYPES[case.x],
        },
        steps=(
            Step(
                "mixed_gemv_blocks",
                (-(-tiles // turns), slices, passes),
                32 * shape.warps,
                (
                    *("codes", "scales", "row_scale", "row_zero", "source", "outlier_first"),
                    *("outliers", "x", "y", "partial", "arrived"),
                    *(case.rows, case.columns, case.m, chunks, shape.slice),
                ),
                shared=_x_bytes(case, shape.slice) + shape.warps * stages * STAGE,
            ),
        ),
        workspace={
            "partial": Space(case.m * slices * case.rows * 4 if slices > 1 else 4),
            "arrived": Space(passes * tiles * 4, zeroed=True),
        },
        blocks_per_sm=shape.blocks,
    )


def _x_bytes(case: MixedCase, slice_: int) -> int:
    """Of shared memory for a slice of so many chunks of x: its slots, and the sums of its groups."""
    blocks = slice_ * CHUNK
    slot = (blocks * _X_BLOCK // _SLOT_UNIT | 1) * _SLOT_UNIT
    return case.batch * (case.parts * slot + blocks * 4 * 4) + _X_BLOCK


def _shape(case: MixedCase, gpu: Gpu, knobs: Knobs, chunks: int, tiles: int) -> Shape:
    """The knobs, or the fewest slices that leave shared memory for all threads of an SM and no SM without a block."""
    warps = knobs["warps"] or min(8 if case.few else 4, 1 << (chunks - 1).bit_length())
    most = [knobs["slices"]] if knobs["slices"] else range(1, 1 + -(-chunks // warps))
    found = [_fitted(case, gpu, knobs, -(-chunks // slices), warps) for slices in most]
    best = max(one.blocks for one in found)
    for one in found:
        busy = tiles * -(-chunks // one.slice) >= gpu.sms
        if one.blocks == best and (busy or one is found[-1]):
            return one
    return next(one for one in found if one.blocks == best)


def _fitted(case: MixedCase, gpu: Gpu, knobs: Knobs, slice_: int, warps: int) -> Shape:
    """As many blocks on an SM as have room and registers, each with as many chunks under way as are left."""
    least, most = STAGES
    threads = 512 if case.few else 384  # of 128, 168 registers: no spills, by trial
    rest = _x_bytes(case, slice_) + RESERVED + 512 + case.batch * 128 * (1 + 2 * warps)
    blocks = max(1, threads // (32 * warps))
    while True:
        room = min(gpu.sm_shared // blocks, gpu.block_shared + RESERVED) - rest
        stages = knobs.get("stages") or max(least, min(most, room // (warps * STAGE)))
        if blocks == 1 or stages * warps * STAGE <= room:
            return Shape(slice_, warps, stages, blocks)
        blocks -= 1


def _variant(name: str, idea: str, knobs: Knobs, overlap: bool) -> Variant:
    return Variant(
        name=name,
        idea=idea,
        knobs=knobs | {"warps": AUTO, "slices": AUTO, "outliers": OUTLIERS[0]},
        pack=mixed_tiles.pack,
        codes=True,
        refuses=refuses,
        plan=lambda case, gpu, knobs: plan(case, gpu, knobs, overlap),
        batch=lambda case: SLOTS // case.parts,
        op="mixed_gemv_gpu",
        case=case,
    )


ASYNC = _variant(
    "mixed_async", "scales dequantized while codes are copied", {"stages": AUTO}, overlap=True
)
SYNC = _variant(
    "mixed_sync", "copies, then dequantizes: the twin without overlap", {}, overlap=False
)
