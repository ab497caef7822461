"""Tokens of a prompt read a second, by the kernels and by dequantized weights (LUT-GEMM v3 section 6, Figure 15).

    <way>_tokens_per_s = tokens / median over the rounds of the seconds that reading the prompt took
    dequantize_gain    = dequantize_tokens_per_s / kernel_tokens_per_s      above 1 behind the crossover

Both ways read the same prompt into an empty cache, in turn, in one process (generate/prefill.py). Before they are timed
their logits after the prompt are compared.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import ClassVar

from lutlab import generate
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch
from lutlab.base.limits import Count
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, ModelRun, Subject
from lutlab.evaluators import evaluation_mode
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.evaluators.generation import NEAR, check_context, prompts, wait
from lutlab.generate.contract import Engine

WAYS = ("kernel", "dequantize")


@register("evaluator", "context")
@dataclass(frozen=True)
class Context(Evaluator):
    """Metrics dequantize_gain, kernel_tokens_per_s, dequantize_tokens_per_s, prompt_tokens; samples are the gains.

    Attributes:
        tokens: length of the prompt in tokens.
        rounds: number of timed rounds of either way, after an untimed one.
        engine: name of the engine, as in generation; empty: the best.
    """

    version: ClassVar[int] = 1
    task: ClassVar[str] = "causal_lm"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("dequantize_gain", "x", "dequantized over kernels", lower_is_better=False),
        Metric("kernel_tokens_per_s", "tokens/s", "prompt by the kernels", lower_is_better=False),
        Metric("dequantize_tokens_per_s", "tokens/s", "prompt, dequantized", lower_is_better=False),
        Metric("prompt_tokens", "tokens", "prompt"),
    )
    of_this_machine: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("transformers",)
    tokens: Count = 128
    rounds: Count = 5
    engine: str = ""

    @classmethod
    def obstacle(cls, run: ModelRun) -> str:
        """Weights in full precision are not dequantized."""
        return "its weights are in full precision: there is one way" if run.method == "none" else ""

    def measure(self, subject: Subject) -> Measurement:
        """Needs no text and no tokenizer."""
        model = subject.model
        check_context(model, self.tokens)
        with evaluation_mode(model):
            engine = generate.engine(model, length=self.tokens, name=self.engine)
            texts = prompts(model, 1, self.tokens)
            _compare({way: _read(engine, texts, way)[0] for way in WAYS}, engine)
            rounds = [
                {way: _read(engine, texts, way)[1] for way in WAYS} for _ in range(self.rounds)
            ]
        values = {
            f"{way}_tokens_per_s": self.tokens / statistics.median(times[way] for times in rounds)
            for way in WAYS
        }
        gains = [times["kernel"] / times["dequantize"] for times in rounds]
        values |= {"dequantize_gain": statistics.median(gains), "prompt_tokens": self.tokens}
        facts = engine.facts() | {"tokens": self.tokens}
        return Measurement(values, n=self.rounds, samples=tuple(gains), facts=facts)


def _read(engine: Engine, texts: list[torch.Tensor], way: str) -> tuple[torch.Tensor, float]:
    """Logits [1, V] after the prompt, and the seconds that reading it took."""
    from lutlab.generate import prefill

    wait(engine.model)
    began = time.perf_counter()
    logits = prefill.prefill(engine, engine.model, texts, way)
    wait(engine.model)
    return logits, time.perf_counter() - began


def _compare(logits: dict[str, torch.Tensor], engine: Engine) -> None:
    """Raises LutlabError unless both ways agree to rounding, as a share of the range of the logits."""
    kernel, dense = (logits[way] for way in WAYS)
    room = NEAR[str(engine.model.dtype).removeprefix("torch.")] * (kernel.max() - kernel.min())
    far = (kernel - dense).abs().max()
    if not far <= room:  # true for nan as well
        raise LutlabError(
            f"a prompt read by dequantized weights gives logits {far:.3g} away from those by the kernels, expected at "
            f"most {room:.3g}: one of them is broken; their speed would say nothing"
        )
