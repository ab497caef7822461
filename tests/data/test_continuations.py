"""The embedded multiple-choice items: held out, balanced, and the same on every run."""

import re

from lutlab.base.specs import TextSpec
from lutlab.data import load_text, pydocs, records


def test_items_are_pairs_of_held_out_sentences_with_one_ending():
    text = load_text(TextSpec("continuations", "embedded"))
    items = records(text)
    assert len(items) > 300
    assert text == load_text(TextSpec("continuations", "embedded"))
    paragraphs = {
        " ".join(p.split())
        for name in ("topics", "docstrings")
        for document in pydocs.heldout(name)
        for p in re.split(r"\n\s*\n", document)
    }
    begins = {context for item in items for context in item["contexts"]}
    for item in items:
        contexts, gold = item["contexts"], item["gold"]
        assert contexts[0] != contexts[1]
        true = f"{contexts[gold]} {item['ending']}"
        assert any(p.startswith(true) for p in paragraphs)
        false = f"{contexts[1 - gold]} {item['ending']}"
        assert not any(p.startswith(false) for p in paragraphs)
    assert len(begins) == len(items), "every wrong context is the right one of another item"


def test_neither_place_nor_length_gives_the_answer_away():
    items = records(load_text(TextSpec("continuations", "embedded")))
    assert 0.4 < sum(item["gold"] for item in items) / len(items) < 0.6
    longer = [
        len(item["contexts"][item["gold"]]) - len(item["contexts"][1 - item["gold"]])
        for item in items
        if len(item["contexts"][0]) != len(item["contexts"][1])
    ]
    assert 0.4 < sum(difference > 0 for difference in longer) / len(longer) < 0.6
