"""Time of a step on a GPU, kernel by kernel and in the parts that measure/step_parts.py tells by their names."""

from __future__ import annotations

from collections.abc import Callable

from lutlab.lazy import torch
from lutlab.measure.step_parts import by_part


def breakdown(run: Callable[[], object], calls: int) -> tuple[dict[str, float], dict[str, float]]:
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
