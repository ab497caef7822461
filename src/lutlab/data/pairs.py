"""Pairs of sentences to classify or to score, of GLUE's MNLI and STS-B (Wang et al. 2018).

A text of kind `pairs` holds one a row, as JSON:

    {"first": "A man rides.", "second": "Somebody rides.", "label": 0}

Labels: of MNLI the index in MNLI_LABELS, as GLUE numbers them, and of missing-word likewise; of STS-B the
similarity, 0 to 5.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedTokenizerBase, torch
from lutlab.base.specs import MNLI_LABELS, Text
from lutlab.data.files import text_of
from lutlab.data.protocols import KINDS, PROTOCOLS, protocol

SCORED = ("stsb", "stsb-train")  # protocols of pairs with a similarity; the others have labels


@dataclass(frozen=True)
class Pair:
    """Two sentences and their label."""

    first: str
    second: str
    label: float

    def row(self) -> str:
        """The pair as a row of a text."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def pairs(text: Text, kind: str = "pairs") -> tuple[Pair, ...]:
    """The pairs of a text of that kind.

    Raises:
        LutlabError: a protocol of another kind.
    """
    actual = protocol(text.protocol).kind
    if actual != kind:
        known = [name for name, p in PROTOCOLS.items() if p.kind == kind]
        raise LutlabError(
            f"'{text.protocol}' is {KINDS[actual]}, not {KINDS[kind]}; take one of: {', '.join(known)}"
        )
    return tuple(Pair(**json.loads(row)) for row in text.rows[: text.limit])


def labels_of(some: Sequence[Pair]) -> list[int]:
    """The labels of pairs, each an index in MNLI_LABELS.

    Raises:
        LutlabError: a label is none.
    """
    known = range(len(MNLI_LABELS))
    wrong = [pair for pair in some if pair.label not in known]
    if wrong:
        raise LutlabError(
            f"{len(wrong)} of {len(some)} pairs have a label out of range, first {wrong[0].label!r} of "
            f"{wrong[0].first[:40]!r}: labels are 0 to {len(MNLI_LABELS) - 1} ({', '.join(MNLI_LABELS)}); the hidden "
            "labels of a test split are -1, so take training or development pairs"
        )
    return [int(pair.label) for pair in some]


def encoded(
    tokenizer: PreTrainedTokenizerBase, some: Sequence[Pair], window: int
) -> dict[str, torch.Tensor]:
    """Pairs as the tokenizer joins two texts: input_ids, attention_mask, … [n, S] int64, padded to the longest.

    Longer ones are cut to `window` tokens, always from the longer of the two sentences.

    Raises:
        LutlabError: the tokenizer has no token to pad with.
    """
    if tokenizer.pad_token is None:
        raise LutlabError(
            "the tokenizer has no padding token, and pairs differ in length: set tokenizer.pad_token, and the id of "
            "the same token as the model's config.pad_token_id"
        )
    firsts, seconds = [pair.first for pair in some], [pair.second for pair in some]
    options = {"padding": True, "truncation": True, "max_length": window, "return_tensors": "pt"}
    return dict(tokenizer(firsts, seconds, **options))


def calibration_pairs(
    text: Text, tokenizer: PreTrainedTokenizerBase, samples: int, window: int, seed: int
) -> dict[str, torch.Tensor]:
    """`samples` different pairs of a text of kind `calibration-pairs`, drawn with `seed`, as `encoded`."""
    return encoded(tokenizer, drawn_pairs(text, samples, seed), window)


def labelled_pairs(
    text: Text, tokenizer: PreTrainedTokenizerBase, samples: int, window: int, seed: int
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The pairs of calibration_pairs, and their labels [samples] int64, to be trained on.

    Raises:
        LutlabError: pairs with similarities, or what `drawn_pairs` and `labels_of` refuse.
    """
    if text.protocol in SCORED:
        raise LutlabError(
            f"'{text.protocol}' has similarities, and labels are trained on: take calibration.text=mnli-train"
        )
    some = drawn_pairs(text, samples, seed)
    return encoded(tokenizer, some, window), torch.tensor(labels_of(some))


def drawn_pairs(text: Text, samples: int, seed: int) -> list[Pair]:
    """`samples` different pairs of a text of kind `calibration-pairs`, drawn with `seed`.

    Raises:
        LutlabError: a protocol of another kind, or fewer pairs than asked for.
    """
    known = pairs(text, "calibration-pairs")
    if not 1 <= samples <= len(known):
        raise LutlabError(
            f"calibration.samples={samples}, and '{text.protocol}' has {len(known)} pairs ({text.origin}): give 1 to "
            f"{len(known)}"
        )
    return random.Random(seed).sample(known, samples)


def _mnli(record: Mapping[str, Any]) -> Pair:
    label = record["label"]  # the hub has the index, files have the word
    index = MNLI_LABELS.index(label) if label in MNLI_LABELS else label
    # The test split hides its labels: they are -1.
    if type(index) is not int or index not in range(len(MNLI_LABELS)):
        raise ValueError(f"label {label}")
    return Pair(text_of(record, "premise"), text_of(record, "hypothesis"), index)


def _stsb(record: Mapping[str, Any]) -> Pair:
    similarity = record["score"] if "score" in record else record["label"]
    score = float(similarity)
    if isinstance(similarity, bool) or not 0 <= score <= 5:
        raise ValueError(f"similarity {similarity}")
    return Pair(text_of(record, "sentence1"), text_of(record, "sentence2"), score)


# data set -> the pair of one of its records
TEMPLATES: dict[str, Callable[[Mapping[str, Any]], Pair]] = {"mnli": _mnli, "stsb": _stsb}
