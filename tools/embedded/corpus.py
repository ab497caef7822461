"""Training text of the embedded models: English files of a data folder plus Python's documentation.

Every document is checked against everything that is ever evaluated (held-out documentation, WikiText-2, PTB and
LAMBADA in all their test and validation splits, the TinyStories validation head, the last tenth of tinyshakespeare):
a paragraph sharing 13 consecutive words with any of it is dropped. PTB is not trained on at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from lutlab.base.errors import LutlabError
from lutlab.data import pydocs

PYDOCS_REPEATS = (
    3  # the evaluated domain is 5 % of the text; seen three times an epoch it becomes a seventh
)
_EVALUATED_FILES = (
    "wikitext2/wiki.test.raw",
    "wikitext2/wiki.valid.raw",
    "ptb/ptb.test.txt",
    "ptb/ptb.valid.txt",
    "lambada/lambada_test_plain_text.txt",
    "lambada/lambada_development_plain_text.txt",
    "lambada/lambada_test.jsonl",
    "text/tinystories_valid_head.txt",
)


def training_documents(root: Path) -> dict[str, list[str]]:
    """Source name -> documents, decontaminated, paragraphs met twice dropped.

    Args:
        root: a folder laid out as docs/data-layout.md says.

    Raises:
        LutlabError: a file of the corpus is missing.
    """
    held = pydocs.shingles(_evaluated(root))
    seen: set[str] = set()
    corpus: dict[str, list[str]] = {}
    for source, document in _sources(root):
        text = _new_paragraphs(pydocs.without_overlap(document, held), seen)
        if len(text) > 200:  # shorter remains are headings
            corpus.setdefault(source, []).append(text)
    corpus["python-docs"] = pydocs.train_documents()
    return corpus


def _new_paragraphs(text: str, seen: set[str]) -> str:
    paragraphs = [p for p in text.split("\n\n") if p not in seen]
    seen.update(p for p in paragraphs if len(p) > 80)
    return "\n\n".join(paragraphs)


def _evaluated(root: Path) -> list[str]:
    texts = [_read(root / name) for name in _EVALUATED_FILES] + [_shakespeare(root)[1]]
    return texts + [text for name in pydocs.SLICES for text in pydocs.heldout(name)]


def _sources(root: Path) -> Iterator[tuple[str, str]]:
    for row in _jsonl(root / "wikitext2/wiki.train.tokens.articles.jsonl"):
        yield "wikitext2-train", _wikitext(row["text"])
    for article in re.split(
        r"(?m)^ (?== [^=])", _read(root / "calib/wikitext103_train_head.tokens")
    ):
        yield "wikitext103-train-head", _wikitext(article)
    for row in _jsonl(root / "calib/c4_train_00000_first1000.jsonl"):
        yield "c4-train-head", row["text"].replace("\n", "\n\n")
    for line in _read(root / "calib/exllamav3_c4.utf8").splitlines():
        yield "exllamav3-c4", line
    for article in re.split(r"<doc [^>]*>|</doc>", _read(root / "calib/exllamav3_wiki.utf8")):
        yield "exllamav3-wiki", article.strip().replace("\n", "\n\n")
    for document in re.split(r"\n{4,}", _read(root / "calib/exllamav3_technical.utf8")):
        yield "exllamav3-technical", document
    yield "warandpeace", _read(root / "text/warandpeace.txt").partition("CHAPTER I")[2]
    yield "tinyshakespeare", _shakespeare(root)[0]
    yield "tinystories-train-sample", _read(root / "text/tinystories_train_sample.txt")


def _wikitext(text: str) -> str:
    """Join the lines as the GPTQ protocol joins WikiText rows, so that the evaluated layout is familiar."""
    return "\n\n".join(line.strip("\n") for line in text.split("\n") if line.strip())


def _shakespeare(root: Path) -> tuple[str, str]:
    """Train and validation part: nanoGPT's usual split, the last tenth held out."""
    text = _read(root / "text/tinyshakespeare.txt")
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def _jsonl(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in _read(path).splitlines()]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise LutlabError(
            f"training text missing: {path} ({error.strerror}); see docs/data-layout.md"
        ) from error
