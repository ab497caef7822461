"""Milliseconds a token of greedy decoding on one GPU: the end-to-end latency of LUT-GEMM's tables.

    latency_1gpu_ms = 1000 / tokens_per_s

Decoding and its check are generation.py's: batch 1, a key-value cache, from the one token that begins a text. The
papers measure inside FasterTransformer; ours is transformers, whose own time a token is part of it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from lutlab.evaluators.contract import Evaluator, Metric, Work
from lutlab.evaluators.generation import Generation, decoding
from lutlab.registry import register
from lutlab.specs import Measurement, RunSpec, Subject


@register("evaluator", "latency")
@dataclass(frozen=True)
class Latency(Evaluator):
    """Metric `latency_1gpu_ms`; samples are the seconds of each repeat.

    Attributes:
        tokens: to decode.
        repeats: timed, after one that is checked and not timed.
    """

    version: ClassVar[int] = 1
    task: ClassVar[str] = "causal_lm"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("latency_1gpu_ms", "ms/token", "decoding on 1 GPU"),
    )
    of_this_machine: ClassVar[bool] = True
    tokens: int = 128
    repeats: int = 5

    @classmethod
    def obstacle(cls, run: RunSpec) -> str:
        """Reason for not measuring a row here; empty where it can be."""
        if run.device == "cpu":
            return "no CUDA device: it is the latency on one GPU; on a CPU, 'generation' tells the speed"
        if run.device == "spread":
            return (
                "the model is spread over all GPUs, and this is the latency on one: set device=cuda"
            )
        return ""

    def work(self, run: RunSpec) -> Work:
        """As Generation."""
        return decoding(self.tokens, self.repeats)

    def measure(self, subject: Subject) -> Measurement:
        """Needs no text and no tokenizer. Raises LutlabError as Generation does."""
        found = Generation(self.tokens, self.repeats).measure(subject)
        speed = found.values["tokens_per_s"]
        return dataclasses.replace(found, values={"latency_1gpu_ms": 1e3 / speed})
