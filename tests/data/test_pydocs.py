"""The embedded texts: held out means held out, and nothing moves between Python versions or runs."""

import ast
import platform
import re
import sysconfig
from pathlib import Path

import pytest

from lutlab.base.specs import TextSpec
from lutlab.data import load_text, pydocs


def grams(text, length=13):
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {" ".join(words[i : i + length]) for i in range(len(words) - length + 1)}


def test_buckets_are_pinned():
    buckets = {
        "heldout": ("attribute-access", "dataclasses", "raise", "return", "socket", "threading"),
        "passages": ("abc", "ast", "calendar", "json", "tarfile"),
        "train": ("asyncio", "class", "datetime", "logging", "re", "typing", "with"),
    }
    assert {
        label: tuple(n for n in names if pydocs.bucket(n) == label)
        for label, names in buckets.items()
    } == buckets
    assert pydocs.bucket("_pydatetime") == pydocs.bucket("datetime") == pydocs.bucket("_datetime")


def test_docstrings_are_those_of_ast_walk():
    root = Path(sysconfig.get_paths()["stdlib"])
    for name in ("argparse", "typing", "socket"):
        expected = []
        for node in ast.walk(ast.parse((root / f"{name}.py").read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                expected += [ast.get_docstring(node)] if ast.get_docstring(node) else []
        assert list(pydocs._docstrings_in((root / f"{name}.py").read_bytes())) == expected


def test_documents_nested_in_statements_are_found(tmp_path):
    (tmp_path / "m.py").write_text(
        "try:\n    def a():\n        'in try'\nexcept E:\n    def b():\n        'in except'\nelse:\n"
        "    class C:\n        'in else'\nfinally:\n    async def d():\n        'in finally'\n"
        "match 1:\n    case 1:\n        def e():\n            'in case'\n"
    )
    found = list(pydocs._docstrings_in((tmp_path / "m.py").read_bytes()))
    assert sorted(found) == ["in case", "in else", "in except", "in finally", "in try"]


def test_no_training_paragraph_shares_13_words_with_a_held_out_document():
    held = set().union(*(grams(text) for name in pydocs.SLICES for text in pydocs.heldout(name)))
    documents = pydocs.train_documents()
    assert len(held) > 10_000
    assert len(documents) > 50
    paragraphs = {
        gram for document in documents for p in document.split("\n\n") for gram in grams(p)
    }
    assert paragraphs.isdisjoint(held)
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
