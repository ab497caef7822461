"""The one error that a user may see without a traceback: it names the mistake, what was expected, and the cure."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import inspect
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

# What other libraries call q and g -> our name of it.
OTHER_NAMES = dict.fromkeys(
    ("bits", "wbits", "w_bits", "w_bit", "nbits", "n_bits", "num_bits"), "q"
)
OTHER_NAMES |= dict.fromkeys(("group_size", "groupsize", "q_group_size", "group"), "g")
# What a reader raises, beside ValueError, over content of another type or a deeper nesting than it expects.
WRONG_TYPE = (LookupError, TypeError, AttributeError, RecursionError)
_Called = TypeVar("_Called", bound=Callable[..., Any])
_SHOWN = 40  # names in a message: a figure of many rows would fill the screen
_LONGEST = 240  # characters of one among several mistakes
_SHOWN_BESIDE = 14  # names beside a guess, which is most likely right


class LutlabError(Exception):
    """A mistake or a limit the user can act on. Printed as one message, exit code 2, no traceback."""


class MissingTextError(LutlabError):
    """A data folder that lacks one text: the other columns of a table can be measured without it."""


class Mistakes(LutlabError):
    """Several mistakes, a line each without repetition, shortened to fit one screen."""

    def __init__(self, messages: Iterable[str]) -> None:
        self.said = tuple(dict.fromkeys(messages))
        lines = (textwrap.shorten(message, _LONGEST, placeholder=" …") for message in self.said)
        several = len(self.said) > 1
        super().__init__(
            "\n  ".join([f"{len(self.said)} mistakes", *lines]) if several else self.said[0]
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name the user most likely meant, capitals aside.

    Examples:
        >>> nearest("rnt", ["rtn", "bcq"])
        "did you mean 'rtn'? known: bcq, rtn"
    """
    names = sorted(known)
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=_SHOWN_BESIDE, cutoff=0.5)
    guess = f"did you mean '{by_lower[close[0]]}'? " if close else ""
    shown = names[:_SHOWN]
    if close and len(names) > _SHOWN_BESIDE:
        shown = [by_lower[match] for match in close]
    rest = f", … ({len(names)} in all)" if len(names) > len(shown) else ""
    return f"{guess}known: {', '.join(shown) or '(none)'}{rest}"


def not_installed(modules: Iterable[str], install: str) -> str:
    """Say which of some optional modules are missing, and what pip installs for them; empty where none is."""
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    return (absent and f"{' and '.join(absent)} not installed: pip install {install}") or ""


def arguments_of(function: Callable[..., Any]) -> list[str]:
    """Names of a function's arguments, **options left out."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]


def explained(called: _Called) -> _Called:
    """A function, or a class, whose wrong arguments raise LutlabError with the nearest known one, not TypeError."""
    if isinstance(called, type):
        cls: Any = called  # __init__ is put in anew
        cls.__init__ = _explained(cls.__init__, cls.__name__)
        return cls
    return _explained(called, called.__name__)


def _explained(function: _Called, name: str) -> _Called:
    signature = inspect.signature(function)
    kinds = {p.kind for p in signature.parameters.values()}
    known = [argument for argument in arguments_of(function) if argument != "self"]

    @functools.wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        for argument in named:
            if argument not in known and inspect.Parameter.VAR_KEYWORD not in kinds:
                raise LutlabError(
                    f"{name} has no argument '{argument}': {nearest(argument, known)}"
                )
        try:
            signature.bind(*values, **named)
        except TypeError as error:
            raise LutlabError(f"{name}: {error}; it takes {', '.join(known)}") from error
        return function(*values, **named)

    return cast(_Called, call)  # it takes what the function takes
