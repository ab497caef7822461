"""How llama.cpp cuts a text with a SentencePiece vocabulary, written from its description, one step after another."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence


def cut(
    text: str,
    tokens: Sequence[str],
    scores: Sequence[float],
    special: Mapping[str, int],
    *,
    prefix: bool = True,
) -> list[int]:
    """Ids of a text: special tokens, the longest first, cut it; each part is merged by itself."""
    parts: list[str | int] = [text] if text else []
    for token in sorted(special, key=lambda one: -len(one.encode())):
        parts = [piece for part in parts for piece in _around(part, token, special[token])]
    ids: dict[str, int] = {one: number for number, one in enumerate(tokens)}
    found: list[int] = []
    behind_special = True
    for part in parts:
        if isinstance(part, str):
            blank = " " if prefix and behind_special else ""
            found += _merged((blank + part).replace(" ", "▁"), ids, scores)
        else:
            found.append(part)
        behind_special = not isinstance(part, str)
    return found


def _around(part: str | int, token: str, number: int) -> list[str | int]:
    if not isinstance(part, str):
        return [part]
    found: list[str | int] = []
    for index, between in enumerate(part.split(token)):
        found += [number] * (index > 0) + ([between] if between else [])
    return found


def _merged(text: str, ids: Mapping[str, int], scores: Sequence[float]) -> list[int]:
    symbols = list(text)
    while True:
        joint = [a + b for a, b in itertools.pairwise(symbols)]
        known = [(scores[ids[one]], -place) for place, one in enumerate(joint) if one in ids]
        if not known:
            break
        place = -max(known)[1]
        symbols[place : place + 2] = [joint[place]]
    found = []
    for one in symbols:
        found += [ids[one]] if one in ids else [ids[f"<0x{byte:02X}>"] for byte in one.encode()]
    return found
