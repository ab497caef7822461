"""What every variant of the GPU kernel has to pass, on the CPU (plans.py) and on a GPU: see test_variants.py."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.checks import BF16, F16, F32
from tests.kernels.gpu import plans
from tests.kernels.weights import bcq_tensor, uniform_tensor

from lutlab.base.groups import expand
from lutlab.formats import bcq
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.gpu import variants
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.kernels.gpu.lut_gemv.variant import GPUS, H200, case

# A rounding to half leaves at most 2^-11 / sqrt(3) of the root mean square.
OF_TABLES = 2.0**-11 / 3**0.5
# Tables and y are rounded: 4.0e-4.
HALF = 2**0.5 * OF_TABLES
# The limit, for real shapes: there the mantissas are spread, and 2.9e-4 is what two roundings leave.
HALF_OF_MANY = 3e-4
FLOAT = 1e-6


# Knobs so small that some hundred columns go through every loop.
SMALL = {
    "paper": {"luts": 4, "rows": 64, "threads": 32},
    "optq": {"columns": 64, "threads": 64},
    "lane_tables": {"threads": 256, "tiles": 10},  # two warps take two tiles
    "bit_planes": {"warps": 2, "stages": 2, "tiles": 1, "launches": 1},
    "uniform_mma": {"slice": 512, "warps": 2},
}


def tried(name):
    """A variant, its product with small knobs and others that a call names, and `check` of that."""
    variant = variants.variant(name)

    def product(packed, x, workspace=None, reverse=False, **knobs):
        how = {"workspace": workspace, "reverse": reverse, "knobs": SMALL[name] | knobs}
        return plans.product(variant, packed, x, **how)

    def checked(packed, x, **knobs):
        return check(variant, packed, x, SMALL[name] | knobs)

    return variant, product, checked


def weight(rows, columns, q, g, **options):
    return bcq.pack(bcq_tensor(rows, columns, q, g, **options))


def codes(rows, columns, q, g, alpha="f16", offset=None, **options):
    """Uniform codes, which have zero points for an offset."""
    return PackedUniform.pack(uniform_tensor(rows, columns, q, g, scale=alpha, **options))


def size_of_sums(packed, x):
    """How large y would be if all that is summed had random signs: what an error is measured by.

    Larger than y where alphas cancel, as they do in a row of few columns.
    """
    packed = packed.to_bcq()
    squares = packed.alpha.double().square().sum(0)
    if packed.offset is not None:
        squares = squares + packed.offset.double().square()
    wide = expand(squares, packed.group_size, packed.shape[1])
    x = x.double() if packed.order is None else x.double()[:, packed.order.long()]
    return (x.square() @ wide.t()).sqrt()


def exact(packed, x):
    """The product in double."""
    return x.double() @ packed.dequantize().double().t()


def error(y, packed, x):
    """|y - x W^T| in units of size_of_sums."""
    return ((y.double() - exact(packed, x)).norm() / size_of_sums(packed, x).norm()).item()


def naive_half(packed, x):
    """Everything in half, column after column."""
    w = packed.dequantize().half()
    y = torch.zeros(len(x), packed.shape[0], dtype=F16)
    for k in range(packed.shape[1]):
        y += x[:, k, None] * w[:, k]
    return y


def allowed(variant, packed, x):
    """The error that a variant may have."""
    if x.dtype == F32:
        return FLOAT
    if x.dtype == BF16:  # of the exact y's rounding; an error before that adds at most twice itself
        return error(exact(packed, x).to(BF16), packed, x) + 2 * OF_TABLES
    if variant.deterministic:
        return HALF_OF_MANY if packed.shape[0] >= 1000 else HALF
    return max(2 * error(naive_half(packed, x), packed, x), 4 * 2.0**-11)


def check_rows(variant, packed, x, y):
    """Each row of y has the error that it may have by itself."""
    for row, product in zip(x.split(1), y.split(1), strict=True):
        assert error(product, packed, row) <= allowed(variant, packed, row)


def check(variant, packed, x, knobs=None, gpu=H200):
    """On the CPU, in both orders of threads and blocks."""
    how = {"knobs": knobs, "gpu": gpu}
    y, back = (plans.product(variant, packed, x, reverse=way, **how) for way in (False, True))
    assert y.shape == (len(x), packed.shape[0])
    for result in (y, back):
        assert error(result, packed, x) <= allowed(variant, packed, x)
    if variant.deterministic:
        assert torch.equal(y, back)
    return y


def in_turn(cases, gpus=GPUS):
    """(GPU, *case): GPUs take turns over the cases, as compilations are slow; each has all of them where a GPU is."""
    if torch.cuda.is_available():
        return [(gpu, *case) for case in cases for gpu in gpus]
    return [(gpus[at % len(gpus)], *case) for at, case in enumerate(cases)]


def check_on_gpu(variant, packed, x):
    """The product on a GPU: error, poisoned outputs, repeats and a graph's replays to the last bit."""
    here = launcher.gpu(launcher.device_of("cuda"))
    if why := variant.why_not(case(packed, x.dtype, len(x)), here):
        pytest.skip(why)
    product = launcher.bind(packed, x.dtype, "cuda", variant.name).prepare(len(x))
    on_gpu, room = x.cuda(), torch.empty(len(x), packed.shape[0], dtype=x.dtype, device="cuda")
    room.fill_(torch.nan)
    first = product(on_gpu, out=room).cpu()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        product(on_gpu, out=room)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product(on_gpu, out=room)
    results = [first]
    for _ in range(3):
        room.fill_(torch.nan)
        graph.replay()
        results.append(room.cpu())
    for y in results:
        assert error(y, packed, x) <= allowed(variant, packed, x)
        assert not variant.deterministic or torch.equal(y, first)
