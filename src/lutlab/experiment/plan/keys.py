"""Every key of the command line with its type, default, values and meaning, read from the class whose field it is.

    Config (schema.py)      method.<field>: of the method's class      evaluator.<name>.<field>: of the evaluator's

Its meaning is what the class says of it under "Attributes".
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import NoneType
from typing import Any

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lutlab import registry
from lutlab.errors import LutlabError, nearest
from lutlab.experiment.plan.schema import Config, schema_of
from lutlab.experiment.plan.setting import at_least_one

# Groups, keys of other classes, and what lutlab sets itself.
_ELSEWHERE = ("method", "scale", "evaluator", "artifact", "job")
_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclass(frozen=True)
class Key:
    """One key.

    Attributes:
        name: dotted, as the command line has it.
        type: of its value, resolved.
        default: the class's own; MISSING where a preset sets it.
        about: its meaning; empty where the class does not say it.
        values: every value there is, where they are few.
        check: (name, value) -> None or LutlabError; of one value that has the type.
    """

    name: str
    type: Any
    default: Any
    about: str
    values: tuple[str, ...] = ()
    check: Callable[[str, Any], None] | None = None

    @property
    def open(self) -> bool:
        """Whether it is a mapping with keys of the user's, as knobs.luts."""
        return typing.get_origin(self.type) is dict

    @property
    def many(self) -> bool:
        """Whether its value is a list."""
        return typing.get_origin(self.type) is list

    def convert(self, value: Any) -> Any:
        """The value as Hydra would have it.

        Raises:
            LutlabError: it is of another type, or none of the values.
        """
        shown = f"{self.name}={spelled(value)}"
        if value == "" and self.default != "":
            raise LutlabError(f"{shown}: the value is missing: give {self._expected(value)}")
        if _bare(self.type) is bool and isinstance(value, int | float) and value not in (0, 1):
            # OmegaConf takes any other number for true.
            raise LutlabError(f"{shown}: give {self._expected(value)}")
        holder = dataclasses.make_dataclass("Holder", [("value", self.type, MISSING)])
        config = OmegaConf.structured(holder)
        try:
            config.value = value
        except OmegaConfBaseException as error:
            if issubclass(_bare(self.type), Enum):
                raise LutlabError(
                    f"unknown {self.name} '{spelled(value)}': {nearest(spelled(value), self.values)}"
                ) from error
            raise LutlabError(f"{shown}: give {self._expected(value)}") from error
        return value if self.many or self.open else config.value

    def _expected(self, value: Any) -> str:
        kind = _bare(self.type)
        null = ", or null" if NoneType in typing.get_args(self.type) else ""
        if self.many:
            items = (spelled(value) or "…").strip("[]")
            if isinstance(value, list):
                (item,) = typing.get_args(self.type)
                items = spelled(self.default or []).strip("[]") or "…"
                return f"a list of which each is {_NAMES.get(item, 'a value')}, as {self.name}=[{items}]"
            return f"a list{null}, as {self.name}=[{items}]"
        if isinstance(value, list):
            items = spelled(value).strip("[]")
            return f"one value{null}; a sweep over several has no brackets: {self.name}={items}"
        if self.open:
            return f"a mapping, as {self.name}.<name>=<value>"
        has_default = self.default not in (MISSING, None, "") and kind is not bool
        example = f", as {self.name}={spelled(self.default)}" if has_default else ""
        return f"{_NAMES.get(kind, 'a value')}{null}{example}"


def config_keys() -> dict[str, Key]:
    """The keys that every command line may have, those of methods and evaluators left out."""
    found = {key.name: key for key in _keys("", Config)}
    return {name: key for name, key in found.items() if name not in _ELSEWHERE}


def method_keys(name: str) -> dict[str, Key]:
    """Keys of a registered method."""
    return {key.name: key for key in _registered("method.", registry.lookup("method", name))}


def evaluator_keys() -> dict[str, Key]:
    """Keys of all registered evaluators; whole numbers of theirs are counts."""
    found = {}
    for name, cls in registry.classes("evaluator").items():
        for key in _registered(f"evaluator.{name}.", cls):
            check = at_least_one if _bare(key.type) is int else None
            found[key.name] = dataclasses.replace(key, check=check)
    return found


def _registered(prefix: str, cls: type) -> Iterator[Key]:
    """Keys of a class whose other annotations, of class variables, only type checkers can read."""
    said = meanings(cls)
    for key in _keys(prefix, schema_of(cls)):
        yield dataclasses.replace(key, about=said.get(key.name.removeprefix(prefix), ""))


def _keys(prefix: str, cls: type) -> Iterator[Key]:
    hints, said = typing.get_type_hints(cls), meanings(cls)
    for field in dataclasses.fields(cls):
        name, kind = f"{prefix}{field.name}", hints[field.name]
        if dataclasses.is_dataclass(kind):
            yield from _keys(f"{name}.", kind)
            continue
        values = field.metadata.get("values", ())
        if issubclass(_bare(kind), Enum):
            values = tuple(kind.__members__)
        about, check = said.get(field.name, ""), field.metadata.get("check")
        yield Key(name, kind, _default(field), about, values, check)


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _bare(kind: Any) -> type:
    """`int | None` -> int; what is no class -> object."""
    named = [arm for arm in typing.get_args(kind) if arm is not NoneType] or [kind]
    return named[0] if isinstance(named[0], type) else object


def spelled(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(spelled, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{spelled(v)}" for k, v in value.items()) + "}"
    if isinstance(value, bool | NoneType):
        return {True: "true", False: "false", None: "null"}[value]
    return value.name if isinstance(value, Enum) else str(value)


def meanings(cls: type) -> dict[str, str]:
    """Field -> its meaning, by the "Attributes:" of the class and of those that it extends.

    >>> from lutlab.experiment.plan.schema import DataConfig
    >>> meanings(DataConfig)["source"]
    'where texts come from.'
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(vars(base).get("__doc__") or "")
        _, _, section = text.partition("Attributes:\n")
        section = section.partition("\n\n")[0]
        for names, about in re.findall(r"^ {4}(\w[\w, ]*): ((?:.|\n {8})*)", section, re.MULTILINE):
            found |= dict.fromkeys(names.split(", "), " ".join(about.split()))
    return found
