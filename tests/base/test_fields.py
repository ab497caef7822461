"""Fields of methods, evaluators and specs refuse what is of another type or out of its limit, and say what to give."""

import dataclasses
import re
from typing import Literal

import pytest
from tests.base.refusals import refused

import lutlab
from lutlab.base import registry
from lutlab.base.fields import Key, keys_of
from lutlab.base.limits import Count
from lutlab.generate.text import Chooser

CLASSES = {f"{group} {name}": cls for group in ("method", "evaluator")
           for name, cls in registry.classes(group).items()}  # fmt: skip
CLASSES |= {"Tuning": lutlab.Tuning, "Chooser": Chooser}
OTHERS = {int: [True, 2.5, "3"], float: [True, "a", float("nan")], bool: [1, "yes"], str: [3]}
FIELDS = [(name, field.name) for name, cls in CLASSES.items() for field in dataclasses.fields(cls)]


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_value_of_another_type_is_refused_and_named(name, field):
    cls = CLASSES[name]
    (key,) = (key for key in keys_of(cls) if key.name == field)
    if key.values:
        message = f"unknown .*{field} '.*did you mean '{key.values[0]}'"
        refused(message, cls, **{field: key.values[0] + "x"})
    for value in (object(), [1], b"yes", *OTHERS.get(key.type, [])):
        refused(rf"\b{field}[= ]", cls, **{field: value})


@pytest.mark.parametrize(("annotation", "value", "message"), [
    (Count, 0, "a.b=0: give a whole number of at least 1, as a.b=2: number of trials"),
    (Count | None, 0, "a.b=0: give a whole number of at least 1, or null, as a.b=2: number of trials"),
    (Count, 2**40, "a.b=1099511627776: give a whole number of at least 1"),
    (bool, "yes", "a.b='yes': give true or false"),
])  # fmt: skip
def test_a_refusal_says_range_example_and_meaning(annotation, value, message):
    key = Key("a.b", annotation, 2, "number of trials.")
    refused(f"^{re.escape(message)}", key.check, value)


def test_a_field_of_two_classes_takes_what_either_takes():
    first, second = Key("a", Literal["x"], "x", "first"), Key("a", Literal["y"], "y", "second")
    both = first.or_as(second)
    assert (both.read("x"), both.read("y"), both.about) == ("x", "y", "")
    refused("unknown a 'z': known: x, y", both.read, "z")
    assert Key("a", bool, True, "").or_as(first).read(3) == 3, "it is the class that refuses"
