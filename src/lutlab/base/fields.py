"""Fields of frozen dataclasses by name: type, default, limit, choices and meaning, each said once, beside the field.

    batch: Count = 8                                       a type with its bounds (limits.py)
    inputs: Literal["full", "quantized"] = "quantized"     a choice
    g: Annotated[int, a_group_size] = 128                  a limit of ours, and a tuple of the values that --help shows

A field is a key of the command line (`Key.read`: texts are read as its type), and an argument of the Python API
(`check`: a value of another type is refused). Its meaning is the line that "Attributes" of the class has for it.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from lutlab.base.arguments import described
from lutlab.base.errors import LutlabError, nearest
from lutlab.base.groups import whole
from lutlab.base.limits import MOST

MISSING = dataclasses.MISSING  # default of a field that has none, as a preset sets it
_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a text",
}


@dataclass(frozen=True)
class Key:
    """One field by its name.

    Attributes:
        name: dotted, as the command line has it.
        annotation: type of its value, with what `Annotated` adds.
        default: the class's own; MISSING where it has none.
        about: its meaning; empty where the class does not say it.
    """

    name: str
    annotation: Any
    default: Any
    about: str

    @functools.cached_property
    def type(self) -> Any:
        """Type of its value, without what `Annotated` adds."""
        return _plain(self.annotation)

    @functools.cached_property
    def values(self) -> tuple[str, ...]:
        """Every value there is but the empty one, where they are few."""
        shown = (extra for extra in _added(self.annotation) if isinstance(extra, tuple))
        return tuple(filter(None, next(shown, _values(self.type))))

    @property
    def open(self) -> bool:
        """Whether it is a mapping with keys of the user's, as knobs.luts."""
        return typing.get_origin(self.type) is dict

    @property
    def many(self) -> bool:
        """Whether its value is a list."""
        return typing.get_origin(self.type) is tuple

    @functools.cached_property
    def _kind(self) -> builtins.type:
        return _bare(self.type)

    def read(self, value: Any) -> Any:
        """The value of the key's type that a command line or a preset gives.

        Raises:
            LutlabError: it is of another type, none of the values, or out of the limit.
        """
        if value == "" and self.default != "":
            raise LutlabError(f"{self.name}=: the value is missing: give {self._expected(value)}")
        text = self._kind in (str, Path) or (self.values and not self.many)
        flag = isinstance(value, bool) and self._kind in (int, float)
        number = isinstance(value, int | float) and self._kind is bool and value not in (0, 1)
        if flag or number:
            raise LutlabError(self._refusal(value, spelled(value)))
        try:
            result = _reader(self.annotation)(_text(value) if text else value)
        except ValidationError as error:
            raise LutlabError(self._refusal(value, spelled(value))) from error
        if isinstance(result, float) and int in typing.get_args(self.type):
            result = whole(result)
        self._limit(result)
        return result

    def check(self, value: Any) -> None:
        """Refuse a value that a caller gives.

        Raises:
            LutlabError: it is not of the type itself, none of the values, or out of the limit.
        """
        try:
            _reader(self.annotation)(value, strict=True)
        except ValidationError as error:
            raise LutlabError(self._refusal(value, described(value))) from error
        self._limit(value)

    def or_as(self, other: Key) -> Key:
        """The field of one of two classes: what either takes."""
        alike = self._kind is other._kind
        either = self.annotation | other.annotation if alike else Any  # the class refuses
        default = self.default if self.default == other.default else MISSING
        return Key(self.name, either, default, self.about if self.about == other.about else "")

    def _limit(self, value: Any) -> None:
        for limit in _added(self.annotation):
            if inspect.isfunction(limit) and value is not None:
                limit(self.name, value)

    def _refusal(self, value: Any, shown: str) -> str:
        if self.values and not self.many and not isinstance(value, list):
            name = value if isinstance(value, str) else shown
            return f"unknown {self.name} '{name}': {nearest(name, self.values)}"
        outside = isinstance(value, int | float) and not isinstance(value, bool) and self._bounds()
        about = f": {self.about.rstrip('.')}" if outside and self.about else ""
        return f"{self.name}={shown}: give {self._expected(value)}{about}"

    def _expected(self, value: Any) -> str:
        null = ", or null" if NoneType in typing.get_args(self.type) else ""
        if self.many:
            items = (spelled(value) or "…").strip("[]")
            if isinstance(value, list):
                item = _bare(typing.get_args(self.type)[0])
                items = spelled(self.default).strip("[]") or "…"
                return f"a list of which each is {_NAMES.get(item, 'a value')}, as {self.name}=[{items}]"
            return f"a list{null}, as {self.name}=[{items}]"
        if isinstance(value, list):
            items = spelled(value).strip("[]")
            return f"one value{null}; a sweep over several has no brackets: {self.name}={items}"
        if self.open:
            return f"a mapping, as {self.name}.<name>=<value>"
        has_default = self.default not in (MISSING, None, "") and self._kind is not bool
        example = f", as {self.name}={spelled(self.default)}" if has_default else ""
        return f"{_NAMES.get(self._kind, 'a value')}{self._bounds()}{null}{example}"

    def _bounds(self) -> str:
        """`` above 0 and below 1``, of a number; empty where it has none."""
        arms = (self.annotation, *typing.get_args(self.type))
        fields = [extra for arm in arms for extra in _added(arm) if isinstance(extra, FieldInfo)]
        words = {"ge": "of at least", "gt": "above", "le": "at most", "lt": "below"}
        bounds = [
            f"{word} {bound:g}"
            for field in fields
            for limit in field.metadata
            for name, word in words.items()
            if abs(bound := getattr(limit, name, MOST)) < MOST
        ]
        return f" {' and '.join(dict.fromkeys(bounds))}" if bounds else ""


@functools.cache
def keys_of(cls: type, prefix: str = "") -> tuple[Key, ...]:
    """The keys that set the fields of a dataclass, those of a dataclass within it too."""
    keys: list[Key] = []
    for field in dataclasses.fields(cls):
        name = f"{prefix}{field.name}"
        if inner := nested(cls, field):
            keys += keys_of(inner, f"{name}.")
            continue
        about = meanings(cls).get(field.name, "")
        keys.append(Key(name, annotation(cls, field), default_of(field), about))
    return tuple(keys)


def check(record: Any, prefix: str = "") -> None:
    """Refuse the first field of a dataclass' instance that is of another type or out of its limit.

    Raises:
        LutlabError: a field is; the message names it behind `prefix`, as `evaluator.generation.`, and what to give.
    """
    cls: type = type(record)
    for field, key in zip(dataclasses.fields(cls), keys_of(cls, prefix), strict=True):
        key.check(getattr(record, field.name))


def annotation(cls: type, field: dataclasses.Field) -> Any:
    """A field's annotation as an object. Others of its class, of class variables, only type checkers can read."""
    owner = next(base for base in cls.__mro__ if field.name in inspect.get_annotations(base))
    module = vars(sys.modules[owner.__module__])
    only = SimpleNamespace(__annotations__={"it": field.type})
    return typing.get_type_hints(only, module, include_extras=True)["it"]


def nested(cls: type, field: dataclasses.Field) -> type | None:
    """The dataclass that a field holds, as `Tuning | None` does; None where it holds a value."""
    kind = _plain(annotation(cls, field))
    for arm in (*typing.get_args(kind), kind):
        if isinstance(arm, type) and dataclasses.is_dataclass(arm):
            return arm
    return None


def default_of(field: dataclasses.Field) -> Any:
    """A field's default; MISSING where it has none."""
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


@functools.cache
def defaults(cls: type) -> Mapping[str, Any]:
    """Field -> default of a dataclass."""
    return {field.name: default_of(field) for field in dataclasses.fields(cls)}


@functools.cache
def _reader(kind: Any) -> Callable[..., Any]:
    config = ConfigDict(
        coerce_numbers_to_str=True, allow_inf_nan=False, arbitrary_types_allowed=True
    )
    return TypeAdapter(kind, config=config).validate_python


def _added(kind: Any) -> tuple[Any, ...]:
    """What `Annotated` adds to a type."""
    return getattr(kind, "__metadata__", ())


def _plain(kind: Any) -> Any:
    return kind.__origin__ if _added(kind) else kind


def _text(value: Any) -> Any:
    """Numbers and flags as texts, which `name=3` gives."""
    return spelled(value) if isinstance(value, bool | int | float) else value


def _bare(kind: Any) -> type:
    """`int | None` -> int; what is no class -> object."""
    named = [_plain(arm) for arm in typing.get_args(kind) if arm is not NoneType] or [kind]
    return named[0] if isinstance(named[0], type) else object


def _values(kind: Any) -> tuple[str, ...]:
    """The values of an enumeration, or of a Literal."""
    names: list[str] = []
    for arm in (kind, *typing.get_args(kind)):
        if typing.get_origin(arm) is typing.Literal:
            names += typing.get_args(arm)
        if isinstance(arm, type) and issubclass(arm, Enum):
            names += arm.__members__
    return tuple(dict.fromkeys(names))


def spelled(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(spelled, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{spelled(v)}" for k, v in value.items()) + "}"
    if isinstance(value, bool | NoneType):
        return {True: "true", False: "false", None: "null"}[value]
    return value.name if isinstance(value, Enum) else str(value)


@functools.cache
def meanings(cls: type) -> Mapping[str, str]:
    """Field -> its meaning, by the "Attributes:" of the class and of those that it extends.

    >>> from lutlab.base.specs import ModelSpec
    >>> meanings(ModelSpec)["name"]
    'name of the model in tables.'
    """
    by_field: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(vars(base).get("__doc__") or "")
        _, _, section = text.partition("Attributes:\n")
        section = section.partition("\n\n")[0]
        for names, about in re.findall(r"^ {4}(\w[\w, ]*): ((?:.|\n {8})*)", section, re.MULTILINE):
            by_field |= dict.fromkeys(names.split(", "), " ".join(about.split()))
    return by_field
