"""Milliseconds a token of greedy decoding on so many GPUs: the end-to-end latency of LUT-GEMM's tables.

    latency_<G>gpu_ms = ms_per_token of generation.py, batch 1, on the G GPUs that share the model

Decoding and its check are generation.py's, with the best engine; G GPUs are as many processes, each with its part of
the model that this one has saved (parallel/decoding.py). The papers measure inside FasterTransformer and state neither
lengths nor sampling: 128 tokens behind one, the largest logit.
"""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lutlab.base.devices import gpus
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, torch
from lutlab.base.limits import Count
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, ModelRun, Subject
from lutlab.evaluators import evaluation_mode
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.evaluators.generation import Generation, check_tokens, decoded, prompts, timed
from lutlab.evaluators.peak_memory import save
from lutlab.parallel import ranks
from lutlab.parallel.ranks import Rank

_SEVERAL = {f"latency_{count}gpu_ms": count for count in (2, 4, 8)}


@register("evaluator", "latency")
@dataclass(frozen=True)
class Latency(Evaluator):
    """Metrics `latency_<G>gpu_ms`; samples are the seconds of each repeat on one GPU.

    Attributes:
        tokens: number of tokens to decode.
        repeats: number of timed repeats, after one that is checked and not timed.
        prompt: number of tokens of the prompt.
        engine: name of the engine on one GPU, as in generation. Empty: the best.
    """

    version: ClassVar[int] = 2
    task: ClassVar[str] = "causal_lm"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("latency_1gpu_ms", "ms/token", "decoding on 1 GPU"),
        *(
            Metric(name, "ms/token", f"decoding on {count} GPUs", gpus=count)
            for name, count in _SEVERAL.items()
        ),
    )
    of_this_machine: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("transformers",)
    tokens: Count = 128
    repeats: Count = 5
    prompt: Count = 1
    engine: str = ""

    @classmethod
    def obstacle(cls, run: ModelRun) -> str:
        """Reason for not measuring a row here; empty where it can be."""
        if run.device == "cpu":
            return "no CUDA device: it is the latency on one GPU; on a CPU, 'generation' tells the speed"
        if run.device == "spread":
            return (
                "the model is spread over all GPUs, and this is the latency on one: set device=cuda"
            )
        return ""

    def measure(self, subject: Subject) -> Measurement:
        """Needs no text and no tokenizer; with more than one GPU, disk for the model in the temporary folder (TMPDIR).

        The fact `not_measured` says of a metric why so many GPUs that are here cannot share the model.
        """
        alone = Generation(self.tokens, self.repeats, self.prompt, engine=self.engine)
        decoding = alone.measure(subject)
        values = {"latency_1gpu_ms": decoding.values["ms_per_token"]}
        most = gpus(subject.run.device)
        counts = {name: count for name, count in _SEVERAL.items() if count <= most}
        if not counts:
            return dataclasses.replace(decoding, values=values)
        shared, facts, refused = self._shared(subject.model, counts, "cuda")
        facts = {**decoding.facts, "shared": facts, "not_measured": refused}
        return dataclasses.replace(decoding, values=values | shared, facts=facts)

    def _shared(
        self, model: PreTrainedModel, counts: dict[str, int], device: str
    ) -> tuple[dict[str, float], dict[str, Any], dict[str, str]]:
        """Milliseconds by metric, facts, and the reasons of metrics without a value."""
        from lutlab.parallel import decoding as parallel

        values, facts, refused = {}, {}, {}
        with tempfile.TemporaryDirectory(prefix="lutlab-") as parent:
            folder = Path(parent) / "model"
            save(model, folder)
            task = (str(folder), self.tokens, self.repeats, self.prompt)
            for name, count in counts.items():
                try:
                    ids, rate = ranks.run(
                        of_rank, count, device, task, parallel.DECODE_SECONDS, parallel.WAIT_SECONDS
                    )
                except LutlabError as error:
                    refused[name] = str(error)
                    continue
                with evaluation_mode(model):
                    check_tokens(model, torch.tensor(ids), self.prompt, rate.facts["cache"])
                values[name] = 1e3 / rate.values["tokens_per_s"]
                facts[name] = rate.facts | {"seconds": rate.samples}
        return values, facts, refused


def of_rank(
    rank: Rank, folder: str, tokens: int, repeats: int, prompt: int
) -> tuple[list[int], Measurement]:
    """Work of each process: load its part, decode, time; the ids of prompt and tokens, and what `timed` found."""
    from lutlab.parallel import decoding as parallel

    part = parallel.load(folder, rank)
    engine = parallel.engine(part, 1, prompt - 1 + tokens)
    texts = prompts(part.model, 1, prompt)
    ids = decoded(engine, texts, tokens)[0].tolist()
    return ids, timed(engine, texts, tokens, repeats)
