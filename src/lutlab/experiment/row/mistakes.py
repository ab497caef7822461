"""All mistakes of a command line at once, before Hydra composes anything: a line each, with what to do.

    method.varient=x q=three   ->   2 mistakes
                                      method.varient: … did you mean 'method.variant'? …
                                      q=three: give a number, as q=4

First what is wrong with one value, then with values beside each other, each of which is right by itself. What they mean
together with files, as a text that a folder lacks, is refused later, by run.py and resolve.py.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from lutlab.base import registry
from lutlab.base.errors import OTHER_NAMES, LutlabError, Mistakes, nearest
from lutlab.base.fields import Key, spelled
from lutlab.base.groups import whole
from lutlab.data.protocols import KINDS, protocol
from lutlab.evaluators.contract import Declared
from lutlab.experiment.artifact.columns import free_columns
from lutlab.experiment.row.located import located
from lutlab.experiment.row.row import (
    Mode,
    Row,
    choices,
    default_choice,
    evaluator_keys,
    method_keys,
    row_keys,
)
from lutlab.experiment.row.spelling import is_one_of

_MOST = 1000  # values of one swept key
# Control characters, and bytes that were no UTF-8.
_UNREAD = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_HYDRAS = ("hydra", "local")  # keys and groups that Hydra and a user's own preset decide
_OF_RAY = ("hydra.launcher.ray.init.", "hydra.launcher.ray.remote.")  # Ray knows their keys
_INTERNAL = {
    "artifact": "+exp=<artifact> sets it",
    "job": "lutlab sets it itself",
    "method.name": "write method=<name>",
}

# of a whole call, which has one value of them whatever its rows are
_OF_A_CALL = (
    "mode", "results", "name", "baseline", "alone", "logger", "dashboard", "rows", "scale", "stream", "evaluate",
    "data", "plugins", "experiments",
)  # fmt: skip
# the keys that one mode reads -> that mode
_OF_A_MODE = {"dashboard": Mode.dashboard, "logger.records": Mode.track}
_OF_THE_PAGE = ("mode", "results", "dashboard", "logger", "plugins", "experiments", "hydra")

# groups of keys that are read beside one of some others only
_OWNERS = {"candidates": ("budget",), "tuning": ("tuning.steps", "tuning.block_steps")}


def read(
    arguments: Sequence[str], config_dirs: Sequence[Path] = (), words: Iterable[str] = ()
) -> list[str]:
    """Refuse a command line with all its mistakes; returns its overrides as Hydra wants them.

    A `+` is needed for none of lutlab's keys: `exp=table4`, `knobs.luts=4`, `+q=3` are all understood.

    Args:
        arguments: overrides, `<key>=<value>`, without Hydra's options.
        config_dirs: folders of presets beside conf/.
        words: words of a command of its own, which a misspelled key may have meant.

    Raises:
        Mistakes: all of them.
        LutlabError: the config.json of a model's folder is damaged.
    """
    groups = choices(config_dirs)
    arguments = located(arguments, groups["model"])
    line = _Line(groups, words)
    mistakes = [mistake for argument in arguments for mistake in line.read(argument)]
    line.presets |= bool(config_dirs)
    if mistakes := [*mistakes, *line.repeated(), *line.together()]:
        raise Mistakes(mistakes)
    return [line.for_hydra(argument) for argument in arguments]


class _Line:
    """One command line: its overrides, what is wrong with them, and what is right, by key or group.

    Args:
        groups: group -> its choices.
        words: words of the command itself.
    """

    def __init__(self, groups: Mapping[str, Sequence[str]], words: Iterable[str] = ()) -> None:
        self.groups, self.words = groups, set(words)
        self.values: dict[str, list[Any]] = {}  # several where it is swept
        self.overrides: list[Override] = []
        # Whether a user's own may set what the line does not.
        self.presets = "default" in groups.get("local", ())
        self.keys = row_keys() | evaluator_keys()
        self.of_methods: dict[str, Key] = {}  # of one of several swept methods, `method.bcq.offset`
        for name in registry.classes("method"):
            for key in method_keys(name).values():
                self.keys[key.name] = key.or_as(self.keys.get(key.name, key))
                longer = key.name.replace("method.", f"method.{name}.", 1)
                self.of_methods[longer] = dataclasses.replace(key, name=longer)
        self.opened = [name for name, key in self.keys.items() if key.open]

    # ---- one argument ----

    def read(self, argument: str) -> Iterator[str]:
        """Keep the values of one argument, or say what is wrong with it."""
        if _UNREAD.search(argument):
            yield f"{argument!a} has characters that are no text: give UTF-8 without control characters"
            return
        try:
            override = OverridesParser.create().parse_override(argument)
            values = list(itertools.islice(_values(override), _MOST + 1))
        except (HydraException, RecursionError):
            yield self._unreadable(argument)
            return
        key = override.key_or_group
        self.overrides.append(override)
        if key != "exp":
            self.values.pop(key, None)  # the last one is Hydra's
        if wrong := _of_no_value(override, values):
            yield f"{argument}: {wrong}"
        elif key.replace("/", ".").partition(".")[0] in _HYDRAS:
            yield from (f"{argument}: {wrong}" for wrong in _of_hydras(key, values))
            self.values[key] = values
        elif override.is_delete():
            yield f"{argument}: no key can be left out; give another value, as {key}=…"
        elif key in _INTERNAL:
            yield f"{argument}: {_INTERNAL[key]}"
        elif key in self.groups:
            yield from self._choice(key, values)
        elif override.is_sweep_override() and key in self.keys and self.keys[key].many:
            yield from self._value(key, ",".join(map(spelled, values)))  # no brackets: no list
        else:
            for value in values:
                yield from self._value(key, value)

    def _choice(self, group: str, values: Sequence[Any]) -> Iterator[str]:
        kind, known = "experiment" if group == "exp" else group, self.groups[group]
        for value in values:
            shown = spelled(value)
            if isinstance(value, dict):
                yield f"{group}={shown}: give one {kind}, and {group}.<key>=…"
            elif isinstance(value, list) and value:
                items = shown.strip("[]")
                yield f"{group}=[{items}]: give one {kind}; a sweep over several has no brackets: {group}={items}"
            elif value not in known and "hydra.searchpath" not in self.values:
                places = "; or the path of a folder or GGUF file, or owner/name of the hub"
                place = places if group == "model" else ""
                yield f"unknown {kind} '{shown}': {nearest(shown, known)}{place}"
            else:
                self.values.setdefault(group, []).append(value)

    def _value(self, name: str, value: Any) -> Iterator[str]:
        key = self.keys.get(name) or self.of_methods.get(name)
        if isinstance(value, dict) and any(k.startswith(f"{name}.") for k in self.keys):
            for inner, item in value.items():
                yield from self._value(f"{name}.{inner}", item)
        elif any(name.startswith(f"{opened}.") for opened in self.opened):
            return
        elif key is None:
            yield self._unknown(name)
        elif not (isinstance(value, str) and "${" in value):
            try:
                read_value = key.read(value)
            except LutlabError as error:
                yield str(error)
            else:
                self.values.setdefault(name, []).append(read_value)

    def _unknown(self, name: str) -> str:
        """The key that was most likely meant: by its whole name, or by its last part, which stands elsewhere."""
        leaf = name.rpartition(".")[2]
        if name in OTHER_NAMES:
            return f"no key '{name}': it is {OTHER_NAMES[name]} here"
        if inner := [key for key in self.keys if key.startswith(f"{name}.")]:
            return f"{name} has keys of its own, and no value: {nearest(name, inner)}"
        dotted = [key for key in self.keys if "." in key]
        whole_names = {key.lower(): key for key in (dotted if "." in name else self._top())}
        if close := difflib.get_close_matches(name.lower(), whole_names, n=1, cutoff=0.8):
            return f"no key '{name}': did you mean '{whole_names[close[0]]}'?"
        leaves = {key.rpartition(".")[2] for key in self.keys}
        if close := difflib.get_close_matches(leaf.lower(), leaves, n=1, cutoff=0.7):
            meant = [key for key in self.keys if key.rpartition(".")[2] == close[0]]
            return f"no key '{name}': did you mean {' or '.join(map(repr, meant[:3]))}?"
        parent = name.rpartition(".")[0]
        beside = [key for key in self.keys if parent and key.rpartition(".")[0] == parent]
        return f"no key '{name}': {nearest(name, beside or self._top())}"

    def _top(self) -> list[str]:
        """Keys and groups without a dot."""
        names = {key.partition(".")[0] for key in self.keys} | set(self.groups) | self.words
        return sorted(names - set(_INTERNAL) - set(_HYDRAS))

    def _unreadable(self, argument: str) -> str:
        key, equals, _ = argument.partition("=")
        bare, colon, rest = key.lstrip("+").partition(":")
        if equals:
            return (
                f"{argument} cannot be read: several values are a sweep, as q=2,3; a list has brackets, as "
                "rows=[a,b]; other characters go in quotes inside the argument, as \"skip=['*.fc2']\" or "
                "\"model.id='/a path (2)'\""
            )
        if colon:
            return f"{argument}: write {bare}={rest}"
        if bare in self.groups["exp"]:
            return f"{argument}: write +exp={bare}"
        if bare in Mode.__members__:
            return f"{argument}: write mode={bare}"
        if bare in self._top() or bare in self.keys:
            return f"{argument}: the value is missing: write {bare}=<value>, without blanks"
        return f"{argument}: write <key>=<value>, a value with blanks as \"model.id='/a path'\"; --help names all keys"

    def repeated(self) -> Iterator[str]:
        """Say which keys are given twice: of values the last is taken, with a warning; of sweeps that is no answer."""
        seen: dict[str, Override] = {}
        for override in self.overrides:
            key, earlier = override.key_or_group, seen.get(override.key_or_group)
            seen[key] = override
            if earlier is None or key == "exp":
                continue
            if earlier.is_sweep_override() or override.is_sweep_override():
                yield f"{key} is given twice, {earlier.input_line} and {override.input_line}: write one"
            elif earlier.value() != override.value():  # Hydra has set up no log yet
                used = f"{earlier.input_line} is not used: {override.input_line} stands behind it"
                print(f"lutlab: {used}", file=sys.stderr)

    def for_hydra(self, argument: str) -> str:
        """The argument with Hydra's `+` where Hydra wants it, and only there."""
        bare = argument.lstrip("+")
        key = bare.partition("=")[0]
        if key == "exp":
            return f"+{bare}"
        if key in self.of_methods and "," not in bare and "(" not in bare:
            # Hydra composes what is not swept before our sweeper sees which rows it is of
            return bare.replace("=", "=choice(", 1) + ")"
        of_ray = key.startswith(_OF_RAY) and self.values.get("hydra/launcher") == ["ray"]
        if of_ray or any(key == opened or key.startswith(f"{opened}.") for opened in self.opened):
            return f"++{bare}"
        ours = key in self.keys or key in self.groups or key in self.of_methods
        return bare if ours else argument

    # ---- values beside each other ----

    def together(self) -> Iterator[str]:
        """Mistakes of values beside each other, each of which is right by itself."""
        yield from self._of_a_table()
        yield from self._of_the_call()
        yield from self._without_use()
        yield from self._texts()
        yield from self._methods()
        for name, cls in registry.classes("evaluator").items():
            yield from _refusals(cls, self._options(f"evaluator.{name}."))

    def _of_a_table(self) -> Iterator[str]:
        values = self.values
        if "exp" in values and "evaluate" in values:
            yield "evaluate= chooses the columns of a sweep, those of +exp are its table's: drop one of them"
        for key in sorted(values.keys() & self.of_methods if "exp" in values else ()):
            yield f"{key}= is of a sweep of your own: drop it, or +exp"
        if "rows" in values and "exp" not in values:
            yield "rows= chooses rows of a table: name it, as +exp=table4, or drop rows"

    def _of_the_call(self) -> Iterator[str]:
        for key, values in self.values.items():
            if len(values) > 1 and is_one_of(key, _OF_A_CALL):
                yield f"{key}={','.join(map(spelled, values))}: it is of the whole call: give one value"

    def _without_use(self) -> Iterator[str]:
        """Keys that nothing reads beside what else is given."""
        values = self.values
        (mode, *_) = values.get("mode", [Mode.run])
        for key in values:
            reader = next((m for name, m in _OF_A_MODE.items() if is_one_of(key, (name,))), mode)
            if reader is not mode:
                yield f"{key}= is read by mode={reader}: drop it, or set that mode"
            elif mode is Mode.dashboard and not is_one_of(key.replace("/", "."), _OF_THE_PAGE):
                yield f"{key}= says nothing to mode=dashboard, which draws all that was measured: drop it"
        if any("*" in patterns for patterns in values.get("skip", ())):
            yield "skip=[*] keeps every layer in full precision: write method=none"
        if "exp" in values or self.presets:
            return  # the rows, or the user's own preset, may set what these belong to
        for group, owners in _OWNERS.items():
            named = [key for key in values if is_one_of(key, (group,))]
            if named and not any(owner in values for owner in owners):
                owner = "= or ".join(owners)
                yield f"{named[0]}= is read with {owner}= only: give it too, or drop {named[0]}"

    # ---- texts ----

    def _texts(self) -> Iterator[str]:
        for items in self.values.get("evaluate", ()):
            if not items:
                yield "evaluate=[]: name what to measure, as evaluate=[ppl:wikitext2]"
            yield from _refused(_check_evaluation, items)
        evaluated = {
            item.partition(":")[2] for items in self.values.get("evaluate", ()) for item in items
        }
        for text in self.values.get("calibration.text", ()):
            if text in evaluated:
                yield (
                    f"calibration.text={text} is evaluated, too, and calibrating on it would flatter the result: name "
                    "another text"
                )
        if "data.stand_in" not in self.values:
            yield from _refused(protocol, self.values.get("calibration.text", ()))

    # ---- methods ----

    def _methods(self) -> Iterator[str]:
        """Options that a chosen method has not, or not with these values, and q."""
        options = self._options("method.")
        named = self.values.get("method", [])
        if not named and ("exp" in self.values or self.presets):
            return  # the rows, or the user's own preset, say which
        for name in named or [default_choice("method")]:
            cls = registry.lookup("method", name)
            known = {key.removeprefix("method.") for key in method_keys(name)}
            for option in sorted(options.keys() - known):
                others = [
                    m for m in registry.classes("method") if f"method.{option}" in method_keys(m)
                ]
                alone = f"method.{others[0]}.{option}= sets it in the rows of {others[0]} alone"
                cure = alone if set(others) & set(named) else nearest(option, known)
                yield f"method.{option}: method={name} has no such option, {', '.join(others)} has: {cure}"
            yield from _refusals(cls, {o: v for o, v in options.items() if o in known})
            if "budget" not in self.values and cls.quantizes:
                check = functools.partial(cls().check_width, g=Row.g)
                yield from _refused(check, map(whole, self.values.get("q", ())))

    def _options(self, prefix: str) -> dict[str, Sequence[Any]]:
        fields = {k: v for k, v in self.values.items() if k.startswith(prefix) and k in self.keys}
        return {key.removeprefix(prefix): values for key, values in fields.items()}


def _of_no_value(override: Override, values: Sequence[Any]) -> str:
    """Mistake of an argument whatever its key is; empty where there is none."""
    if override.package is not None:
        return f"no key is put into another place by @: write {override.key_or_group}=<value>"
    if len(values) > _MOST:
        return f"it is a sweep over more than {_MOST:,} values of one key: take fewer at a time"
    if not override.is_sweep_override():
        return ""
    twice = [value for at, value in enumerate(values) if value in values[:at]]
    return f"{spelled(twice[0])} stands there twice: write it once" if twice else ""


def _of_hydras(key: str, values: Sequence[Any]) -> Iterator[str]:
    """Hydra's own settings that lutlab cannot run with."""
    if key == "hydra.mode":
        yield "every call is a sweep, of one row or more: drop it"
    elif key == "hydra/sweeper" and values != ["lutlab"]:
        yield "lutlab has a sweeper of its own, and rows run in no other: drop it"
    elif key.startswith("hydra.sweeper") or key.endswith("._target_"):
        yield "it would run other code in the place of lutlab's: drop it"
    elif key == "hydra.searchpath":
        paths = [str(path) for value in values if isinstance(value, list) for path in value]
        lacking = [path for path in paths if "://" not in path and not Path(path).is_dir()]
        yield from (f"there is no folder {path}" for path in lacking)
    elif key.startswith("hydra.launcher.ray") and not key.startswith(_OF_RAY):
        yield "write hydra.launcher.ray.init.<argument of ray.init>, or .remote.<option of a task>"
    elif key == "hydra.launcher.n_jobs" and 0 in values:
        yield "give a number of processes, or -1 for one a core"
    elif key in ("hydra", "local") or (None in values and "/" in key):
        yield f"it is no value: drop it, or name one of its choices, as {key}=<choice>"


def _values(override: Override) -> Iterator[Any]:
    """The value, or each of the values that it is swept over, as Hydra reads it."""
    if not override.is_sweep_override():
        yield override.value()
        return
    parser = OverridesParser.create()
    for text in override.sweep_string_iterator():
        yield parser.parse_override(f"{override.get_key_element()}={text}").value()


def _check_evaluation(item: str) -> None:
    """Raise LutlabError unless an evaluation, as `ppl:wikitext2`, names an evaluator and a text of its kinds."""
    free_columns([item])
    measured, _, text = item.partition(":")
    name = measured.partition(".")[0]
    evaluator: type[Declared] = registry.lookup("evaluator", name)
    kinds = " or ".join(KINDS[kind] for kind in evaluator.reads)
    if text and not kinds:
        raise LutlabError(f"{item}: {name} reads no text: write {measured}")
    if kinds and not text:
        raise LutlabError(f"{item}: {name} reads {kinds}: name it, as {measured}:<text>")
    if not text or evaluator.reads_tasks:  # tasks are lm-eval's to know
        return
    if (kind := protocol(text).kind) not in evaluator.reads:
        raise LutlabError(f"{item}: {name} reads {kinds}, and {text} is {KINDS[kind]}")


def _refused(check: Callable[[Any], object], values: Iterable[Any]) -> list[str]:
    messages = []
    for value in values:
        try:
            check(value)
        except LutlabError as error:
            messages.append(str(error))
    return messages


def _refusals(cls: type, options: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Refusals of a class of its own options, each with one or several values."""

    def refused(fields: Mapping[str, Any]) -> list[str]:
        return _refused(lambda _: cls(**fields), [None])

    first = left = {option: values[0] for option, values in options.items()}
    while messages := refused(left):  # it refuses one at a time: leave the culprit out, try again
        yield from messages
        without = [{k: v for k, v in left.items() if k != option} for option in left]
        left = next((rest for rest in without if refused(rest) != messages), {})
    for option, values in options.items():
        for value in values[1:]:
            yield from refused(first | {option: value})
