"""Runs a variant's plan on the CPU (cuda_on_host): the second executor beside lutlab.kernels.gpu.lut_gemv.launcher."""

from __future__ import annotations

import torch
from tests.kernels.gpu import cuda_on_host

from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu.lut_gemv.variant import H200, SM_REGISTERS, Plan, case


def product(variant, packed, x, *, gpu=H200, knobs=None, reverse=False, workspace=None):
    """The product y [M, N] of x [M, K] by a variant; workspace: what it keeps between launches, empty at first."""
    weight = variant.pack(packed)
    plan = variant.plan_for(case(weight, x.dtype, len(x)), gpu, knobs)
    if weight.order is not None:
        x = x[:, weight.order.long()].contiguous()
    return run(plan, weight, x, reverse=reverse, workspace={} if workspace is None else workspace)


def dense(module, packed, dtype, reverse=False):
    """The launch of a dequantizer; module: has `plan` and `buffers`; [N, K] of a dtype, poisoned before."""
    out = torch.full(packed.shape, torch.nan, dtype=dtype)
    launch(module.plan(packed, dtype), {**module.buffers(packed), "dense": out}, reverse)
    return out


def run(plan: Plan, weight, x, *, reverse, workspace):
    """The plan's launches; y, every byte that they have to write poisoned before."""
    for sizes, fill in ((plan.workspace, 255), (plan.zeroed, 0)):
        for name, size in sizes.items():
            workspace.setdefault(name, torch.full((size,), fill, dtype=torch.uint8))
    y = torch.full((len(x), weight.shape[0]), torch.nan, dtype=x.dtype)
    if plan.zero_y:
        y.zero_()
    launch(plan, {**weight.buffers, **workspace, "x": x, "y": y}, reverse)
    for name in plan.zeroed:
        assert not workspace[name].any(), f"{name} is not left zeroed"
    return y


def launch(plan: Plan, buffers, reverse):
    text = cuda.source(plan.file, plan.parameters)
    kernels = cuda_on_host.build(text, sorted({step.function for step in plan.steps}))
    for step in plan.steps:
        arguments = [buffers[a] if isinstance(a, str) else a for a in step.arguments]
        how = {"grid": step.grid, "block": step.block, "shared": step.shared, "reverse": reverse}
        cuda_on_host.launch(kernels, step.function, *arguments, **how)


def check_resources(plan: Plan, gpu):
    """Compiled for a GPU: no spills, and as many blocks fit an SM as the plan counts on; what its last kernel takes."""
    source = cuda.source(plan.file, plan.parameters)
    resources = cuda.build(source, f"test-{plan.steps[-1].function}", gpu.arch).resources
    for step in plan.steps:
        takes = resources[step.function]
        assert (takes.spill_bytes, takes.stack_bytes) == (0, 0), (gpu.arch, plan.parameters, takes)
        assert takes.shared_bytes + step.shared <= gpu.block_shared
        assert takes.shared_bytes <= 48 * 1024
        assert takes.registers * step.block <= SM_REGISTERS
    per_warp = -(-takes.registers // 8) * 8 * 32  # registers are given in units of 8 a thread
    assert per_warp * -(-step.block // 32) * plan.blocks_per_sm <= SM_REGISTERS
    assert (takes.shared_bytes + step.shared + 1024) * plan.blocks_per_sm <= gpu.sm_shared
    return takes
