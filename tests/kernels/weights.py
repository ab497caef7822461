"""Random weights and the error of a product, for the tests of kernels over blocks of rows."""

from __future__ import annotations

import torch

from lutlab.base.groups import group_count
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.formats import bcq
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.cpu import bcq_gemv, uniform_gemv


def bcq_tensor(rows, columns, q, g, *, alpha="f16", offset=None, ordered=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    dtypes = {"f16": torch.float16, "f32": torch.float32}
    groups = group_count(g, columns)
    return BCQTensor(
        codes=torch.randint(0, 2**q, (rows, columns), generator=generator, dtype=torch.uint8),
        alpha=torch.randn(q, rows, groups, generator=generator).to(dtypes[alpha]),
        offset=None
        if offset is None
        else torch.randn(rows, groups, generator=generator).to(dtypes[offset]),
        bits=q,
        group_size=g,
        order=torch.randperm(columns, generator=generator).int() if ordered else None,
    )


def uniform_tensor(rows, columns, q, g, *, scale="f16", shift=None, ordered=False, seed=0):
    """shift: None for zero points, or the dtype of float offsets, which lie between them."""
    generator = torch.Generator().manual_seed(seed)
    groups = group_count(g, columns)
    dtypes = {"f16": torch.float16, "f32": torch.float32}
    codes = torch.randint(0, 2**q, (rows, columns), generator=generator, dtype=torch.uint8)
    steps = (torch.rand(rows, groups, generator=generator) + 0.5).to(dtypes[scale])
    # Around the middle, as weights around zero have it: no sum cancels by far more than theirs do.
    zero = torch.randint(2**q // 2 - 3, 2**q // 2 + 3, (rows, groups), generator=generator)
    order = torch.randperm(columns, generator=generator).int() if ordered else None
    if shift is None:
        return UniformTensor(codes, steps, zero.short(), q, g, order)
    offset = -steps.float() * (zero + torch.rand(rows, groups, generator=generator))
    return UniformTensor(codes, steps, None, q, g, order, offset.to(dtypes[shift]))


def packed(rows, columns, kind, q, g, *, lane_bytes=4, **options):
    """A packed weight; kind: planes, planes of uniform codes, or codes."""
    if kind == "planes":
        plain = bcq.pack(bcq_tensor(rows, columns, q, g, **options))
    else:
        plain = PackedUniform.pack(uniform_tensor(rows, columns, q, g, **options))
    empty = uniform_gemv.empty(plain) if kind == "codes" else bcq_gemv.empty(plain, lane_bytes)
    return empty.filled(plain)


def relative_error(y, x, weight):
    """|y - x W^T| / |x W^T|, the product in float64."""
    expected = x.double() @ weight.double().t()
    return ((y.double() - expected).norm() / expected.norm()).item()
