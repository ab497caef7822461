"""Multiple choice by lm-evaluation-harness: is the right ending the most likely one?

    L_i = log p(ending i | its context), summed over tokens
    accuracy:      share of items where argmax L_i is the right ending, lm-eval's `acc`
    accuracy_norm: share where argmax L_i / characters of ending i (without its leading space) is, its `acc_norm`: long
                   endings are unlikely because they are long

lm-eval has no acc_norm of WinoGrande, nor have we of `continuations`: their endings are equal, and so are both numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lutlab.data.protocols import KINDS, PROTOCOLS, protocol
from lutlab.errors import LutlabError
from lutlab.evaluators import harness, needed, text_facts
from lutlab.evaluators.contract import Evaluator, Metric, Work
from lutlab.registry import register
from lutlab.specs import Measurement, RunSpec, Subject


@register("evaluator", "zero_shot")
@dataclass(frozen=True)
class ZeroShot(Evaluator):
    """Metrics `accuracy`, `accuracy_norm`, 0 to 1; samples are 1 where the right ending is the most likely, else 0.

    Attributes:
        bos: `tokenizer`, begin as the tokenizer does (lm-eval since 0.4.10); `none`, without BOS (up to 0.4.9).
        batch_size: requests at once.
    """

    version: ClassVar[int] = 2
    task: ClassVar[str] = "causal_lm"
    reads: ClassVar[tuple[str, ...]] = ("choices",)
    golden: ClassVar[str] = "continuations"
    libraries: ClassVar[tuple[str, ...]] = harness.LIBRARIES
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy", "accuracy", "zero-shot", lower_is_better=False),
        Metric("accuracy_norm", "accuracy", "zero-shot by length", lower_is_better=False),
    )

    bos: str = "tokenizer"
    batch_size: int = harness.BATCH_SIZE

    @classmethod
    def obstacle(cls, run: RunSpec) -> str:
        """Without lm-eval."""
        return harness.missing()

    def work(self, run: RunSpec) -> Work:
        """One pass over the text, every ending with its context."""
        return Work(passes=1)

    def measure(self, subject: Subject) -> Measurement:
        """Scores of subject.text; contexts are cut to the model's context, or subject.seqlen if it has none.

        Raises:
            LutlabError: no text or tokenizer, a protocol without items to choose in, or as `harness.scores`.
        """
        text, tokenizer = needed(subject, "zero_shot")
        kind = protocol(text.protocol).kind
        if kind != "choices":
            known = [name for name, p in PROTOCOLS.items() if p.kind == "choices"]
            raise LutlabError(
                f"'{text.protocol}' is {KINDS[kind]}, not items with several endings; take one of: {', '.join(known)}"
            )
        found = harness.measured(subject, text, tokenizer, self.bos, self.batch_size)
        by_length = "acc_norm" if "acc_norm" in found.values else "acc"
        names = {"accuracy": "acc", "accuracy_norm": by_length}
        return Measurement(
            values={ours: found.values[theirs] for ours, theirs in names.items()},
            n=found.n,
            samples=tuple(map(float, found.items["acc"])),
            facts=text_facts(text, tokenizer) | found.facts,
            errors={o: found.errors[t] for o, t in names.items() if t in found.errors},
        )
