"""lutlab's kernels on a GPU as contestants: the variant that a row names, or the kernel chosen for the rows of x."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.contract import Format
from lutlab.formats.uniform import PackedUniform
from lutlab.lazy import torch
from lutlab.measure import products
from lutlab.measure.timed_row import TimedRow
from lutlab.measure.timing import Contestant

if TYPE_CHECKING:
    from lutlab.kernels.gpu.lut_gemv.launcher import Product
    from lutlab.kernels.gpu.lut_gemv.variant import Knobs


def quantized(row: TimedRow, x: torch.Tensor, packed: Format, kernel: str) -> Contestant:
    """A variant of the GPU kernel, or what the dispatch takes for so many rows of x.

    Raises:
        LutlabError: no such variant, or it does not take the weight here.
    """
    from lutlab.kernels.dispatch import prepare

    variant = products.variant_of(kernel)
    knobs = dict(row.spec.knobs) if variant and kernel == row.spec.kernel else None
    asked = {"variant": variant, "knobs": knobs}
    op = packed.kernels["cuda"][0]
    return row.executed(prepare(packed, x.device, len(x), x.dtype, op=op, **asked), x)


def cold_products(
    packed: PackedBCQ | PackedUniform,
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


def stored_bytes(packed: PackedBCQ) -> int:
    """Bytes of planes, alphas and offsets, which dequantizing reads."""
    buffers = (packed.planes, packed.alpha, packed.offset)
    return sum(buffer.nbytes for buffer in buffers if buffer is not None)
