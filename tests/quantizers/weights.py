"""Random weights, what methods ask for beside them, errors, and weights by their definition, in float64."""

from __future__ import annotations

import functools

import torch

from lutlab import formats
from lutlab.base.tensors import BCQTensor, CalibStats
from lutlab.quantizers.contract import Calibrated

# To the last bit, dtypes and keys too: of tensors, numbers and None, and of mappings and sequences of them.
assert_same = functools.partial(torch.testing.assert_close, rtol=0, atol=0)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def correlated(in_features: int, seed: int = 0, tokens: int | None = None) -> torch.Tensor:
    """[K, K] float32, X^T X / M of Gaussian inputs that mix K hidden factors of falling size."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.arange(1, in_features + 1).float().rsqrt()
    mix = torch.randn(in_features, in_features, generator=generator) * size.unsqueeze(1)
    x = torch.randn(tokens or 4 * in_features, in_features, generator=generator) @ mix
    return x.t() @ x / len(x)


def stats_of(hessian):
    return CalibStats(hessian, hessian.diagonal().sqrt(), 1)


def prepared(method, hessian):
    """What the driver gives a method beside weight, q and g: nothing, unless it is calibrated."""
    return (method.prepare(stats_of(hessian)),) if isinstance(method, Calibrated) else ()


def quantize(method, weight, q, g, hessian):
    return method.quantize(weight, q, g, *prepared(method, hessian))


def row_errors(weight, tensor, hessian):
    """(W - W_hat) H (W - W_hat)^T of each row, float64."""
    error = formats.dequantize(tensor).double() - weight.double()
    return ((error @ hessian.double()) * error).sum(dim=1)


def output_error(method, weight, q, g, hessian):
    """That of all rows, of what a method makes of a weight."""
    return row_errors(weight, quantize(method, weight, q, g, hessian), hessian).sum().item()


def exact(tensor):
    """W_hat [N, K] of binary or uniform codes in float64; gradients pass to its coefficients."""
    columns = tensor.codes.shape[1]
    group = torch.arange(columns) // (columns if tensor.group_size == -1 else tensor.group_size)
    value = 0.0 if tensor.offset is None else tensor.offset.double()[:, group]
    if isinstance(tensor, BCQTensor):
        for b, alpha in enumerate(tensor.alpha.double()):
            value = value + (2.0 * (tensor.codes >> b & 1) - 1) * alpha[:, group]
    else:
        zero = 0.0 if tensor.zero_point is None else tensor.zero_point.double()[:, group]
        value = tensor.scale.double()[:, group] * (tensor.codes - zero) + value
    order = torch.arange(columns) if tensor.order is None else tensor.order.long()
    return torch.empty_like(value).index_copy(1, order, value)
