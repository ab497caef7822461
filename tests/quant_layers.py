"""Small layers with packed weights, inputs of theirs, and the product that they have to give."""

from __future__ import annotations

import torch
from tests.kernels.checks import inputs
from torch.nn import functional

from lutlab.api import quantize_tensor
from lutlab.modules import QuantLinear

N, K = 24, 40
METHODS = [{"method": "rtn"}, {"method": "bcq"}, {"method": "bcq", "offset": True}]
# Relative L2 error of outputs: float32 sums, or the rounding of the output (and in the torch path of the weight).
LIMIT = {torch.float64: 1e-7, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def weight(seed=0):
    return torch.randn(N, K, generator=torch.Generator().manual_seed(seed))


def layer(bias=True, seed=0, **options):
    packed = quantize_tensor(weight(seed), q=3, g=16, **options or METHODS[0])
    return QuantLinear(packed, torch.linspace(-1, 1, N) if bias else None)


def x(dtype=torch.float32):
    return inputs(10, K, dtype).view(2, 5, K)


def assert_multiplies(module, x):
    y = module(x)
    bias = None if module.bias is None else module.bias.double()
    exact = functional.linear(x.double(), module.packed.dequantize().double(), bias)
    assert (y.dtype, y.shape) == (x.dtype, exact.shape)
    assert (y - exact).norm() <= LIMIT[x.dtype] * exact.norm()
