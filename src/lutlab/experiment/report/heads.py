"""Breaking the head of a column, so that it is little wider than its numbers."""

from __future__ import annotations

import re

LONGEST_WORD = 14  # longer words are cut


def break_lines(text: str, width: int) -> tuple[str, ...]:
    """Break a head after blanks, `/`, `_` and `-`. A longer word makes its column wider, or is cut after LONGEST_WORD.

    >>> break_lines("ours: pydocs/library", 9)
    ('ours:', 'pydocs/', 'library')
    """
    words = re.findall(rf"[^\s/_-]{{1,{LONGEST_WORD}}}[/_-]?\s*|[/_-]\s*", text)
    width = max(width, *(len(word.rstrip()) for word in words))
    lines = [""]
    for word in words:
        if len((lines[-1] + word).rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += word
    return tuple(line.rstrip() for line in lines)
