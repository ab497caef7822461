"""Milliseconds a token of greedy decoding on so many GPUs: the end-to-end latency of LUT-GEMM's tables.

    latency_<G>gpu_ms = ms_per_token of generation.py, batch 1, on the G GPUs that share the model

Decoding and its check are generation.py's, with the best engine. The papers measure inside FasterTransformer and state
neither lengths nor sampling: 128 tokens behind one, the largest logit.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from lutlab.evaluators.contract import Evaluator, Metric, Work
from lutlab.evaluators.generation import Generation
from lutlab.registry import register
from lutlab.specs import Measurement, RunSpec, Subject


@register("evaluator", "latency")
@dataclass(frozen=True)
class Latency(Evaluator):
    """Metrics `latency_<G>gpu_ms`; samples are the seconds of each repeat on one GPU.

    Attributes:
        tokens: to decode.
        repeats: timed, after one that is checked and not timed.
        prompt: tokens that the text begins with.
        engine: by its name, as generation has it. Empty: the best.
    """

    version: ClassVar[int] = 2
    task: ClassVar[str] = "causal_lm"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("latency_1gpu_ms", "ms/token", "decoding on 1 GPU"),
        *(
            Metric(f"latency_{gpus}gpu_ms", "ms/token", f"decoding on {gpus} GPUs", gpus=gpus)
            for gpus in (2, 4, 8)
        ),
    )
    of_this_machine: ClassVar[bool] = True
    tokens: int = 128
    repeats: int = 5
    prompt: int = 1
    engine: str = ""

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
        return self._decoding().work(run)

    def measure(self, subject: Subject) -> Measurement:
        """Needs no text and no tokenizer. Raises LutlabError as Generation does."""
        found = self._decoding().measure(subject)
        return dataclasses.replace(found, values={"latency_1gpu_ms": found.values["ms_per_token"]})

    def _decoding(self) -> Generation:
        return Generation(self.tokens, self.repeats, self.prompt, engine=self.engine)
