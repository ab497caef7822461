"""Records of multiple-choice data sets: the fields that lm-evaluation-harness's own task definitions make items of.

A text of kind `choices` holds one record a row, as JSON, in the form in which the hub publishes its data set. Prompts
are not made here: tasks.py names the definition that reads a record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.specs import Text
from lutlab.data import pairs
from lutlab.data.files import each, parsed
from lutlab.data.protocols import KINDS, PROTOCOLS, protocol


def records(text: Text) -> list[dict[str, Any]]:
    """The records that a task of lm-eval reads, of kind `choices`, or of kind `examples` as {"text": …}.

    Raises:
        LutlabError: a protocol of another kind.
    """
    kind = protocol(text.protocol).kind
    rows = text.rows[: text.limit]
    if kind == "examples":
        return [{"text": row} for row in rows]
    if kind != "choices":
        known = [name for name, p in PROTOCOLS.items() if p.kind in ("choices", "examples")]
        raise LutlabError(
            f"'{text.protocol}' is {KINDS[kind]}, which no task of lm-eval reads here; take one of: {', '.join(known)}"
        )
    return [json.loads(row) for row in rows]


def item_rows(dataset: str, rows: Iterable[str], origin: str) -> list[str]:
    """Rows of a text of kind `choices`, `pairs` or `calibration-pairs` out of a data set's records, JSON as published.

    Raises:
        LutlabError: a record that lacks a field, has one of another type or no right answer; the message has its line.
    """
    return each(lambda row: ITEMS[dataset](parsed(row)), rows, origin, f"is no item of {dataset}")


def choice_row(contexts: Iterable[str], ending: str, gold: int) -> str:
    """A record of our own: after which of several contexts does the ending stand?"""
    record = {"contexts": list(contexts), "ending": ending, "gold": gold}
    return json.dumps(record, ensure_ascii=False)


def _row(record: Mapping[str, Any], fields: Iterable[str], answered: bool, answer: Any) -> str:
    """The fields of a record in one order, so that hub and files give the same rows; `answered`: it has an answer."""
    if not answered:
        raise ValueError(f"no right answer is {answer!r}")
    return json.dumps({name: record[name] for name in fields}, ensure_ascii=False)


def _check(texts: Any, at_least: int = 1) -> None:
    """Raises TypeError unless it is a list of texts, as many as that or more."""
    if not isinstance(texts, list):
        raise TypeError(f"a {type(texts).__name__} stands for a list of texts")
    kinds = [type(text).__name__ for text in texts]
    if set(kinds) - {"str"} or len(kinds) < at_least:
        raise TypeError(f"there should be {at_least} texts or more: {', '.join(kinds) or 'none'}")


def _piqa(record: Mapping[str, Any]) -> str:
    _check([record[name] for name in ("goal", "sol1", "sol2")])
    answered = str(record["label"]) in ("0", "1")  # the file beside the questions has words
    numbered = {**record, "label": int(record["label"])} if answered else record
    return _row(numbered, ("goal", "sol1", "sol2", "label"), answered, record["label"])


def _hellaswag(record: Mapping[str, Any]) -> str:
    if "query" in record:
        # A file that lm-eval's process_docs need not clean: it went through that already.
        _check([record["query"]])
        _check(record["choices"], at_least=2)
        done = {**record, "label": record["gold"]}
        fits = type(record["gold"]) is int and record["gold"] in range(len(record["choices"]))
        return _row(done, ("query", "choices", "label"), fits, record["gold"])
    fields = ("activity_label", "ctx_a", "ctx_b", "endings", "label")
    _check([record[name] for name in fields[:3]])
    _check(record["endings"], at_least=2)
    fits = str(record["label"]) in map(str, range(len(record["endings"])))
    return _row(record, fields, fits, record["label"])


def _winogrande(record: Mapping[str, Any]) -> str:
    record["sentence"].index("_")  # ValueError: there is no blank to fill
    fields = ("sentence", "option1", "option2", "answer")
    _check([record[name] for name in fields])
    return _row(record, fields, record["answer"] in ("1", "2"), record["answer"])


def _arc(record: Mapping[str, Any]) -> str:
    if not isinstance(record["question"], str):  # AI2's files nest the answers in the question
        options = record["question"]["choices"]
        nested = {key: [option[key] for option in options] for key in ("text", "label")}
        record = {**record, "question": record["question"]["stem"], "choices": nested}
    key, choices = record["answerKey"], record["choices"]
    _check([record["question"], key])
    _check(choices["text"], at_least=2)
    _check(choices["label"], at_least=2)
    fits = key in choices["label"] and len(choices["label"]) == len(choices["text"])
    return _row(record, ("question", "choices", "answerKey"), fits, key)


def _paired(make: Callable[[Mapping[str, Any]], pairs.Pair]) -> Callable[[Mapping[str, Any]], str]:
    return lambda record: make(record).row()


# data set whose rows are records -> the row of one of them
ITEMS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "piqa": _piqa,
    "hellaswag": _hellaswag,
    "winogrande": _winogrande,
    "arc-easy": _arc,
    "arc-challenge": _arc,
    **{name: _paired(make) for name, make in pairs.TEMPLATES.items()},
}
