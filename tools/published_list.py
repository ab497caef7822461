"""results/published/list.yaml: the artifacts that we publish, and the variants of each as overrides of a command line.

    lut-gemm-v3/table4:
      embedded: ""
      embedded-data-first64-stories260K: data.root=../shared/data data.limit=64 model=folder …

A variant's name is that of the folder its report is written to (row/sweeping.variant).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from lutlab.base.errors import LutlabError, nearest
from lutlab.experiment.artifact.catalog import artifacts, program, short_name
from lutlab.experiment.artifact.yaml_file import read_yaml

PUBLISHED = Path("results") / "published"  # in the current folder, as all results
LIST = PUBLISHED / "list.yaml"


@dataclass(frozen=True)
class Variant:
    """One report: an artifact (its long name) under overrides, written as on a shell's command line."""

    artifact: str
    name: str
    line: str

    @property
    def command(self) -> str:
        """The command that a reader types to measure it."""
        return f"{program()} +exp={short_name(self.artifact)} {self.line}".strip()


def read_list(only: str = "*", path: Path = LIST) -> list[Variant]:
    """The variants of the artifacts that match a pattern, in the order of the file.

    Raises:
        LutlabError: no such file, it is not such a list, or no artifact of it matches.
    """
    if not path.exists():
        raise LutlabError(f"no {path} here: run this at the top of a checkout of lutlab")
    content, known = read_yaml(path), artifacts()
    found = [
        _variant(path, known, artifact, name, line)
        for artifact, variants in _mapping(path, "the file", content).items()
        for name, line in _mapping(path, artifact, variants).items()
    ]
    chosen = [variant for variant in found if fnmatchcase(variant.artifact, only)]
    if not chosen:
        raise LutlabError(
            f"--only {only} matches no artifact of {path}: {nearest(only, {v.artifact for v in found})}"
        )
    return chosen


def _mapping(path: Path, name: str, value: object) -> dict:
    if not isinstance(value, dict) or not value:
        raise LutlabError(f"{path}: {name} must map names to values, and is {value!r}")
    return value


def _variant(path: Path, known: Collection[str], artifact: str, name: str, line: object) -> Variant:
    if artifact not in known:
        raise LutlabError(f"{path}: unknown artifact '{artifact}': {nearest(artifact, known)}")
    if not isinstance(line, str):
        raise LutlabError(
            f"{path}: {artifact}, {name}: give the overrides as one text, as on a command line; "
            f'"" where there are none; it is {line!r}'
        )
    return Variant(artifact, name, line)
