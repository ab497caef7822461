"""Parts of a token's time by the names of what runs in it: products, attention, communication, and all else.

A profiler tells time by name: of operations on a CPU (`aten::addmm`), of kernels on a GPU, those of replayed graphs too
(`nvjet_hsh_64x8_...`). A name is of the first part one of whose words it has, without regard to capitals; `other` are
norms, rotations, activations, sums and copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lutlab.lazy import torch

OTHER = "other"
# In this order: flash and memory-efficient attention are named after CUTLASS.
# Attention in separate products (`eager`) is seen on a CPU, as bmm; a GPU's kernels of it count as matmul: measure with
# `sdpa` there.
WORDS = {
    "communication": (
        *("all_reduce", "allreduce", "all_gather", "allgather"),  # of gloo, on a CPU
        *("nccl", "cross_device_reduce", "multimem", "symm_mem"),
    ),
    "attention": ("attention", "softmax", "bmm", "flash", "fmha", "sdpa"),
    "matmul": (
        *("gemv", "dequant"),  # ours
        *("::mm", "_mm", "addmm", "gemm", "linear", "matmul"),  # of torch and other libraries
        *("nvjet", "cutlass", "splitk"),  # of cuBLAS and cuBLASLt
    ),
}
PARTS = (*("matmul", "attention", OTHER), "communication")  # as the papers' figures name them


def part_of(name: str) -> str:
    """One of PARTS for the name of an operation or a kernel, as a profiler tells it.

    >>> part_of("aten::_scaled_dot_product_flash_attention_for_cpu"), part_of("aten::addmm"), part_of("aten::mul")
    ('attention', 'matmul', 'other')
    """
    name = name.lower()
    return next((part for part, words in WORDS.items() if any(w in name for w in words)), OTHER)


def by_part(named: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sum of the times of operations or kernels (name, time) of each part."""
    found = dict.fromkeys(PARTS, 0.0)
    for name, time in named:
        found[part_of(name)] += time
    return found


def gpu_parts(run: Callable[[], object], calls: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of a call on the current GPU: by part, and by kernel, the longest first.

    Args:
        run: the call, as a step of an engine; it has run before, so that nothing is compiled in it.
        calls: number of calls of `run` that are averaged.
    """
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
    kernels = {
        event.key: event.self_device_time_total * 1e-6 / calls  # microseconds
        for event in profiler.key_averages()
        if event.device_type == DeviceType.CUDA
    }
    longest = dict(sorted(kernels.items(), key=lambda one: -one[1]))
    return by_part(longest.items()), longest
