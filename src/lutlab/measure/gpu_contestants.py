"""lutlab's kernels on a GPU as contestants: the variant that a row names, or the kernel chosen for the rows of x."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lutlab.measure import products
from lutlab.measure.timed_row import TimedRow
from lutlab.measure.timing import Contestant

if TYPE_CHECKING:
    import torch

    from lutlab.formats.bcq import PackedBCQ
    from lutlab.kernels.gpu.lut_gemv.launcher import Product
    from lutlab.kernels.gpu.lut_gemv.variant import Knobs


def quantized(row: TimedRow, x: torch.Tensor, packed: PackedBCQ, kernel: str) -> Contestant:
    """A variant of the GPU kernel, or dequantizing and cuBLAS where choice.py takes that for so many rows of x.

    Raises:
        LutlabError: no such variant, or it does not take the weight here.
    """
    from lutlab.kernels.gpu import choice

    variant = products.variant_of(kernel) or _chosen(packed, x)
    if variant == choice.DENSE:
        return _through_dense(packed, x)
    knobs = dict(row.spec.knobs) if kernel == row.spec.kernel else None
    copies, size = cold_products(packed, x.dtype, x.device, variant, row.copies, knobs)
    for product in copies:
        product.prepare(len(x))
    return Contestant(copies[0].describe(), size, len(copies), lambda i: copies[i](x))


def cold_products(
    packed: PackedBCQ,
    dtype: torch.dtype,
    device: torch.device | str,
    variant: str,
    copies: Callable[[int], int],
    knobs: Knobs | None = None,
) -> tuple[list[Product], int]:
    """A variant's product with as many copies of its weights as are cold, and the bytes of one copy, scales included.

    Args:
        packed: the weight.
        dtype: of x and y.
        device: a GPU.
        variant: its name.
        copies: their number, for weights of so many bytes.
        knobs: of the variant, in the place of its defaults.

    Raises:
        LutlabError: as launcher.bind.
    """
    from lutlab.kernels.gpu.lut_gemv import launcher

    first = launcher.bind(packed, dtype, device, variant, knobs)
    size = sum(buffer.nbytes for buffer in first.weight.buffers.values() if buffer is not None)
    return [first, *(first.copy() for _ in range(copies(size) - 1))], size


def _chosen(packed: PackedBCQ, x: torch.Tensor) -> str:
    """The variant, or choice.DENSE, that a quantized layer takes for x."""
    import torch

    from lutlab.kernels.gpu import choice
    from lutlab.kernels.gpu.lut_gemv import launcher
    from lutlab.kernels.gpu.lut_gemv.variant import case

    wanted, device = case(packed, x.dtype, len(x)), launcher.device_of(x.device)
    name = torch.cuda.get_device_name(device)
    return choice.choose(wanted, launcher.gpu(device), name)[0]


def _through_dense(packed: PackedBCQ, x: torch.Tensor) -> Contestant:
    from lutlab.kernels.gpu.linear import gpu_linear

    linear = gpu_linear(packed)
    name = "dequantize every call, cuBLAS"
    return Contestant(name, stored_bytes(packed), 1, lambda i: linear(x))


def stored_bytes(packed: PackedBCQ) -> int:
    """Bytes of planes, alphas and offsets, which dequantizing reads."""
    buffers = (packed.planes, packed.alpha, packed.offset)
    return sum(buffer.nbytes for buffer in buffers if buffer is not None)
