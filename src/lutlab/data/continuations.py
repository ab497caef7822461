"""Multiple-choice items that come with Python: which of two sentences of its documentation does a third one continue?

    contexts: the first sentence of a held-out paragraph, and the first one of another paragraph of about the same
    length; ending: the second sentence of the first paragraph. A hash of the ending draws the other paragraph and the
    order of the two.

Paragraphs are those of the held-out topics and docstrings (data/pydocs.py), which no embedded model was trained on.
The ending is the same after both contexts, as in WinoGrande: of two different endings a small model takes the more
common words whatever precedes them (55 % right for opt-embedded-s, which scores 77 % here; a guess 50 %).
"""

from __future__ import annotations

import hashlib
import re

from lutlab.data import pydocs
from lutlab.data.choices import choice_row

_SENTENCE_END = re.compile(r"(?<=[a-z0-9)'\"`”]\.) (?=[A-Z])")
_WORDS = range(5, 41)  # of either sentence
_NEAREST = 8  # the other context is drawn among this many of the most similar length


def rows() -> list[str]:
    """All items as rows of a text of kind `choices`, in the documentation's order.

    Raises:
        LutlabError: this Python ships no documentation.
    """
    pairs = _sentence_pairs()
    by_length = sorted(range(len(pairs)), key=lambda i: (len(pairs[i][0]), pairs[i][0]))
    items: list[str] = [""] * len(pairs)
    for rank, index in enumerate(by_length):
        right, ending = pairs[index]
        first = min(max(0, rank - _NEAREST // 2), max(0, len(pairs) - _NEAREST - 1))
        others = [i for i in by_length[first : first + _NEAREST + 1] if i != index]
        draw, gold = divmod(int(hashlib.sha256(ending.encode()).hexdigest()[:8], 16), 2)
        wrong = pairs[others[draw % len(others)]][0]
        contexts = (wrong, right) if gold else (right, wrong)
        items[index] = choice_row(contexts, ending, gold)
    return items


def _sentence_pairs() -> list[tuple[str, str]]:
    """First and second sentence of each held-out paragraph that has two of fitting length; no sentence twice."""
    found: list[tuple[str, str]] = []
    seen: set[str] = set()
    texts = (text for name in ("topics", "docstrings") for text in pydocs.heldout(name))
    for paragraph in (p for text in texts for p in re.split(r"\n\s*\n", text)):
        sentences = _SENTENCE_END.split(" ".join(paragraph.split()))
        pair = tuple(sentences[:2])
        whole = len(sentences) > 2 or sentences[-1].endswith(".")
        fits = len(pair) == 2 and all(len(s.split()) in _WORDS for s in pair)
        if fits and whole and pair[0][0].isupper() and seen.isdisjoint(pair):
            seen.update(pair)
            found.append(pair)
    return found
