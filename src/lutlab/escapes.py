"""Text of others made safe to print: control characters act on a terminal, so they are shown as escapes."""

from __future__ import annotations

import re

# C0 and C1 without tab and line feed, and the signs that turn the direction of what follows.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""The text with escapes in the place of its control characters; line feeds and tabs stay.

    >>> visible("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
