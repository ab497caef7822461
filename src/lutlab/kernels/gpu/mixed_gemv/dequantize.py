"""Mixed groups -> W [N, K] in float16, bfloat16 or float32 on a GPU, for a dense product of many rows of x.

Memory-aligned blocks are read as they are stored, other weights in the layout of the product. Bit for bit
`packed.dequantize()` rounded to the type, but for outliers, whose places are zero: `scatter` puts them in.
"""

from __future__ import annotations

import torch

from lutlab.errors import LutlabError
from lutlab.formats.mixed import PackedMixed
from lutlab.kernels.gpu.dequantize import MOST_BLOCKS, OUT_TYPES, filled
from lutlab.kernels.gpu.lut_gemv.variant import Plan, Step
from lutlab.kernels.gpu.mixed_gemv.mixed_tiles import MixedWeight, places

THREADS = 128
BLOCKS = 4  # of an SM: 128 registers a thread
_BLOCKS = ("blocks", "apart", "meta", "scale_step", "scale_zero", "row_scale", "row_zero")
_CHUNKS = ("words", "row_scale", "row_zero", "source")


def plan(weight: PackedMixed | MixedWeight, dtype: torch.dtype) -> Plan:
    """The launch that fills `dense` [N, K] of a dtype from `buffers`.

    Args:
        weight: packed weight in memory-aligned blocks, or in chunks.
        dtype: float16, bfloat16 or float32.

    Raises:
        LutlabError: dtype is not float16, bfloat16 or float32.
    """
    if dtype not in OUT_TYPES:
        raise LutlabError(
            f"a weight cannot be dequantized to {dtype} on a GPU: ask for float16, bfloat16 or float32"
        )
    rows, columns = weight.shape
    parameters = {"THREADS": THREADS, "BLOCKS": BLOCKS, "OUT_TYPE": OUT_TYPES[dtype]}
    if isinstance(weight, PackedMixed):
        function, groups = "dequantize_mixed", len(weight.widths)
        arguments = (*_BLOCKS, "places", "dense", rows, columns, weight.apart.shape[1], groups)
    else:
        function, groups = "dequantize_mixed_chunks", len(weight.buffers["source"])
        arguments = (*_CHUNKS, "dense", rows, columns, *weight.chunks)
        parameters["ROW_SCALES"] = int(weight.buffers["row_scale"] is not None)
    grid = (-(-groups // THREADS), min(rows, MOST_BLOCKS), 1)
    return Plan(
        file=f"dequantize/{function.removeprefix('dequantize_')}.cu",
        parameters=parameters,
        steps=(Step(function, grid, THREADS, arguments),),
        blocks_per_sm=BLOCKS,
    )


def buffers(weight: PackedMixed | MixedWeight) -> dict[str, torch.Tensor | None]:
    """Buffers that the kernel reads, by the names of the plan."""
    if not isinstance(weight, PackedMixed):
        return {name: weight.buffers[name] for name in _CHUNKS}
    found = {name: getattr(weight, name).contiguous() for name in _BLOCKS}
    return found | {"places": places(weight.widths)}


def outlier_index(packed: PackedMixed) -> torch.Tensor | None:
    """[E] int64: of each outlier its place in W [N, K], flattened; None: there are none."""
    if packed.outlier_count is None:
        return None
    rows, columns = packed.shape
    row = torch.arange(rows, device=packed.widths.device)
    row = row.repeat_interleave(packed.outlier_count.long())
    return row * columns + (packed.outlier_column.long() & 0xFFFF)


def dequantize(weight: PackedMixed | MixedWeight, dtype: torch.dtype) -> torch.Tensor:
    """W [N, K] in a dtype without its outliers, which `scatter` adds.

    Args:
        weight: packed weight in memory-aligned blocks, or in chunks, on a CUDA device.
        dtype: float16, bfloat16 or float32.

    Raises:
        LutlabError: another dtype, no GPU or no compiler.
    """
    return filled(plan(weight, dtype), buffers(weight), weight.shape, dtype)


def scatter(
    dense: torch.Tensor, packed: PackedMixed, outliers: torch.Tensor | None
) -> torch.Tensor:
    """W with the outliers in their places; changed in place."""
    if outliers is not None:
        dense.view(-1)[outliers] = packed.outlier_value.to(dense.dtype)
    return dense
