"""Every key of the command line, read from the field of the dataclass that it sets.

    Row (row.py) and its specs      method.<field>: of the method      evaluator.<name>.<field>: of the evaluator

A field's annotation has the type; in `Annotated`, a limit (limits.py) and a tuple of the values that --help shows. Its
meaning is the line that "Attributes" of the class has for it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any

from omegaconf import MISSING
from pydantic import ConfigDict, TypeAdapter, ValidationError

from lutlab import registry
from lutlab.errors import LutlabError, nearest
from lutlab.groups import whole
from lutlab.limits import at_least_one

_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a text",
}


@dataclass(frozen=True)
class Key:
    """One key of the command line.

    Attributes:
        name: dotted, as the command line has it.
        type: type of its value, without what `Annotated` adds.
        default: the class's own; MISSING where a preset sets it.
        about: its meaning; empty where the class does not say it.
        values: every value there is, where they are few.
        limit: (name, value) -> None or LutlabError; of one value that has the type.
    """

    name: str
    type: Any
    default: Any
    about: str
    values: tuple[str, ...] = ()
    limit: Callable[[str, Any], None] | None = None

    @property
    def open(self) -> bool:
        """Whether it is a mapping with keys of the user's, as knobs.luts."""
        return typing.get_origin(self.type) is dict

    @property
    def many(self) -> bool:
        """Whether its value is a list."""
        return typing.get_origin(self.type) is tuple

    @property
    def _kind(self) -> type:
        return _bare(self.type)

    def read(self, value: Any) -> Any:
        """The value of the key's type that a command line or a preset gives.

        Raises:
            LutlabError: it is of another type, none of the values, or out of the limit.
        """
        if value == "" and self.default != "":
            raise LutlabError(
                f"{self._shown(value)}: the value is missing: give {self._expected(value)}"
            )
        text = self._kind in (str, Path) or (self.values and not self.many)
        number = isinstance(value, int | float)
        if number and self._kind in (int, float) and isinstance(value, bool):
            raise LutlabError(f"{self._shown(value)}: give {self._expected(value)}")
        if number and self._kind is bool and value not in (0, 1):
            raise LutlabError(f"{self._shown(value)}: give {self._expected(value)}")
        try:
            found = _reader(self.type)(_text(value) if text else value)
        except ValidationError as error:
            if self.values and not self.many and not isinstance(value, list):
                raise LutlabError(
                    f"unknown {self.name} '{spelled(value)}': {nearest(spelled(value), self.values)}"
                ) from error
            raise LutlabError(f"{self._shown(value)}: give {self._expected(value)}") from error
        if isinstance(found, float) and int in typing.get_args(self.type):
            found = whole(found)
        if self.limit and found is not None:
            self.limit(self.name, found)
        return found

    def _shown(self, value: Any) -> str:
        return f"{self.name}={spelled(value)}"

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
        return f"{_NAMES.get(self._kind, 'a value')}{null}{example}"


def keys_of(cls: type, prefix: str = "") -> Iterator[Key]:
    """The keys that set the fields of a dataclass, those of a dataclass within it too."""
    said = meanings(cls)
    for field in dataclasses.fields(cls):
        name, kind = f"{prefix}{field.name}", annotation(cls, field)
        if inner := nested(cls, field):
            yield from keys_of(inner, f"{name}.")
            continue
        more = getattr(kind, "__metadata__", ())
        kind = kind.__origin__ if more else kind
        values = next((one for one in more if isinstance(one, tuple)), _values(kind))
        limit = next((one for one in more if inspect.isfunction(one)), None)
        yield Key(name, kind, default_of(field), said.get(field.name, ""), values, limit)


def annotation(cls: type, field: dataclasses.Field) -> Any:
    """A field's annotation as an object. Others of its class, of class variables, only type checkers can read."""
    only = SimpleNamespace(__annotations__={"it": field.type})
    return typing.get_type_hints(only, vars(sys.modules[cls.__module__]), include_extras=True)["it"]


@functools.cache
def method_keys(name: str) -> Mapping[str, Key]:
    """Keys of a registered method."""
    return {key.name: key for key in keys_of(registry.lookup("method", name), "method.")}


def evaluator_keys() -> dict[str, Key]:
    """Keys of all registered evaluators; whole numbers of theirs are counts."""
    found = {}
    for name, cls in registry.classes("evaluator").items():
        for key in keys_of(cls, f"evaluator.{name}."):
            limit = key.limit or (at_least_one if _bare(key.type) is int else None)
            found[key.name] = dataclasses.replace(key, limit=limit)
    return found


def nested(cls: type, field: dataclasses.Field) -> type | None:
    """The dataclass that a field holds, as `Tuning | None` does; None where it holds a value."""
    kind = annotation(cls, field)
    found = [arm for arm in (*typing.get_args(kind), kind) if dataclasses.is_dataclass(arm)]
    return found[0] if found else None


def default_of(field: dataclasses.Field) -> Any:
    """A field's default; MISSING where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return MISSING if field.default is dataclasses.MISSING else field.default


@functools.cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    return TypeAdapter(kind, config=ConfigDict(coerce_numbers_to_str=True)).validate_python


def _text(value: Any) -> Any:
    """Numbers and flags as texts, which `name=3` gives."""
    return spelled(value) if isinstance(value, bool | int | float) else value


def _bare(kind: Any) -> type:
    """`int | None` -> int; what is no class -> object."""
    named = [arm for arm in typing.get_args(kind) if arm is not NoneType] or [kind]
    return named[0] if isinstance(named[0], type) else object


def _values(kind: Any) -> tuple[str, ...]:
    """The values of an enumeration, or of a Literal."""
    for arm in (kind, *typing.get_args(kind)):
        if typing.get_origin(arm) is typing.Literal:
            return typing.get_args(arm)
        if isinstance(arm, type) and issubclass(arm, Enum):
            return tuple(arm.__members__)
    return ()


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

    >>> from lutlab.experiment.row.row import Data
    >>> meanings(Data)["source"]
    'source of texts.'
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(vars(base).get("__doc__") or "")
        _, _, section = text.partition("Attributes:\n")
        section = section.partition("\n\n")[0]
        for names, about in re.findall(r"^ {4}(\w[\w, ]*): ((?:.|\n {8})*)", section, re.MULTILINE):
            found |= dict.fromkeys(names.split(", "), " ".join(about.split()))
    return found
