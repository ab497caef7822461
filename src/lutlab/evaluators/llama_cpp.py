"""Tokens a second of llama.cpp on the same model in a type of ggml of its width: the peer of QIGen Figure 4.

    tokens_per_s = tokens / median over the repeats of the seconds that decoding them took

llama.cpp is no dependency of lutlab: the column is measured where llama-cpp-python and gguf are installed, and says so
where they are not. All linear layers have one type, the head and the key-value cache the formats that are named
(gguf_model.py); the facts have all three. Decoding is that of generation.py, with as many threads, and is checked
before it is timed (llama_cpp_decoder.py).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lutlab.errors import LutlabError, nearest
from lutlab.evaluators import gguf_model
from lutlab.evaluators.contract import Evaluator, Metric, Work
from lutlab.evaluators.depth import scaled_to_all_layers
from lutlab.evaluators.generation import check_context
from lutlab.evaluators.gguf_model import BITS
from lutlab.evaluators.llama_cpp_decoder import CACHES, CHECKED, Decoder, check
from lutlab.lazy import torch
from lutlab.registry import register
from lutlab.specs import Measurement, RunSpec, Subject

_PEERS = ("llama_cpp", "gguf")


@register("evaluator", "llama_cpp")
@dataclass(frozen=True)
class LlamaCpp(Evaluator):
    """Metric `tokens_per_s`, higher is better; samples are the seconds of each repeat.

    Attributes:
        tokens: to decode.
        repeats: timed, after one that is not.
        type: of all linear layers, as ggml names it; empty: the narrowest that has the row's bits (q4_0 at q=4, q3_K
            at 3, q2_K at 2). Types that end in K need layers whose inputs are a multiple of 256.
        head: its type: `f16`, or llama.cpp's own default `q6_K`, or `f32`.
        cache: of keys and values: `f16`, llama.cpp's default, or `f32`.
        flash: attention by llama.cpp's fused kernel, its own default. llama-embedded-m on AVX2: faster than the plain
            one, llama-cpp-python's default, up to 128 tokens, slower behind them, and 3 times slower with cache=f32.

    Raises:
        LutlabError: no such type.
    """

    version: ClassVar[int] = 2
    task: ClassVar[str] = "causal_lm"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("tokens_per_s", "tokens/s", "llama.cpp", lower_is_better=False),
    )
    of_this_machine: ClassVar[bool] = True
    tokens: int = 128
    repeats: int = 5
    type: str = ""
    head: str = "f16"
    cache: str = "f16"
    flash: bool = False

    def __post_init__(self) -> None:
        known = {"type": ("", *BITS), "head": tuple(BITS), "cache": CACHES}
        for name, choices in known.items():
            value = getattr(self, name)
            if value not in choices:
                raise LutlabError(f"evaluator.llama_cpp.{name}={value}: {nearest(value, choices)}")

    @classmethod
    def obstacle(cls, run: RunSpec) -> str:
        """The peers that are not installed; empty where all are."""
        return _lacking()

    def work(self, run: RunSpec) -> Work:
        """A decoding that is checked and the timed ones, of a file of the type."""
        return Work(
            checked_tokens=2 * CHECKED,
            decoded_tokens=(1 + self.repeats) * self.tokens,
            bits=BITS[self.type or gguf_model.type_for(run.q)],
            packed_copies=2,
            packed_files=1,
        )

    @scaled_to_all_layers
    def measure(self, subject: Subject) -> Measurement:
        """Needs no text and no tokenizer; disk for the packed model in the temporary folder (TMPDIR).

        Raises:
            LutlabError: a peer is not installed, the model is no LLaMA, has too short a context or layers that the type
                does not take, or llama.cpp refuses it or computes something else.
        """
        if absent := _lacking():
            raise LutlabError(absent)
        model = subject.model
        check_context(model, self.tokens)
        first = getattr(model.config, "bos_token_id", None) or 0
        threads = torch.get_num_threads()
        kind = self.type or gguf_model.type_for(subject.run.q if subject.run else 4)
        with tempfile.TemporaryDirectory(prefix="lutlab-") as folder:
            path = Path(folder) / "model.gguf"
            encoded = gguf_model.encode(model, kind, self.head, threads)
            gguf_model.save(model.config, encoded, path)
            with Decoder(path, self.tokens, threads, self.cache, self.flash) as decoder:
                checked = check(model, encoded, decoder, first)
                del encoded
                seconds = [decoder.seconds(first, self.tokens) for _ in range(1 + self.repeats)][1:]
        facts = {
            "tokens": self.tokens,
            "prompt_tokens": 1,
            "kernel": [name(kind)],
            "head": self.head,
            "cache": self.cache,
            "attention": "flash" if self.flash else "plain",
            "threads": threads,
            **checked,
        }
        values = {"tokens_per_s": self.tokens / statistics.median(seconds)}
        return Measurement(values=values, n=self.repeats, samples=tuple(seconds), facts=facts)


def name(kind: str) -> str:
    """A type's kernels for a record, with the version."""
    version = importlib.metadata.version("llama-cpp-python")
    return f"llama.cpp {kind}, llama-cpp-python {version}"


def _lacking() -> str:
    absent = [name for name in _PEERS if importlib.util.find_spec(name) is None]
    if not absent:
        return ""
    return f"{' and '.join(absent)} not installed: pip install llama-cpp-python gguf"
