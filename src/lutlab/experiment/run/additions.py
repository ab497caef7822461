"""A user's additions from outside the package: modules (`plugins=`), artifacts (`experiments=<folder>`) and texts.

    plugins=my_methods,my_metrics experiments=../my-tables data.text.mine=notes.txt

What they register are Hydra choices, so they are read from the command line before Hydra composes anything. They are
fields of the configuration too: a job's overrides carry them to a launcher's worker, which adds them once more.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.data import user
from lutlab.experiment.artifact import catalog

_MOST = 100  # names of one key
_TEXTS = "data.text."


def add(plugins: Iterable[str], experiments: str | None) -> None:
    """Import a user's modules and add a user's artifacts; what is known already stays as it is.

    Modules are looked for where Python looks, then in the current directory.

    Raises:
        LutlabError: a module cannot be imported, the folder is missing or names an artifact that exists.
    """
    for name in plugins:
        _import(name)
    if experiments is not None:
        catalog.add_folder(Path(experiments))


def read(arguments: Sequence[str]) -> list[str]:
    """Add what a command line names; returns its arguments with `plugins=a,b` as the list `plugins=[a,b]`.

    Hydra would take values with commas between them for a sweep.

    Raises:
        LutlabError: what `add` refuses, or `experiments=` names several folders.
        hydra.errors.OverrideParseException: a value that Hydra's grammar cannot read.
    """
    names: dict[str, list[str]] = {"plugins": [], "experiments": []}
    line = []
    for argument in arguments:
        key = argument.partition("=")[0].lstrip("+")
        if key.startswith(_TEXTS):
            user.declare(key.removeprefix(_TEXTS))
        if key in names:
            names[key] = _values(argument)
        line.append(f"plugins=[{','.join(names[key])}]" if key == "plugins" else argument)
    if len(names["experiments"]) > 1:
        raise LutlabError(f"experiments={','.join(names['experiments'])}: give one folder")
    add(names["plugins"], next(iter(names["experiments"]), None))
    return line


def _values(argument: str) -> list[str]:
    """`plugins=a`, `plugins=a,b` and `plugins=[a,b]` -> the names; `plugins=null` -> none."""
    override = OverridesParser.create().parse_override(argument)
    if override.is_sweep_override():
        names = list(itertools.islice(override.sweep_string_iterator(), _MOST + 1))
        if len(names) > _MOST:
            raise LutlabError(
                f"{argument} names more than {_MOST} of them: name those that are meant"
            )
        return names
    value = override.value()
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _import(name: str) -> None:
    """Import after lutlab's own classes, so that a name taken twice is the user's to change."""
    for group in registry.PACKAGES:
        registry.classes(group)
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # for good: imports of a plugin's later, and workers, need it too
    try:
        importlib.import_module(name)
    except Exception as error:
        raise LutlabError(
            f"plugins={name} cannot be imported: {type(error).__name__}: {error}{_place(error)}; a plugin is a module "
            "in the current directory, on PYTHONPATH or installed"
        ) from error


def _place(error: Exception) -> str:
    """` (<file>, line <n>)` in the user's code, where an import failed; empty where none of it ran."""
    stack = traceback.extract_tb(error.__traceback__)[2:]  # after ours and importlib's
    frames = [frame for frame in stack if not frame.filename.startswith("<frozen")]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
