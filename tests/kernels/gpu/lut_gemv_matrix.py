"""What every variant of the GPU kernel has to pass, on the CPU (plans.py) and on a GPU: see test_variants.py."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.gpu import plans
from tests.kernels.weights import bcq_tensor, uniform_tensor

from lutlab.base.groups import expand
from lutlab.formats import bcq
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.kernels.gpu.lut_gemv.variant import GPUS, SM_REGISTERS, Case, case

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
# A rounding to half leaves at most 2^-11 / sqrt(3) of the root mean square.
OF_TABLES = 2.0**-11 / 3**0.5
# Tables and y are rounded: 4.0e-4.
HALF = 2**0.5 * OF_TABLES
# The limit, for real shapes: there the mantissas are spread, and 2.9e-4 is what two roundings leave.
HALF_OF_MANY = 3e-4
FLOAT = 1e-6


def weight(rows, columns, q, g, **options):
    return bcq.pack(bcq_tensor(rows, columns, q, g, **options))


def codes(rows, columns, q, g, alpha="f16", offset=None, **options):
    """Uniform codes, which have zero points for an offset."""
    return PackedUniform.pack(uniform_tensor(rows, columns, q, g, scale=alpha, **options))


def inputs(m, columns, dtype, seed=1, outliers=False):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(m, columns, generator=generator)
    if outliers:
        x[torch.rand(m, columns, generator=generator) < 0.001] *= 100
        x[:, columns // 2] *= 100
    return x.to(dtype)


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


def check(variant, packed, x, **how):
    """On the CPU, in both orders of threads and blocks."""
    y = plans.product(variant, packed, x, **how)
    assert y.shape == (len(x), packed.shape[0])
    back = plans.product(variant, packed, x, reverse=True, **how)
    for result in (y, back):
        assert error(result, packed, x) <= allowed(variant, packed, x)
    if variant.deterministic:
        assert torch.equal(y, back)
    return y


# ---- compiled for GPUs that are not there ----

SHAPES = ((49152, 12288), (12288, 12288), (4096, 4096), (1, 33))


def in_turn(cases, gpus=GPUS):
    """(GPU, *case): GPUs take turns over the cases, as compilations are slow; each has all of them where a GPU is."""
    here = torch.cuda.is_available()
    return [
        (gpu, *case)
        for at, case in enumerate(cases)
        for gpu in (gpus if here else gpus[at % len(gpus) :][:1])
    ]


def resources(variant, case, gpu, knobs=None):
    """Compile a case's plan for a GPU; what its kernels take, and the plan."""
    plan = variant.plan_for(case, gpu, knobs)
    built = cuda.build(cuda.source(plan.file, plan.parameters), f"test-{variant.name}", gpu.arch)
    return built.resources, plan


def check_resources(variant, case, gpu, knobs=None):
    """No spills, and as many blocks fit an SM as the plan counts on."""
    found, plan = resources(variant, case, gpu, knobs)
    for step in plan.steps:
        takes = found[step.function]
        assert (takes.spill_bytes, takes.stack_bytes) == (0, 0), (gpu.arch, plan.parameters, takes)
        assert takes.shared_bytes + step.shared <= gpu.block_shared
        assert takes.shared_bytes <= 48 * 1024
        assert takes.registers * step.block <= SM_REGISTERS
    last = plan.steps[-1]
    takes = found[last.function]
    per_warp = -(-takes.registers // 8) * 8 * 32  # registers are given in units of 8 a thread
    assert per_warp * -(-last.block // 32) * plan.blocks_per_sm <= SM_REGISTERS
    assert (takes.shared_bytes + last.shared + 1024) * plan.blocks_per_sm <= gpu.sm_shared


def check_grids(variant, m=1):
    """Launches that a GPU takes, for real and for tiny shapes."""
    for rows, columns in SHAPES:
        for gpu in GPUS:
            case = Case(m, rows, columns, 3, 128, F16, F16, F16, variant.codes)
            for step in variant.plan_for(case, gpu).steps:
                assert all(1 <= n <= 65535 for n in step.grid[1:])
                assert 1 <= step.grid[0] < 2**31
                assert step.block <= 1024
                assert step.block % 32 == 0


# ---- on a GPU ----

# rows, columns, q, g, rows of x
GPU_CASES = [
    *(
        (rows, columns, q, g, 1 + 2 * (q == 3))
        for rows, columns in ((1, 32), (129, 97), (1023, 1056))
        for q in range(1, 9)
        for g in (32, 128, -1)
    ),
    *((4096, 4096, q, g, 1) for q in (1, 3, 8) for g in (32, 128, -1)),
    (12288, 12288, 3, 128, 1),
]


def check_on_gpu(variant, packed, x):
    """The product on a GPU: error, poisoned outputs, repeats and a graph's replays to the last bit."""
    here = launcher.gpu(launcher.device_of("cuda"))
    if why := variant.why_not(case(packed, x.dtype, len(x)), here):
        pytest.skip(why)
    product = launcher.bind(packed, x.dtype, "cuda", variant.name).prepare(len(x))
    on_gpu, room = x.cuda(), torch.empty(len(x), packed.shape[0], dtype=x.dtype, device="cuda")
    room.fill_(torch.nan)
    y = product(on_gpu, out=room).cpu()
    assert error(y, packed, x) <= allowed(variant, packed, x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        product(on_gpu, out=room)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product(on_gpu, out=room)
    for _ in range(3):
        room.fill_(torch.nan)
        graph.replay()
        again = room.cpu()
        if variant.deterministic:
            assert torch.equal(again, y)
        assert error(again, packed, x) <= allowed(variant, packed, x)
