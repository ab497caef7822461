"""Keys of a file that lutlab did not write, sorted by what they do: read, neutral, or neither and so to be refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def unread(
    facts: Mapping[str, Any],
    read: Collection[str],
    neutral: Mapping[str, Collection[Any] | None],
    nothing: Collection[Any] = (),
) -> dict[str, Any]:
    """Keys of a file, with their values, that may change its numbers and that nothing here reads.

    Args:
        facts: keys of the file.
        read: keys that are read.
        neutral: key that changes nothing -> the values at which that is so; None: all.
        nothing: values at which a key that nobody knows asks for nothing.
    """
    return {
        key: value
        for key, value in facts.items()
        if key not in read
        if (values := neutral.get(key, nothing)) is not None and value not in values
    }
