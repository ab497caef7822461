"""All that a class of options (a method, an evaluator) has against given values; by itself it refuses one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lutlab.errors import LutlabError


def refusals(cls: type, options: Mapping[str, Sequence[Any]]) -> list[str]:
    """All that a class has against options of its own, each with one or several values."""
    first = {option: values[0] for option, values in options.items()}
    found = []
    for option, values in options.items():
        for value in values[1:]:
            found += _refusal(cls, first | {option: value})
    return [*_each_refusal(cls, first), *found]


def _each_refusal(cls: type, options: dict[str, Any]) -> list[str]:
    """A class refuses one option at a time: leave the culprit out and ask again."""
    found = []
    while said := _refusal(cls, options):
        found += said
        without = ({k: v for k, v in options.items() if k != option} for option in options)
        options = next((rest for rest in without if _refusal(cls, rest) != said), {})
    return found


def _refusal(cls: type, options: Mapping[str, Any]) -> list[str]:
    try:
        cls(**options)
    except LutlabError as error:
        return [str(error)]
    return []
