"""Fields of methods, evaluators and specs refuse what is of another type or out of its limit, and say what to give."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pytest

import lutlab
from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.fields import Key, keys_of
from lutlab.base.limits import Count
from lutlab.generate.text import Chooser

CLASSES = {
    f"{group} {name}": cls
    for group in ("method", "evaluator")
    for name, cls in registry.classes(group).items()
} | {"Tuning": lutlab.Tuning, "Chooser": Chooser}
FIELDS = [(name, field.name) for name, cls in CLASSES.items() for field in dataclasses.fields(cls)]


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_value_of_another_type_is_refused_and_named(name: str, field: str) -> None:
    cls = CLASSES[name]
    (key,) = (key for key in keys_of(cls) if key.name == field)
    others = [object(), [1], b"yes"]
    if key.values:
        with pytest.raises(
            LutlabError, match=f"unknown .*{field} '.*did you mean '{key.values[0]}'"
        ):
            cls(**{field: key.values[0] + "x"})
    of_another = {
        int: [True, 2.5, "3"],
        float: [True, "a", float("nan")],
        bool: [1, "yes"],
        str: [3],
    }
    others += of_another.get(key.type, [])
    for other in others:
        with pytest.raises(LutlabError, match=rf"\b{field}[= ]"):
            cls(**{field: other})


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (Count, 0, "a.b=0: give a whole number of at least 1, as a.b=2: number of trials"),
        (Count | None, 0, "a.b=0: give a whole number of at least 1, or null, as a.b=2: number of trials"),
        (Count, 2**40, "a.b=1099511627776: give a whole number of at least 1"),
        (bool, "yes", "a.b='yes': give true or false"),
    ],
)  # fmt: skip
def test_a_refusal_says_range_example_and_meaning(annotation, value, message) -> None:
    with pytest.raises(LutlabError) as caught:
        Key("a.b", annotation, 2, "number of trials.").check(value)
    assert str(caught.value).startswith(message)


def test_a_field_of_two_classes_takes_what_either_takes() -> None:
    one, other = Key("a", Literal["x"], "x", "one"), Key("a", Literal["y"], "y", "other")
    both = one.or_as(other)
    assert (both.read("x"), both.read("y"), both.about) == ("x", "y", "")
    with pytest.raises(LutlabError, match="unknown a 'z': known: x, y"):
        both.read("z")
    assert Key("a", bool, True, "").or_as(one).read(3) == 3, "it is the class that refuses"
