"""Shares of a token's time: products, attention, communication between GPUs, and all else (LUT-GEMM v3 Figure 4).

    <part>_percent = 100 x seconds of the part / seconds of the step       ms_per_token = 1000 x seconds of the step

An engine that times its own parts says them, `other` among them, by a method `breakdown`. Of another torch's profiler
says them, of a step at the same context, by name: of operations on a CPU (`aten::addmm`), of kernels on a GPU, those of
replayed graphs too (`nvjet_hsh_64x8_...`). A name is of the first part one of whose words it has, without regard to
capitals. Other is the rest of the step, which is timed without the profiler: norms, rotations, activations, sums and
copies, and what lies between operations, as Python and gaps between kernels.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from lutlab import generate
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch
from lutlab.base.limits import Count
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, Subject
from lutlab.evaluators import evaluation_mode
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.evaluators.depth import scaled_to_all_layers
from lutlab.evaluators.generation import check_context, prompts, wait
from lutlab.generate.contract import Engine

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


@register("evaluator", "breakdown")
@dataclass(frozen=True)
class Breakdown(Evaluator):
    """Metrics matmul_percent, attention_percent, communication_percent, other_percent and ms_per_token.

    Attributes:
        context: number of tokens in the cache before the timed one.
        repeats: number of timed steps; as many more are profiled.
        engine: name of the engine, as in generation; empty: the best.
    """

    version: ClassVar[int] = 1
    task: ClassVar[str] = "causal_lm"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("matmul_percent", "%", "products", lower_is_better=False),
        Metric("attention_percent", "%", "attention"),
        Metric("communication_percent", "%", "communication"),
        Metric("other_percent", "%", "other"),
        Metric("ms_per_token", "ms/token", "a token"),
    )
    of_this_machine: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("transformers",)
    context: Count = 128
    repeats: Count = 20
    engine: str = ""

    def measure(self, subject: Subject) -> Measurement:
        """Needs no text and no tokenizer."""
        seconds = self._seconds(subject)
        parts = {name: seconds.values[f"{name}_s"] for name in PARTS}
        if min(parts.values()) < 0:
            raise LutlabError(
                f"fewer layers took longer (seconds scaled to all: {parts}): the machine is too busy to scale this"
            )
        whole = sum(parts.values())
        values = {f"{name}_percent": 100 * part / whole for name, part in parts.items()}
        values["ms_per_token"] = 1e3 * seconds.values["step_s"]
        return dataclasses.replace(seconds, values=values)

    @scaled_to_all_layers
    def _seconds(self, subject: Subject) -> Measurement:
        """Seconds of every part, and of a step."""
        model = subject.model
        check_context(model, self.context + 1)
        with evaluation_mode(model):
            engine = generate.engine(model, length=self.context + 1, name=self.engine)
            (text,) = prompts(model, 1, self.context)
            last = engine.prefill([text]).argmax(-1)
            engine.step(last)
            steps = [_step(engine, last, self.context) for _ in range(self.repeats)]
            step = statistics.median(steps)
            if hasattr(engine, "breakdown"):
                parts, by = engine.breakdown(self.context), "the engine's own clock"
            else:
                parts, by = profiled(engine, last, self.context, self.repeats), "torch.profiler"
                parts[OTHER] = max(0.0, step - sum(parts.values()))
        values = {f"{name}_s": parts.get(name, 0.0) for name in PARTS}
        values["step_s"] = step
        facts = {**engine.facts(), "context": self.context, "parts_by": by}
        return Measurement(values, n=self.repeats, samples=tuple(steps), facts=facts)


def _step(engine: Engine, ids: torch.Tensor, context: int) -> float:
    """Seconds of one step behind so many tokens."""
    engine.rewind(context)
    wait(engine.model)
    began = time.perf_counter()
    engine.step(ids)
    wait(engine.model)
    return time.perf_counter() - began


def profiled(engine: Engine, ids: torch.Tensor, context: int, repeats: int) -> dict[str, float]:
    """Seconds of the operations of each part but `other` in a step, by torch's profiler: the mean of so many."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else it reports its start and stop on stderr
    if engine.model.device.type == "cuda":
        parts, _ = gpu_parts(lambda: _step(engine, ids, context), repeats)
    else:
        with torch.autograd.profiler.profile(use_kineto=False) as seen:
            for _ in range(repeats):
                _step(engine, ids, context)
        times = ((event.key, event.self_cpu_time_total) for event in seen.key_averages())
        parts = by_part((name, 1e-6 * microseconds / repeats) for name, microseconds in times)
    return {part: seconds for part, seconds in parts.items() if part != OTHER}


def part_of(name: str) -> str:
    """One of PARTS for the name of an operation or a kernel, as a profiler tells it.

    >>> part_of("aten::_scaled_dot_product_flash_attention_for_cpu"), part_of("aten::addmm"), part_of("aten::mul")
    ('attention', 'matmul', 'other')
    """
    name = name.lower()
    return next((part for part, words in WORDS.items() if any(w in name for w in words)), OTHER)


def by_part(named: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Sum of the times of operations or kernels (name, time) of each part."""
    sums = dict.fromkeys(PARTS, 0.0)
    for name, seconds in named:
        sums[part_of(name)] += seconds
    return sums


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
    longest = dict(sorted(kernels.items(), key=lambda kernel: -kernel[1]))
    return by_part(longest.items()), longest
