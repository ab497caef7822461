"""Text of others made safe to print: control characters act on a terminal, so they are shown as escapes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

# C0 and C1 without tab and line feed, and the characters that turn the direction of what follows.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""The text with escapes in the place of its control characters; line feeds and tabs stay.

    >>> visible("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def mapped_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same tuple, list, mapping or dataclass with every text in it changed, keys too, however deep."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(mapped_texts(item, change) for item in value)
    if isinstance(value, Mapping):
        return {mapped_texts(k, change): mapped_texts(v, change) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **mapped_texts(fields, change))
    return value
