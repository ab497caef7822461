"""Groups of the command line and their choices, as `model=opt-125m`: presets, methods, artifacts; and Hydra's copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

from lutlab import registry, sources
from lutlab.errors import LutlabError
from lutlab.experiment.artifact.catalog import artifact_groups, artifacts, long_name
from lutlab.experiment.artifact.yaml_file import read_yaml
from lutlab.experiment.row.keys import default_of, nested
from lutlab.experiment.row.row import Row


def choices(config_dirs: Sequence[Path] = ()) -> dict[str, list[str]]:
    """Group -> its choices: the presets of conf/ and other folders, the methods, the artifacts."""
    found: dict[str, list[str]] = {}
    for folder in (sources.folder("conf"), *config_dirs):
        for path in sorted(folder.glob("*/**/*.yaml")):
            group, _, name = path.relative_to(folder).with_suffix("").as_posix().partition("/")
            found.setdefault(group, []).append(name)
    found["method"] = list(registry.classes("method"))
    found["exp"] = [*artifacts(), *artifact_groups()]
    return dict(sorted(found.items()))


def check_presets(config_dirs: Sequence[Path] = ()) -> None:
    """Read the user's own presets, of whose damage Hydra's message would not always name the file.

    Raises:
        LutlabError: a file cannot be read, is no UTF-8 or no YAML, or is empty.
    """
    groups = [*choices(), "local", "hydra"]
    own = [folder / group for folder in config_dirs for group in groups]  # and no other folders
    for folder in (sources.folder("conf") / "local", *own):
        for path in sorted(folder.glob("**/*.yaml")):
            read_yaml(path)
            if not path.stat().st_size:
                raise LutlabError(
                    f"{path} is empty: a preset sets a key or more; restore or remove it"
                )


def default_choice(group: str) -> str:
    """The choice that conf/config.yaml makes in a group."""
    defaults = OmegaConf.load(sources.folder("conf") / "config.yaml").defaults
    return next(item[group] for item in defaults if not isinstance(item, str) and group in item)


def register_choices() -> None:
    """Tell Hydra the keys, the methods and the artifacts; imports neither torch nor any YAML."""
    store = ConfigStore.instance()
    evaluators = {name: _defaults(cls) for name, cls in registry.classes("evaluator").items()}
    keys = _defaults(Row) | {"method": MISSING, "evaluator": evaluators}
    del keys["options"]
    store.store(name="schema", node=keys)
    for name, cls in registry.classes("method").items():
        store.store(group="method", name=name, node={"name": name} | _defaults(cls))
    choices = {name: long_name(path) for name, path in artifacts().items()}
    choices |= {name: name for name in artifact_groups()}
    for name, artifact in choices.items():
        group, _, leaf = f"exp/{name}".rpartition("/")
        store.store(group=group, name=leaf, node={"artifact": artifact}, package="_global_")


def _defaults(cls: type) -> dict[str, Any]:
    """Field -> default in OmegaConf's types; fields of a dataclass within it as a mapping."""
    found = {}
    for one in dataclasses.fields(cls):
        inner, value = nested(cls, one), default_of(one)
        if inner:
            value = _defaults(inner)
        found[one.name] = str(value) if isinstance(value, Path | Enum) else value
    return found
