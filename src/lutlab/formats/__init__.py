"""Weights as kernels read them: one file a layout, each with pack, unpack, dequantize and its size in bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lutlab.formats import bcq, dense
from lutlab.tensors import DenseTensor, PackedWeight, QuantizedTensor, UniformTensor

if TYPE_CHECKING:
    import torch


def pack(tensor: QuantizedTensor) -> PackedWeight:
    """Pack what a quantizer returned; a uniform tensor becomes binary codes with an offset, LUT-GEMM Eq. 5.

    Raises:
        LutlabError: scales that the layout cannot represent (inf, nan, out of float32's range).
    """
    if isinstance(tensor, DenseTensor):
        return dense.pack(tensor)
    if isinstance(tensor, UniformTensor):
        return bcq.pack(bcq.from_uniform(tensor))
    return bcq.pack(tensor)


def dequantize(tensor: QuantizedTensor) -> torch.Tensor:
    """The weights a kernel would multiply with: [N, K] float32."""
    return pack(tensor).dequantize()
