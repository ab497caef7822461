"""Groups of the command line and their choices, as `model=opt-125m`: presets, methods, artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from lutlab import registry, sources
from lutlab.errors import LutlabError
from lutlab.experiment.artifact.catalog import artifact_groups, artifacts
from lutlab.experiment.artifact.yaml_file import read_yaml


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
        LutlabError: as read_yaml; or a file is empty.
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
