"""How llama.cpp cuts a text with a SentencePiece vocabulary, written from its description, one step after another."""

import itertools
import re


def cut(text, tokens, scores, special, *, prefix=True):
    """Ids of a text: special tokens, the longest first, cut it; each part is merged by itself."""
    parts = [text] if text else []
    for token in sorted(special, key=lambda token: -len(token.encode())):
        parts = [piece for part in parts for piece in _around(part, token, special[token])]
    numbers = {token: number for number, token in enumerate(tokens)}
    ids, behind_special = [], True
    for part in parts:
        if isinstance(part, str):
            blank = " " if prefix and behind_special else ""
            ids += _merged((blank + part).replace(" ", "▁"), numbers, scores)
        else:
            ids.append(part)
        behind_special = not isinstance(part, str)
    return ids


def _around(part, token, number):
    if not isinstance(part, str):
        return [part]
    pieces = re.split(f"({re.escape(token)})", part)
    return [number if piece == token else piece for piece in pieces if piece]


def _merged(text, numbers, scores):
    symbols = list(text)
    while True:
        joint = [a + b for a, b in itertools.pairwise(symbols)]
        known = [(scores[numbers[x]], -place) for place, x in enumerate(joint) if x in numbers]
        if not known:
            break
        place = -max(known)[1]
        symbols[place : place + 2] = [joint[place]]
    ids = []
    for x in symbols:
        ids += [numbers[x]] if x in numbers else [numbers[f"<0x{byte:02X}>"] for byte in x.encode()]
    return ids
