"""Time of a step on a GPU in products, attention, communication and all else: the papers' latency breakdown.

torch.profiler tells each kernel's time by its name, of replayed CUDA graphs too. A kernel is of the first kind one of
whose words its name has, without regard to capitals; `other` are norms, rotations, activations, sums and copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

OTHER = "other"
# In this order: flash and memory-efficient attention are named after CUTLASS as well. Attention in separate products
# (`eager`) counts as matmul: measure with `sdpa`.
WORDS = {
    "communication": ("nccl", "cross_device_reduce", "multimem", "symm_mem"),
    "attention": ("fmha", "flash", "attention", "sdpa", "softmax"),
    "matmul": (
        *("lut_gemv_", "mixed_gemv_", "dequantize_"),  # ours
        *("gemm", "gemv", "nvjet", "cutlass", "splitk"),  # of cuBLAS and cuBLASLt
    ),
}
KINDS = (*("matmul", "attention", OTHER), "communication")  # as the papers' figures name them


def kind_of(kernel: str) -> str:
    """One of KINDS for the name of a kernel, as the profiler tells it."""
    name = kernel.lower()
    return next((k for k, words in WORDS.items() if any(w in name for w in words)), OTHER)


def by_kind(kernels: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sum of the times of kernels (name, time) of each kind."""
    found = dict.fromkeys(KINDS, 0.0)
    for name, time in kernels:
        found[kind_of(name)] += time
    return found


def breakdown(run: Callable[[], object], calls: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of a call on the current GPU: by kind, and by kernel, the longest first.

    Args:
        run: the call, as a step of an engine; it has run before, so that nothing is compiled in it.
        calls: of it.
    """
    import torch
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
    return by_kind(longest.items()), longest
