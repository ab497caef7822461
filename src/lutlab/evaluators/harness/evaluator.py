"""What the evaluators have in common that are tasks of lm-evaluation-harness: options, cost, and the run."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from lutlab.evaluators import harness, needed, text_facts
from lutlab.evaluators.contract import Evaluator
from lutlab.specs import Measurement, RunSpec, Subject, Text


@dataclass(frozen=True)
class HarnessEvaluator(Evaluator):
    """A task's scores, under names of ours or under lm-eval's.

    Attributes:
        bos: `tokenizer`, begin as the tokenizer does (lm-eval since 0.4.10); `none`, without BOS (up to 0.4.9).
        batch_size: requests at once.
    """

    name: ClassVar[str]  # as registered
    sampled: ClassVar[str] = ""  # lm-eval's metric whose items are the samples; empty: the first
    task: ClassVar[str] = "causal_lm"
    libraries: ClassVar[tuple[str, ...]] = harness.LIBRARIES

    bos: str = "tokenizer"
    batch_size: int = harness.BATCH_SIZE

    @classmethod
    def obstacle(cls, run: RunSpec) -> str:
        """Reason why it cannot run: lm-eval is not installed."""
        return harness.missing()

    def check_text(self, text: Text) -> None:
        """Raises LutlabError: the text is none that it measures."""

    def named(self, found: harness.Scores) -> Mapping[str, str]:
        """Our name of a metric -> lm-eval's: the same."""
        return {name: name for name in found.values}

    def measure(self, subject: Subject) -> Measurement:
        """Scores of subject.text; contexts are cut to the model's context, or subject.seqlen if it has none.

        Raises:
            LutlabError: no text or tokenizer, as `check_text`, or as `harness.scores`.
        """
        text, tokenizer = needed(subject, self.name)
        self.check_text(text)
        found = harness.measured(subject, text, tokenizer, self.bos, self.batch_size)
        names = self.named(found)
        first = found.items[self.sampled] if self.sampled else next(iter(found.items.values()))
        plain = all(isinstance(item, numbers.Real) for item in first)
        return Measurement(
            values={ours: found.values[theirs] for ours, theirs in names.items()},
            n=found.n,
            samples=tuple(map(float, first)) if plain else (),
            facts=text_facts(text, tokenizer) | found.facts,
            errors={o: found.errors[t] for o, t in names.items() if t in found.errors},
        )
