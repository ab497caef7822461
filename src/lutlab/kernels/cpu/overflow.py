"""Rows of a product that a kernel has not made finite, put right by the dense product.

A kernel sums codes times x before it scales, and x in tables, so that float32 x from 1e35 on can overflow where
x W^T does not; inf in x becomes NaN on the way. Kernels say whether all of y is finite, which they see while y is in
the cache: only where it is not, the weight is dequantized. Rows that are finite stay as the kernel made them.
"""

from __future__ import annotations

import torch


def mend(y: torch.Tensor, x: torch.Tensor, dense: torch.Tensor) -> bool:
    """Put what torch gives for x and the dense weight, in x's dtype, in the place of every row that is not finite.

    Args:
        y: [M, N] float32, the kernel's product; changed in place.
        x: [M, K], without gradients.
        dense: the weight [N, K] float32.

    Returns:
        Whether a row was not: y may be longer than N, and only its end not finite.
    """
    lost = (~y.isfinite()).any(-1)
    if not lost.any():
        return False
    # All rows at once: sums are as torch orders them.
    again = torch.nn.functional.linear(x, dense.to(x.dtype))
    y[lost] = again[lost].float()
    return True
