"""Pairs to classify that come with Python: which of three words stood between the two parts of a sentence?

    first "The default encoding", second "source files is UTF-8.": 0 of, 1 to, 2 in

In MNLI's shape: two texts, three labels in equal numbers, matched pairs of the genre that was trained on and mismatched
ones of another: docstrings of the standard library, and topics of the language reference. What is evaluated is cut from
the held-out documents of data/pydocs.py, which no embedded model has read; what is trained on from those that embedded
models were trained on, less paragraphs that overlap a held-out one and sentences that stand there too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence

from lutlab.data import pydocs
from lutlab.data.pairs import Pair

WORDS = ("of", "to", "in")
_SENTENCE_END = re.compile(r"(?<=[a-z0-9)'\"`”]\.) (?=[A-Z])")
_LENGTHS = range(6, 25)  # words of a sentence
_BESIDE = 2  # words on each side of the missing one, at least


def evaluated(genre: str) -> list[str]:
    """The held-out pairs of a genre of pydocs as rows of a text of kind `pairs`."""
    return _rows(_pairs(_held_out(genre)))


def trained() -> list[str]:
    """The training pairs, of docstrings, as rows of a text of kind `calibration-pairs`."""
    known = {pair for genre in ("docstrings", "topics") for pair in _pairs(_held_out(genre))}
    return _rows(p for p in _pairs(pydocs.train_documents("docstrings")) if p not in known)


def _held_out(genre: str) -> list[str]:
    return [*pydocs.documents(genre, "heldout"), *pydocs.documents(genre, "passages")]


def _rows(some: Iterable[Pair]) -> list[str]:
    """Balanced pairs: as many of each label as of the rarest, in an order that a hash draws."""
    by_label: list[list[str]] = [[] for _ in WORDS]
    for pair in some:
        by_label[int(pair.label)].append(pair.row())
    fewest = min(map(len, by_label))
    return sorted(
        (row for rows in by_label for row in sorted(rows, key=_drawn)[:fewest]), key=_drawn
    )


def _drawn(row: str) -> str:
    return hashlib.sha256(row.encode()).hexdigest()


def _pairs(documents: Sequence[str]) -> Iterator[Pair]:
    """A pair for each place inside of a sentence of fitting length where one of the words stands."""
    seen: set[str] = set()
    for paragraph in (p for text in documents for p in re.split(r"\n\s*\n", text)):
        for sentence in _SENTENCE_END.split(" ".join(paragraph.split())):
            words = sentence.split(" ")
            if len(words) in _LENGTHS and sentence[0].isupper() and sentence not in seen:
                seen.add(sentence)
                for place in range(_BESIDE, len(words) - _BESIDE):
                    if words[place] in WORDS:
                        parts = " ".join(words[:place]), " ".join(words[place + 1 :])
                        yield Pair(*parts, WORDS.index(words[place]))
