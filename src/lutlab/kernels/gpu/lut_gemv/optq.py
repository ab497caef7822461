"""OPTQ's way, a baseline that is never chosen: dequantize 2 to 4 bit codes by a table of pairs, then multiply.

    W[n, k] = s[group of k, n] * (code[n, k] - zero[group of k, n])                             LUT-GEMM Eq. 5

Codes are streams of bits, rows side by side: code j of 32 takes bits j*q .. j*q + q-1 of q words, lowest bit first
(formats/code_words.py draws it).

    words [ceil(K / 32), q, S] int32, S = N rounded up to 32;  scales [G, 2, S]: s, zero, both float16 or both float32
"""

from __future__ import annotations

import torch

from lutlab.formats.code_words import WORD, pack_words
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
    stride,
)

FILE = "lut_gemv/optq.cu"


def pack(packed: PackedUniform) -> Weight:
    """Pack a stored weight."""
    codes, (rows, columns) = packed.unpack().codes, packed.shape
    codes = torch.nn.functional.pad(codes, (0, -columns % WORD, 0, stride(rows) - rows))
    words = pack_words(codes, packed.bits).view(stride(rows), -1, packed.bits)
    scale, zero = scales_and_zeros(packed)
    scales = scale.new_zeros(scale.shape[1], 2, stride(rows))
    scales[:, 0, :rows], scales[:, 1, :rows] = scale.t(), zero.t()
    buffers = {"words": words.permute(1, 2, 0).contiguous(), "scales": scales}
    return Weight(buffers, packed.shape, packed.bits, packed.group_size, packed.order)


def refuses(case: Case, knobs: Knobs) -> str | None:
    """Codes that are not uniform or not of 2 to 4 bits, x that is not float16, and blocks without a kernel."""
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
    """One launch, of blocks of `threads` rows and `columns` columns, which add to y."""
    threads, columns = knobs["threads"], knobs["columns"]
    grid = (-(-case.rows // threads), -(-case.columns // columns), case.m)
    sizes = (case.rows, case.columns, stride(case.rows), case.group)
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


VARIANT = declare(
    Variant(
        name="optq",
        idea="OPTQ's baseline: codes dequantized by a table of pairs, atomicAdd",
        knobs={"columns": 256, "threads": 256},
        pack=pack,
        codes=True,
        refuses=refuses,
        plan=plan,
        deterministic=False,
    )
)
