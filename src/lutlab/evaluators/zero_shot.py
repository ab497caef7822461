"""Multiple choice by lm-evaluation-harness: is the right ending the most likely one?

    L_i = log p(ending i | its context), summed over tokens
    accuracy:      share of items where argmax L_i is the right ending, lm-eval's `acc`
    accuracy_norm: share where argmax L_i / characters of ending i (without its leading space) is, its `acc_norm`: long
                   endings are unlikely because they are long

lm-eval has no acc_norm of WinoGrande, nor have we of `continuations`: their endings are equal, and so are both numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from lutlab.base.errors import LutlabError
from lutlab.base.registry import register
from lutlab.base.specs import Text
from lutlab.data.protocols import KINDS, PROTOCOLS, protocol
from lutlab.evaluators.contract import Metric
from lutlab.evaluators.lm_eval import HarnessEvaluator


@register("evaluator", "zero_shot")
class ZeroShot(HarnessEvaluator):
    """Metrics `accuracy`, `accuracy_norm`, 0 to 1; samples are 1 where the right ending is the most likely, else 0."""

    version: ClassVar[int] = 2
    name: ClassVar[str] = "zero_shot"
    sampled: ClassVar[str] = "acc"
    names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "accuracy": ("acc",),
        "accuracy_norm": ("acc_norm", "acc"),
    }
    reads: ClassVar[tuple[str, ...]] = ("choices",)
    golden: ClassVar[str] = "continuations"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy", "accuracy", "zero-shot", lower_is_better=False),
        Metric("accuracy_norm", "accuracy", "zero-shot by length", lower_is_better=False),
    )

    def check_text(self, text: Text) -> None:
        """Raises LutlabError: a protocol without items to choose in."""
        kind = protocol(text.protocol).kind
        if kind != "choices":
            known = [name for name, p in PROTOCOLS.items() if p.kind == "choices"]
            raise LutlabError(
                f"'{text.protocol}' is {KINDS[kind]}, not items with several endings; take one of: {', '.join(known)}"
            )
