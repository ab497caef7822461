"""BCQ planes -> W [N, K] in float16, bfloat16 or float32 on a GPU, for a dense product of many rows of x.

    W[n, k] = offset[n, g] + sum_b (+ or -) alpha[b, n, g]                                          LUT-GEMM Eq. 2

Bit for bit `packed.dequantize()` rounded to the type, except that `order` is not undone: column j is input channel
order[j], and x is permuted instead, which moves M K numbers and not N K. Uniform codes are BCQ too (Eq. 5).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lutlab.base.errors import LutlabError
from lutlab.base.groups import group_length
from lutlab.formats.bcq import PackedBCQ
from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.kernels.gpu.lut_gemv.variant import C_TYPES, Plan, Step

SCALE_TYPES = {torch.float16: "__half", torch.float32: "float", torch.float64: "double"}
THREADS = 128
BLOCKS = 4  # of an SM: 128 registers a thread
COLUMNS = 8  # of a thread
MOST_BLOCKS = 65_535  # of a grid's second dimension


def plan(packed: PackedBCQ, dtype: torch.dtype) -> Plan:
    """The launch that fills `dense` [N, K] of a dtype from the buffers `planes`, `alpha` and `offset`.

    Raises:
        LutlabError: dtype is not float16, bfloat16 or float32.
    """
    rows, columns = packed.shape
    offset = None if packed.offset is None else packed.offset.dtype
    grid = (-(-columns // (COLUMNS * THREADS)), min(rows, MOST_BLOCKS), 1)
    group = group_length(packed.group_size, columns)
    sizes = (rows, columns, group, packed.alpha.shape[2])
    return Plan(
        file="dequantize/bcq.cu",
        parameters={
            "BITS": len(packed.planes),
            "THREADS": THREADS,
            "BLOCKS": BLOCKS,
            "OUT_TYPE": out_type(dtype),
            "ALPHA_TYPE": SCALE_TYPES[packed.alpha.dtype],
            "OFFSET_TYPE": SCALE_TYPES.get(offset or torch.float32, "float"),
            "HAS_OFFSET": int(offset is not None),
        },
        steps=(
            Step("dequantize_bcq", grid, THREADS, ("planes", "alpha", "offset", "dense", *sizes)),
        ),
        blocks_per_sm=BLOCKS,
    )


def out_type(dtype: torch.dtype) -> str:
    """C's name of a dtype of the dense weight.

    Raises:
        LutlabError: dtype is not float16, bfloat16 or float32.
    """
    if dtype not in C_TYPES:
        raise LutlabError(
            f"a weight cannot be dequantized to {dtype} on a GPU: ask for float16, bfloat16 or float32"
        )
    return C_TYPES[dtype]


def buffers(packed: PackedBCQ) -> dict[str, torch.Tensor | None]:
    """Buffers that the kernel reads, by the names of the plan.

    Raises:
        LutlabError: a buffer is not contiguous.
    """
    tensors = {"planes": packed.planes, "alpha": packed.alpha, "offset": packed.offset}
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_contiguous():
            raise LutlabError(
                f"{name} is not contiguous (strides {tensor.stride()}): call contiguous()"
            )
    return tensors


@functools.cache
def _kernel(
    file: str, function: str, parameters: tuple[tuple[str, int | str], ...], device: torch.device
) -> Any:
    """The compiled kernel, loaded once."""
    gpu = launcher.gpu(device)
    built = cuda.build(cuda.source(file, dict(parameters)), "dequantize", gpu.arch)
    return launcher.load_kernel(str(built.path), function, device, gpu)


def dequantize(packed: PackedBCQ, dtype: torch.dtype) -> torch.Tensor:
    """W [N, K] in a dtype, in the order of the planes' columns.

    Raises:
        LutlabError: dtype is not float16, bfloat16 or float32; no GPU or no compiler.
    """
    return filled(plan(packed, dtype), buffers(packed), packed.shape, dtype)


def filled(
    launch: Plan,
    buffers: Mapping[str, torch.Tensor | None],
    shape: tuple[int, int],
    dtype: torch.dtype,
) -> torch.Tensor:
    """The matrix of a shape and dtype that a plan of one launch fills from buffers, on their CUDA device.

    Raises:
        LutlabError: no GPU or no compiler.
    """
    (step,) = launch.steps
    device = next(tensor for tensor in buffers.values() if tensor is not None).device
    dense = torch.empty(shape, dtype=dtype, device=device)
    buffers, device = {**buffers, "dense": dense}, launcher.device_of(device)
    kernel = _kernel(launch.file, step.function, tuple(launch.parameters.items()), device)
    arguments = tuple(
        np.int32(a) if isinstance(a, int) else launcher.pointer(buffers[a]) for a in step.arguments
    )
    with launcher.on_torch_stream(device):
        kernel(step.grid, (step.block, 1, 1), arguments, shared_mem=0)
    return dense
