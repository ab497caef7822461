"""Texts that come with every Python: its documentation (pydocs.py), held out or not, and two kinds of items made of it.

continuations: which of two sentences does a third one continue?

    contexts: the first sentence of a held-out paragraph, and the first one of another paragraph of about the same
    length; ending: the second sentence of the first paragraph. A hash of the ending draws the other paragraph and the
    order of the two.

The ending is the same after both contexts, as in WinoGrande: of two different endings a small model takes the more
common words whatever precedes them (55 % right for opt-embedded-s, which scores 77 % here; a guess 50 %).

missing-word: which of three words stood between the two parts of a sentence?

    first "The default encoding", second "source files is UTF-8.": 0 of, 1 to, 2 in

In MNLI's shape: two texts, three labels in equal numbers, matched pairs of the genre that was trained on and mismatched
ones of another: docstrings of the standard library, and topics of the language reference.

What is evaluated is cut from the held-out documents, which no embedded model has read; what is trained on from those
that embedded models were trained on, less paragraphs that overlap a held-out one and sentences that stand there too.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from lutlab.data import pydocs
from lutlab.data.choices import choice_row
from lutlab.data.pairs import Pair

WORDS = ("of", "to", "in")  # that are missing
_SENTENCE_END = re.compile(r"(?<=[a-z0-9)'\"`”]\.) (?=[A-Z])")
_WORDS = range(5, 41)  # of either sentence of an item
_NEAREST = 8  # the other context is drawn among this many of the most similar length
_LENGTHS = range(6, 25)  # words of a sentence that one is missing in
_BESIDE = 2  # words on each side of the missing one, at least


def read(dataset: str, limit: int | None) -> tuple[list[str], str]:
    """Rows of a data set and their origin; the documentation's words change with the Python version, so it is named.

    Raises:
        LutlabError: this Python ships no documentation.
    """
    return READERS[dataset]()[:limit], f"embedded: Python {platform.python_version()}"


def _sentences(documents: Iterable[str]) -> Iterator[list[str]]:
    """The sentences of each paragraph."""
    for paragraph in (p for text in documents for p in re.split(r"\n\s*\n", text)):
        yield _SENTENCE_END.split(" ".join(paragraph.split()))


def _drawn(row: str) -> str:
    return hashlib.sha256(row.encode()).hexdigest()


# ---- continuations ----


def _continuations() -> list[str]:
    """All items as rows of a text of kind `choices`, in the documentation's order."""
    pairs = _sentence_pairs()
    by_length = sorted(range(len(pairs)), key=lambda i: (len(pairs[i][0]), pairs[i][0]))
    items: list[str] = [""] * len(pairs)
    for rank, index in enumerate(by_length):
        right, ending = pairs[index]
        first = min(max(0, rank - _NEAREST // 2), max(0, len(pairs) - _NEAREST - 1))
        others = [i for i in by_length[first : first + _NEAREST + 1] if i != index]
        draw, gold = divmod(int(_drawn(ending)[:8], 16), 2)
        wrong = pairs[others[draw % len(others)]][0]
        contexts = (wrong, right) if gold else (right, wrong)
        items[index] = choice_row(contexts, ending, gold)
    return items


def _sentence_pairs() -> list[tuple[str, str]]:
    """First and second sentence of each held-out paragraph that has two of fitting length; no sentence twice."""
    pairs: list[tuple[str, str]] = []
    seen: set[str] = set()
    for sentences in _sentences([*pydocs.heldout("topics"), *pydocs.heldout("docstrings")]):
        first, second = (*sentences, "")[:2]
        whole = len(sentences) > 2 or sentences[-1].endswith(".")
        fits = all(len(sentence.split()) in _WORDS for sentence in (first, second))
        if fits and whole and first[0].isupper() and seen.isdisjoint((first, second)):
            seen.update((first, second))
            pairs.append((first, second))
    return pairs


# ---- missing words ----


def _missing_words(genre: str) -> list[str]:
    """The held-out pairs of a genre of pydocs as rows of a text of kind `pairs`."""
    return _balanced(_pairs(_held_out(genre)))


def _missing_words_train() -> list[str]:
    """The training pairs, of docstrings, as rows of a text of kind `calibration-pairs`."""
    known = {pair for genre in ("docstrings", "topics") for pair in _pairs(_held_out(genre))}
    return _balanced(p for p in _pairs(pydocs.train_documents("docstrings")) if p not in known)


def _held_out(genre: str) -> list[str]:
    return [*pydocs.documents(genre, "heldout"), *pydocs.documents(genre, "passages")]


def _balanced(some: Iterable[Pair]) -> list[str]:
    """Rows of as many pairs of each label as of the rarest, in an order that a hash draws."""
    by_label: list[list[str]] = [[] for _ in WORDS]
    for pair in some:
        by_label[int(pair.label)].append(pair.row())
    fewest = min(map(len, by_label))
    return sorted(
        (row for rows in by_label for row in sorted(rows, key=_drawn)[:fewest]), key=_drawn
    )


def _pairs(documents: Sequence[str]) -> Iterator[Pair]:
    """A pair for each place inside of a sentence of fitting length where one of the words stands."""
    seen: set[str] = set()
    for sentence in (s for sentences in _sentences(documents) for s in sentences):
        words = sentence.split(" ")
        if len(words) in _LENGTHS and sentence[0].isupper() and sentence not in seen:
            seen.add(sentence)
            for place in range(_BESIDE, len(words) - _BESIDE):
                if words[place] in WORDS:
                    parts = " ".join(words[:place]), " ".join(words[place + 1 :])
                    yield Pair(*parts, WORDS.index(words[place]))


# data set -> its rows
READERS: dict[str, Callable[[], list[str]]] = {
    **{name: functools.partial(pydocs.heldout, name) for name in pydocs.SLICES},
    "pydocs-train": pydocs.train_documents,
    "continuations": _continuations,
    "missing-word": functools.partial(_missing_words, "docstrings"),
    "missing-word-mismatched": functools.partial(_missing_words, "topics"),
    "missing-word-train": _missing_words_train,
}
