"""Runs a variant's plan on the CPU (cuda_on_host): the second executor beside lutlab.kernels.gpu.lut_gemv.launcher."""

from __future__ import annotations

import torch
from tests.kernels.gpu import cuda_on_host

from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu.lut_gemv.variant import H200, Plan, case


def product(variant, packed, x, *, gpu=H200, knobs=None, reverse=False, workspace=None):
    """The product y [M, N] of x [M, K] and a PackedBCQ by a variant, every byte that it has to write poisoned before.

    workspace: a dict that keeps what a product keeps between launches; empty at first.
    """
    weight = variant.pack(packed)
    plan = variant.plan_for(case(weight, x.dtype, len(x)), gpu, knobs)
    if weight.order is not None:
        x = x[:, weight.order.long()].contiguous()
    return run(plan, weight, x, reverse=reverse, workspace={} if workspace is None else workspace)


def dense(module, packed, dtype, reverse=False):
    """The launch of a dequantizer; module: has `plan` and `buffers`; [N, K] of a dtype, poisoned before."""
    plan = module.plan(packed, dtype)
    (step,) = plan.steps
    kernels = cuda_on_host.build(cuda.source(plan.file, plan.parameters), (step.function,))
    out = torch.full(packed.shape, torch.nan, dtype=dtype)
    found = {**module.buffers(packed), "dense": out}
    cuda_on_host.launch(
        kernels,
        step.function,
        grid=step.grid,
        block=(step.block, 1, 1),
        arguments=[found[a] if isinstance(a, str) else a for a in step.arguments],
        reverse=reverse,
    )
    return out


def run(plan: Plan, weight, x, *, reverse, workspace):
    """The plan's launches; y."""
    text = cuda.source(plan.file, plan.parameters)
    kernels = cuda_on_host.build(text, sorted({step.function for step in plan.steps}))
    for sizes, fill in ((plan.workspace, 255), (plan.zeroed, 0)):
        for name, size in sizes.items():
            workspace.setdefault(name, torch.full((size,), fill, dtype=torch.uint8))
    y = torch.full((len(x), weight.shape[0]), torch.nan, dtype=x.dtype)
    if plan.zero_y:
        y.zero_()
    buffers = {**weight.buffers, **workspace, "x": x, "y": y}
    for step in plan.steps:
        cuda_on_host.launch(
            kernels,
            step.function,
            grid=step.grid,
            block=(step.block, 1, 1),
            shared=step.shared,
            arguments=[buffers[a] if isinstance(a, str) else a for a in step.arguments],
            reverse=reverse,
        )
    for name in plan.zeroed:
        assert not workspace[name].any(), f"{name} is not left zeroed"
    return y
