"""Random weights, plain and packed, for the tests of formats and kernels."""

from __future__ import annotations

import torch

from lutlab.base.groups import group_count
from lutlab.base.tensors import (
    BCQTensor,
    SecondOrderTensor,
    UniformSecondOrderTensor,
    UniformTensor,
)
from lutlab.formats import bcq
from lutlab.formats.bcq_second_order import PackedSecondOrder
from lutlab.formats.uniform import PackedUniform
from lutlab.formats.uniform_second_order import PackedUniformSecondOrder
from lutlab.kernels.cpu import bcq_gemv, uniform_gemv

DTYPES = {"f16": torch.float16, "f32": torch.float32, "f64": torch.float64}


def bcq_tensor(rows, columns, q, g, *, alpha="f16", offset=None, ordered=False, seed=0):
    draw, groups = torch.Generator().manual_seed(seed), group_count(g, columns)
    codes = torch.randint(0, 2**q, (rows, columns), generator=draw, dtype=torch.uint8)
    scales = torch.randn(q, rows, groups, generator=draw).to(DTYPES[alpha])
    offsets = offset and torch.randn(rows, groups, generator=draw).to(DTYPES[offset])
    order = torch.randperm(columns, generator=draw).int() if ordered else None
    return BCQTensor(codes, scales, offsets, q, g, order)


def second_order_tensor(rows, columns, q, g, *, scale_bits=4, offset=True, ordered=False, seed=0):
    draw, grids = torch.Generator().manual_seed(seed), (q + offset, rows)
    size = (*grids, group_count(g, columns))
    return SecondOrderTensor(
        codes=torch.randint(0, 2**q, (rows, columns), generator=draw, dtype=torch.uint8),
        scale_code=torch.randint(0, 2**scale_bits, size, generator=draw, dtype=torch.uint8),
        scale_step=torch.randint(1, 16, grids, generator=draw).half() / 64,
        scale_zero=torch.randint(
            -128, 129 - 2**scale_bits, grids, generator=draw, dtype=torch.int8
        ),
        bits=q,
        group_size=g,
        scale_bits=scale_bits,
        order=torch.randperm(columns, generator=draw).int() if ordered else None,
    )


def uniform_tensor(
    rows, columns, q, g, *, scale="f16", shift=None, zeros=None, ordered=False, seed=0
):
    """shift: None for zero points, from a range, or the dtype of float offsets, which lie between them."""
    draw, groups = torch.Generator().manual_seed(seed), group_count(g, columns)
    codes = torch.randint(0, 2**q, (rows, columns), generator=draw, dtype=torch.uint8)
    steps = (torch.rand(rows, groups, generator=draw) + 0.5).to(DTYPES[scale])
    # Around the middle, as weights around zero have it: no sum cancels by far more than theirs do.
    zeros = zeros or (2**q // 2 - 3, 2**q // 2 + 3)
    zero = torch.randint(*zeros, (rows, groups), generator=draw)
    order = torch.randperm(columns, generator=draw).int() if ordered else None
    if shift is None:
        return UniformTensor(codes, steps, zero.short(), q, g, order)
    offset = -steps.float() * (zero + torch.rand(rows, groups, generator=draw))
    return UniformTensor(codes, steps, None, q, g, order, offset.to(DTYPES[shift]))


def uniform_second_order_tensor(rows, columns, q, g, *, scale_bits=4, **options):
    uniform, draw = uniform_tensor(rows, columns, q, g, **options), torch.Generator().manual_seed(1)
    size = (1, *uniform.scale.shape)
    return UniformSecondOrderTensor(
        codes=uniform.codes,
        scale_code=torch.randint(0, 2**scale_bits, size, generator=draw, dtype=torch.uint8),
        scale_step=torch.randint(1, 16, (1, rows), generator=draw).half() / 64,
        scale_zero=torch.randint(1, 129 - 2**scale_bits, (1, rows), generator=draw).to(torch.int8),
        zero_point=uniform.zero_point,
        bits=q,
        group_size=g,
        scale_bits=scale_bits,
        order=uniform.order,
    )


def packed(rows, columns, kind, q, g, *, lane_bytes=4, few=False, **options):
    """A packed weight; kind: planes, planes of second order, planes of uniform codes, codes; few: of second order."""
    if kind == "second order":
        plain = PackedSecondOrder.pack(second_order_tensor(rows, columns, q, g, **options))
    elif kind == "planes":
        plain = bcq.pack(bcq_tensor(rows, columns, q, g, **options))
    elif few:
        tensor = uniform_second_order_tensor(rows, columns, q, g, **options)
        plain = PackedUniformSecondOrder.pack(tensor)
    else:
        plain = PackedUniform.pack(uniform_tensor(rows, columns, q, g, **options))
    empty = uniform_gemv.empty(plain) if kind == "codes" else bcq_gemv.empty(plain, lane_bytes)
    return empty.filled(plain)
