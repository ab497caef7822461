"""The page of `--help`: examples, the choices of every group, and every key with its meaning, values and default.

All of it is read where it is decided: conf/config.yaml, the folders of presets, and the classes (fields.py).
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from omegaconf import OmegaConf

from lutlab import registry, sources
from lutlab.experiment.row.row import choices, default_choice, evaluator_keys, method_keys, row_keys
from lutlab.fields import MISSING, Key, spelled

_WIDEST = 120


def page(config_dirs: Sequence[Path] = ()) -> str:
    """The whole page, as wide as the terminal."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    header = OmegaConf.load(sources.folder("conf") / "config.yaml").hydra.help.header
    found = choices(config_dirs)
    lines = [header, "== Choices: <group>=<choice> =="]
    lines += [_wrapped(f"{group}: ", ", ".join(names), width) for group, names in _by_folder(found)]
    lines += [
        "",
        "== Keys: <key>=<value>, here with the value they have unless a preset sets another ==",
    ]
    lines += _listed(row_keys().values(), width)
    for name, cls in registry.classes("method").items():
        chosen = " (unless you choose another)" if name == default_choice("method") else ""
        lines += ["", *textwrap.wrap(f"method={name}{chosen}: {_first_line(cls)}", width)]
        lines += _listed(method_keys(name).values(), width)
    lines += ["", "== Evaluators: evaluate=[<name>, <name>:<text>] =="]
    keys = evaluator_keys()
    for name, cls in registry.classes("evaluator").items():
        lines += textwrap.wrap(f"{name}: {_first_line(cls)}", width, subsequent_indent="    ")
        own = (key for key in keys.values() if key.name.startswith(f"evaluator.{name}."))
        lines += _listed(own, width)
    return "\n".join([*lines, "", "Hydra's own options: --hydra-help"])


def _by_folder(found: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    """(group, choices), those in a folder of the group apart: exp/nuqmm: all, table3."""
    rows: dict[str, list[str]] = {}
    for group, names in found.items():
        for name in names:
            folder, slash, leaf = name.rpartition("/")
            rows.setdefault(f"{group}/{folder}" if slash else group, []).append(leaf)
    return sorted((group, sorted(names)) for group, names in rows.items())


def _wrapped(label: str, text: str, width: int) -> str:
    return textwrap.fill(label + text, width, subsequent_indent="    ", break_on_hyphens=False)


def _listed(keys: Iterable[Key], width: int) -> list[str]:
    """Each key with its value, its meaning, and the values that there are."""
    lines = []
    for key in keys:
        values = f" [{' | '.join(key.values)}]" if key.values else ""
        known = key.default not in (MISSING, "") and not isinstance(key.default, dict)
        label = f"  {key.name}={spelled(key.default) if known else ''}"
        text = textwrap.wrap(key.about + values, width - 34) or [""]
        first = f"{label:<33} {text[0]}" if len(label) < 34 else f"{label}\n{'':34}{text[0]}"
        lines += [first, *(f"{'':34}{more}" for more in text[1:])]
    return lines


def _first_line(cls: type) -> str:
    """The first line of a class' module, which says what it is."""
    module = sys.modules[cls.__module__]
    return (module.__doc__ or "").strip().partition("\n")[0]
