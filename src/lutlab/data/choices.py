r"""Multiple-choice items, and the prompts in which lm-evaluation-harness puts four data sets of them.

An item is judged by log p(endings[i] | contexts[i]); a text of kind `choices` holds one item a row, as JSON:

    {"contexts": ["Question: …\nAnswer:", …], "endings": [" use a cup", " use a sieve"], "gold": 1}

Prompts: lm-evaluation-harness 0.4.13, tasks piqa, hellaswag, winogrande, arc_easy and arc_challenge, without examples.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lutlab.data import pairs
from lutlab.data.protocols import KINDS, PROTOCOLS, protocol
from lutlab.errors import LutlabError
from lutlab.specs import Text


@dataclass(frozen=True)
class Choice:
    """One item: endings[i], with its leading space, follows contexts[i]; `gold` is the index of the right one."""

    contexts: tuple[str, ...]
    endings: tuple[str, ...]
    gold: int

    def __post_init__(self) -> None:
        if not 0 <= self.gold < len(self.endings):
            raise ValueError(f"answer {self.gold} of {len(self.endings)}")

    def row(self) -> str:
        """The item as a row of a text."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def choices(text: Text) -> tuple[Choice, ...]:
    """The items of a text of kind `choices`.

    Raises:
        LutlabError: a protocol of another kind.
    """
    kind = protocol(text.protocol).kind
    if kind != "choices":
        known = [name for name, p in PROTOCOLS.items() if p.kind == "choices"]
        raise LutlabError(
            f"'{text.protocol}' is {KINDS[kind]}, not items with several endings; take one of: {', '.join(known)}"
        )
    records = map(json.loads, text.rows[: text.limit])
    return tuple(Choice(tuple(r["contexts"]), tuple(r["endings"]), int(r["gold"])) for r in records)


def item_rows(dataset: str, records: Iterable[str], origin: str) -> list[str]:
    """Rows of a text of kind `choices`, `pairs` or `calibration-pairs` out of a data set's records.

    Args:
        dataset: a key of ITEMS.
        records: JSON objects as the data set is published, on the hub or as files.
        origin: their source, for the message.

    Raises:
        LutlabError: a record that lacks a field or has no right answer.
    """
    rows = []
    for index, record in enumerate(records):
        try:
            item = ITEMS[dataset](json.loads(record))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LutlabError(
                f"record {index} of {origin} is no item of {dataset} ({type(error).__name__}: {error})\n"
                "the file is damaged, of another format, or of a split without answers: fetch it again, see "
                "docs/data-layout.md"
            ) from error
        rows.append(item.row())
    return rows


def _same_context(context: str, endings: Iterable[str], gold: int) -> Choice:
    spaced = tuple(f" {ending}" for ending in endings)
    return Choice((context,) * len(spaced), spaced, gold)


def _piqa(record: Mapping[str, Any]) -> Choice:
    context = f"Question: {record['goal']}\nAnswer:"
    return _same_context(context, (record["sol1"], record["sol2"]), int(record["label"]))


def _hellaswag(record: Mapping[str, Any]) -> Choice:
    if "query" in record:  # a file that went through the two lines below already
        return _same_context(record["query"], record["choices"], int(record["gold"]))
    scene = f"{record['activity_label']}: {record['ctx_a']} {record['ctx_b'].capitalize()}"
    return _same_context(_cleaned(scene), map(_cleaned, record["endings"]), int(record["label"]))


def _cleaned(text: str) -> str:
    """HellaSwag's WikiHow part without its marks: `[title]` becomes a full stop, what else is bracketed goes."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def _winogrande(record: Mapping[str, Any]) -> Choice:
    sentence = record["sentence"]
    blank = sentence.index("_")
    contexts = tuple(sentence[:blank] + record[option] for option in ("option1", "option2"))
    ending = f" {sentence[blank + 1 :].strip()}"
    return Choice(contexts, (ending, ending), int(record["answer"]) - 1)


def _arc(record: Mapping[str, Any]) -> Choice:
    question = record["question"]
    if isinstance(question, str):  # the hub's form; AI2's files nest the answers in the question
        stem, texts, labels = question, record["choices"]["text"], record["choices"]["label"]
    else:
        stem = question["stem"]
        texts, labels = (
            [choice[key] for choice in question["choices"]] for key in ("text", "label")
        )
    return _same_context(f"Question: {stem}\nAnswer:", texts, labels.index(record["answerKey"]))


# data set -> the item of one of its records
TEMPLATES: dict[str, Callable[[Mapping[str, Any]], Choice]] = {
    "piqa": _piqa,
    "hellaswag": _hellaswag,
    "winogrande": _winogrande,
    "arc-easy": _arc,
    "arc-challenge": _arc,
}
# data set -> what one of its records is, of all whose rows are records
ITEMS: dict[str, Callable[[Mapping[str, Any]], Choice | pairs.Pair]] = TEMPLATES | pairs.TEMPLATES
