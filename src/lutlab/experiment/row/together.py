"""Mistakes of values beside each other, each of which is right by itself: a line each, with what to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lutlab import registry
from lutlab.data.protocols import KINDS, protocol
from lutlab.errors import LutlabError, nearest
from lutlab.evaluators.contract import Evaluator
from lutlab.experiment.artifact.columns import free_columns
from lutlab.experiment.row.choices import default_choice
from lutlab.experiment.row.keys import Key, method_keys, spelled
from lutlab.experiment.row.row import Mode, Row
from lutlab.experiment.row.spelling import is_one_of
from lutlab.groups import whole

# of a whole call, which has one value of them whatever its rows are
_OF_A_CALL = ("mode", "results", "name", "baseline", "alone", "logger", "dashboard")
# the keys that one mode reads -> that mode
_OF_A_MODE = {"dashboard": Mode.dashboard, "logger.records": Mode.track}
_OF_THE_PAGE = ("mode", "results", "dashboard", "logger", "plugins", "experiments", "hydra")

# groups of keys that are read beside one of some others only
_OWNERS = {"candidates": ("budget",), "tuning": ("tuning.steps", "tuning.block_steps")}


@dataclass(frozen=True)
class Given:
    """Values of a command line that are right by themselves.

    Attributes:
        values: key or group -> its values that are right by themselves, several where it is swept.
        keys: all that exist, of every method.
        of_methods: those of one of several swept methods, `method.bcq.offset`.
        presets: whether a preset of the user's may set what the line does not.
    """

    values: Mapping[str, Sequence[Any]]
    keys: Mapping[str, Key]
    of_methods: Collection[str]
    presets: bool

    def mistakes(self) -> list[str]:
        """Mistakes of the line, one text each."""
        said = [*self._of_a_table(), *self._of_the_call(), *self._without_use(), *self._texts()]
        said += self._methods()
        for name, cls in registry.classes("evaluator").items():
            said += refusals(cls, self._options(f"evaluator.{name}."))
        return said

    def _of_a_table(self) -> Iterator[str]:
        given = self.values
        if "exp" in given and "evaluate" in given:
            yield "evaluate= chooses the columns of a sweep, those of +exp are its table's: drop one of them"
        for key in sorted(given.keys() & self.of_methods if "exp" in given else ()):
            yield f"{key}= is of a sweep of your own: drop it, or +exp"
        if "rows" in given and "exp" not in given:
            yield "rows= chooses rows of a table: name it, as +exp=table4, or drop rows"

    def _of_the_call(self) -> Iterator[str]:
        for key, values in self.values.items():
            if len(values) > 1 and is_one_of(key, _OF_A_CALL):
                yield f"{key}={','.join(map(spelled, values))}: it is of the whole call: give one value"

    def _without_use(self) -> Iterator[str]:
        """Keys that nothing reads beside what else is given."""
        given = self.values
        (mode, *_) = given.get("mode", [Mode.run])
        for key in given:
            reader = next((m for name, m in _OF_A_MODE.items() if is_one_of(key, (name,))), mode)
            if reader is not mode:
                yield f"{key}= is read by mode={reader}: drop it, or set that mode"
            elif mode is Mode.dashboard and not is_one_of(key.replace("/", "."), _OF_THE_PAGE):
                yield f"{key}= says nothing to mode=dashboard, which draws all that was measured: drop it"
        if any("*" in patterns for patterns in given.get("skip", ())):
            yield "skip=[*] keeps every layer in full precision: write method=none"
        if "exp" in given or self.presets:
            return  # the rows, or the user's own preset, may set what these belong to
        for group, owners in _OWNERS.items():
            named = [key for key in given if is_one_of(key, (group,))]
            if named and not any(owner in given for owner in owners):
                owner = "= or ".join(owners)
                yield f"{named[0]}= is read with {owner}= only: give it too, or drop {named[0]}"

    # ---- texts ----

    def _texts(self) -> list[str]:
        said = []
        for items in self.values.get("evaluate", ()):
            if not items:
                said.append("evaluate=[]: name what to measure, as evaluate=[ppl:wikitext2]")
            for item in items:
                said += _refused(lambda name: free_columns([name]), [item]) or _text_of(item)
        if "data.stand_in" not in self.values:
            said += _refused(protocol, self.values.get("calibration.text", ()))
        return said

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
            yield from refusals(cls, {o: v for o, v in options.items() if o in known})
            if "budget" not in self.values and cls.quantizes:
                method, asked = cls(), map(whole, self.values.get("q", ()))
                yield from _refused(lambda q, m=method: m.check_width(q, Row.g), asked)

    def _options(self, prefix: str) -> dict[str, Sequence[Any]]:
        found = {k: v for k, v in self.values.items() if k.startswith(prefix) and k in self.keys}
        return {key.removeprefix(prefix): values for key, values in found.items()}


def _text_of(item: str) -> list[str]:
    """Mistakes of an evaluation's text, as in `ppl:wikitext2`, for an evaluator that exists."""
    asked, _, text = item.partition(":")
    name = asked.partition(".")[0]
    evaluator: type[Evaluator] = registry.lookup("evaluator", name)
    if not evaluator.reads:
        return [f"{item}: {name} reads no text: write {asked}"] if text else []
    wanted = " or ".join(KINDS[kind] for kind in evaluator.reads)
    if not text:
        return [f"{item}: {name} reads {wanted}: name it, as {asked}:<text>"]
    if evaluator.reads_tasks:  # tasks are lm-eval's to know
        return []
    if unknown := _refused(protocol, [text]):
        return unknown
    kind = protocol(text).kind
    return (
        []
        if kind in evaluator.reads
        else [f"{item}: {name} reads {wanted}, and {text} is {KINDS[kind]}"]
    )


def _refused(check: Callable[[Any], object], values: Iterable[Any]) -> list[str]:
    said = []
    for value in values:
        try:
            check(value)
        except LutlabError as error:
            said.append(str(error))
    return said


def refusals(cls: type, options: Mapping[str, Sequence[Any]]) -> list[str]:
    """Refusals of a class of its own options, each with one or several values."""
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
