"""The words of a command that runs one model: `lutlab <command> [model] [<word>=<value>] [<key of a sweep>=<value>]`.

Each command has a table of words of its own; all other words are keys of a sweep, and the first one without a = is the
model, as after model=.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.experiment.run.ending import ended

# word -> value where it is not given, what it means; a tuple collects every value that is given
Words = Mapping[str, tuple[Any, str]]
# Keys that say what a table measures, and nothing to a command that runs one model.
OF_TABLES = ("exp", "rows", "evaluate", "mode", "name", "baseline", "alone", "stream")


def command(
    name: str,
    about: str,
    words: Words,
    run: Callable[[dict[str, Any], list[str]], int],
    arguments: Sequence[str],
) -> int:
    """Run a command; returns its exit code.

    Args:
        name: name of the command.
        about: text of its --help, before its words.
        words: the command's own words.
        run: function of the values of its words and of all other words.
        arguments: the words that were typed behind its name.
    """
    parser = argparse.ArgumentParser(
        prog=f"lutlab {name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=page(words),
    )
    parser.add_argument("words", nargs="*", metavar="<word>=<value>")
    typed = parser.parse_args(arguments).words
    return ended(lambda: run(*split(typed, words)))


def page(words: Words) -> str:
    """A line for each word: its default and its meaning."""
    labels = {name: f"  {name}={_spelled(default)}" for name, (default, _) in words.items()}
    width = max(map(len, labels.values()))
    return "\n".join(f"{labels[name]:<{width}}  {about}" for name, (_, about) in words.items())


def _spelled(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return "" if default == () else str(default)


def split(arguments: Sequence[str], words: Words) -> tuple[dict[str, Any], list[str]]:
    """Values of the command's own words, and all other arguments, the model among them.

    Raises:
        LutlabError: a word of its own with a value of another kind, or given twice.
    """
    values: dict[str, Any] = {}
    rest: list[str] = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals and not any(line.startswith("model=") for line in rest):
            rest.append(f"model={argument}")
        elif key not in words:
            rest.append(argument)
        elif isinstance(default := words[key][0], tuple):
            values[key] = (*values.get(key, ()), value)
        elif key in values:
            raise LutlabError(f"{key}= is given twice: once is enough")
        else:
            values[key] = _read(argument, key, value, default)
    return {name: default for name, (default, _) in words.items()} | values, rest


def _read(argument: str, key: str, value: str, default: Any) -> Any:
    """A value of the default's type."""
    if isinstance(default, bool):
        if value not in ("true", "false"):
            raise LutlabError(f"{argument}: give {key}=true or {key}=false")
        return value == "true"
    try:
        return type(default)(value)
    except ValueError as error:
        raise LutlabError(f"{argument}: give a number, as {key}={default}") from error
