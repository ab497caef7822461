"""OPTQ's way, a baseline that is never chosen: dequantize 2 to 4 bit codes by a table of pairs, then multiply."""

from __future__ import annotations

import torch

from lutlab.formats import code_streams, lut_gemm
from lutlab.kernels.gpu.lut_gemv.variant import Case, Gpu, Knobs, Plan, Step, Variant

FILE = "lut_gemv/optq.cu"


def refuses(case: Case, knobs: Knobs) -> str | None:
    """See Variant."""
    threads, columns = knobs["threads"], knobs["columns"]
    if not case.uniform:
        return (
            "the weight has no uniform codes with one scale a group (Eq. 5): optq takes those, lane_tables any "
            "binary code"
        )
    if case.bits not in (2, 3, 4):
        return f"q={case.bits}: optq has tables of pairs of 2 to 4 bits; uniform_mma takes 1 to 8"
    if case.x != torch.float16:
        return f"x is {case.x}: optq multiplies halves; convert x to float16, or take lane_tables"
    if not case.whole_words:
        return f"g={case.group_size}: optq takes groups that are multiples of 32, or one group; paper takes any"
    if threads not in (32, 64, 128, 256, 512, 1024):
        return f"threads={threads}: give a power of two from 32 to 1024"
    if columns < 32 or columns % 32:
        return f"columns={columns}: give a multiple of 32 columns a block"
    return None


def plan(case: Case, gpu: Gpu, knobs: Knobs) -> Plan:
    """See Variant."""
    threads, columns = knobs["threads"], knobs["columns"]
    stride = lut_gemm.stride(case.rows)
    grid = (-(-case.rows // threads), -(-case.columns // columns), case.m)
    sizes = (case.rows, case.columns, stride, case.group)
    return Plan(
        file=FILE,
        parameters={
            "BITS": case.bits,
            "COLUMNS": columns,
            "THREADS": threads,
            "SCALE_TYPE": case.types["ALPHA_TYPE"],
        },
        steps=(Step("lut_gemv_optq", grid, threads, ("words", "scales", "x", "y", *sizes)),),
        zero_y=True,
    )


VARIANT = Variant(
    name="optq",
    idea="OPTQ's baseline: codes dequantized by a table of pairs, atomicAdd",
    knobs={"columns": 256, "threads": 256},
    pack=code_streams.pack,
    codes=True,
    refuses=refuses,
    plan=plan,
    deterministic=False,
)
