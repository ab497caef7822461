"""The one error a user may see without a traceback: it names what was wrong, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN = 40  # names in a message: a figure of many rows would fill the screen


class LutlabError(Exception):
    """A mistake or a limit the user can act on. Printed as one message, exit code 2, no traceback."""


class MissingTextError(LutlabError):
    """A data folder that lacks one text: the other columns of a table can be measured without it."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name the user most likely meant.

    Examples:
        >>> nearest("rnt", ["rtn", "bcq"])
        "did you mean 'rtn'? known: bcq, rtn"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f"did you mean '{close[0]}'? " if close else ""
    more = f", … ({len(names)} in all)" if len(names) > _SHOWN else ""
    return f"{guess}known: {', '.join(names[:_SHOWN]) or '(none)'}{more}"
