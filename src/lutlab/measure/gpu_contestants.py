"""lutlab's kernels on a GPU as contestants: the variant that a row names, or the kernel chosen for the rows of x."""

from __future__ import annotations

from lutlab.formats.contract import Format
from lutlab.lazy import torch
from lutlab.measure import products
from lutlab.measure.timed_row import TimedRow
from lutlab.measure.timing import Contestant


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
