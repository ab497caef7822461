"""The embedded texts: held out means held out, and nothing moves between Python versions or runs."""

import ast
import platform
import re
import sysconfig
from pathlib import Path

import pytest

from lutlab.base.specs import TextSpec
from lutlab.data import load_text, pydocs, records


def grams(text, length=13):
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {" ".join(words[i : i + length]) for i in range(len(words) - length + 1)}


def test_buckets_are_pinned():
    buckets = {
        "heldout": ("attribute-access", "dataclasses", "raise", "return", "socket", "threading"),
        "passages": ("abc", "ast", "calendar", "json", "tarfile"),
        "train": ("asyncio", "class", "datetime", "logging", "re", "typing", "with"),
    }
    for label, names in buckets.items():
        assert {name: pydocs.bucket(name) for name in names} == dict.fromkeys(names, label)
    assert pydocs.bucket("_pydatetime") == pydocs.bucket("datetime") == pydocs.bucket("_datetime")


@pytest.mark.parametrize("name", ["argparse", "typing", "socket"])
def test_docstrings_are_those_of_ast_walk(name):
    code = (Path(sysconfig.get_paths()["stdlib"]) / f"{name}.py").read_bytes()
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, documented)]
    assert list(pydocs._docstrings_in(code)) == [*filter(None, map(ast.get_docstring, nodes))]


def test_documents_nested_in_statements_are_found():
    docstrings = pydocs._docstrings_in(
        b"try:\n    def a():\n        'in try'\nexcept E:\n    def b():\n        'in except'\nelse:\n"
        b"    class C:\n        'in else'\nfinally:\n    async def d():\n        'in finally'\n"
        b"match 1:\n    case 1:\n        def e():\n            'in case'\n"
    )
    assert sorted(docstrings) == ["in case", "in else", "in except", "in finally", "in try"]


def test_no_training_paragraph_shares_13_words_with_a_held_out_document():
    held = set().union(*(grams(text) for name in pydocs.SLICES for text in pydocs.heldout(name)))
    documents = pydocs.train_documents()
    assert len(held) > 10_000
    assert len(documents) > 50
    for document in documents:
        assert all(grams(paragraph).isdisjoint(held) for paragraph in document.split("\n\n"))
    # runs of paragraphs shorter than 13 words each can still agree; that is rare enough not to matter
    across = {gram for document in documents for gram in grams(document)} & held
    assert len(across) < 0.002 * len(held)


def test_a_passage_ends_with_a_word_that_stood_before():
    passages = load_text(TextSpec("passages", "embedded")).rows
    assert len(passages) > 100
    assert len(set(passages)) == len(passages)
    for passage in passages:
        *context, last = passage.split(" ")
        assert 15 <= len(context) <= 119
        assert last.isalpha()
        assert last in re.findall(r"[a-z]+", " ".join(context).lower())


@pytest.mark.parametrize("name", ["topics", "docstrings", "passages", "passages-joined"])
def test_embedded_texts_load_with_their_origin_and_hash(name):
    text = load_text(TextSpec(name, "embedded"))
    assert text.origin.startswith("embedded: Python 3.")
    assert text == load_text(TextSpec(name, "embedded"))
    assert len(text.sha256) == 64


@pytest.mark.skipif(platform.python_version() != "3.11.7", reason="the words are each Python's own")
def test_topics_are_those_of_the_published_records():
    text = load_text(TextSpec("topics", "embedded"))
    assert text.sha256 == "89ba9de88dc9025a23da700d7e4da22cbd9ff52bbf28234302be39750ea6efd6"


TEXT = TextSpec("continuations", "embedded")


def test_items_are_pairs_of_held_out_sentences_with_one_ending():
    text = load_text(TEXT)
    items = records(text)
    assert len(items) > 300
    assert text == load_text(TEXT)
    documents = (document for name in ("topics", "docstrings") for document in pydocs.heldout(name))
    parts = (part for document in documents for part in re.split(r"\n\s*\n", document))
    paragraphs = {" ".join(part.split()) for part in parts}
    begins = {context for item in items for context in item["contexts"]}
    for item in items:
        contexts, gold = item["contexts"], item["gold"]
        assert contexts[0] != contexts[1]
        for at in (0, 1):
            sentence = f"{contexts[at]} {item['ending']}"
            assert any(p.startswith(sentence) for p in paragraphs) == (at == gold)
    assert len(begins) == len(items), "every wrong context is the right one of another item"


def test_neither_place_nor_length_gives_the_answer_away():
    items = records(load_text(TEXT))
    assert 0.4 < sum(item["gold"] for item in items) / len(items) < 0.6
    pairs = [item["contexts"][:: -1 if item["gold"] else 1] for item in items]
    longer = [len(right) > len(wrong) for right, wrong in pairs if len(right) != len(wrong)]
    assert 0.4 < sum(longer) / len(longer) < 0.6
