"""Memory-aligned blocks -> W [N, K] in float16, bfloat16 or float32 on a GPU, for a dense product of many rows of x.

Bit for bit `packed.dequantize()` rounded to the type, but for outliers, whose places are zero: `scatter` puts them in.
"""

from __future__ import annotations

import torch

from lutlab.errors import LutlabError
from lutlab.formats.mixed import PackedMixed
from lutlab.formats.mixed_tiles import places
from lutlab.kernels.gpu.dequantize import MOST_BLOCKS, OUT_TYPES, filled
from lutlab.kernels.gpu.lut_gemv.variant import Plan, Step

THREADS = 128
BLOCKS = 4  # of an SM: 128 registers a thread
_NAMES = ("blocks", "apart", "meta", "scale_step", "scale_zero", "row_scale", "row_zero")


def plan(packed: PackedMixed, dtype: torch.dtype) -> Plan:
    """The launch that fills `dense` [N, K] of a dtype from `buffers`.

    Raises:
        LutlabError: dtype is not float16, bfloat16 or float32.
    """
    if dtype not in OUT_TYPES:
        raise LutlabError(
            f"a weight cannot be dequantized to {dtype} on a GPU: ask for float16, bfloat16 or float32"
        )
    rows, columns = packed.shape
    groups = len(packed.widths)
    grid = (-(-groups // THREADS), min(rows, MOST_BLOCKS), 1)
    sizes = (rows, columns, packed.apart.shape[1], groups)
    return Plan(
        file="dequantize/mixed.cu",
        parameters={"THREADS": THREADS, "BLOCKS": BLOCKS, "OUT_TYPE": OUT_TYPES[dtype]},
        steps=(Step("dequantize_mixed", grid, THREADS, (*_NAMES, "places", "dense", *sizes)),),
        blocks_per_sm=BLOCKS,
    )


def buffers(packed: PackedMixed) -> dict[str, torch.Tensor]:
    """Buffers that the kernel reads, by the names of the plan."""
    found = {name: getattr(packed, name).contiguous() for name in _NAMES}
    return found | {"places": places(packed.widths)}


def outlier_index(packed: PackedMixed) -> torch.Tensor | None:
    """[E] int64: of each outlier its place in W [N, K], flattened; None: there are none."""
    if packed.outlier_count is None:
        return None
    rows, columns = packed.shape
    row = torch.arange(rows, device=packed.widths.device)
    row = row.repeat_interleave(packed.outlier_count.long())
    return row * columns + (packed.outlier_column.long() & 0xFFFF)


def dequantize(
    packed: PackedMixed, dtype: torch.dtype, outliers: torch.Tensor | None
) -> torch.Tensor:
    """W [N, K] in a dtype.

    Args:
        packed: in memory-aligned blocks, on a CUDA device.
        dtype: float16, bfloat16 or float32.
        outliers: of outlier_index.

    Raises:
        LutlabError: another dtype, no GPU or no compiler.
    """
    dense = filled(plan(packed, dtype), buffers(packed), packed.shape, dtype)
    return scatter(dense, packed, outliers)


def scatter(
    dense: torch.Tensor, packed: PackedMixed, outliers: torch.Tensor | None
) -> torch.Tensor:
    """W with the outliers in their places; changed in place."""
    if outliers is not None:
        dense.view(-1)[outliers] = packed.outlier_value.to(dense.dtype)
    return dense
