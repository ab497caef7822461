"""A kind of file that lutlab reads: how one is made, and the numbers that come of it by lutlab's own reading path."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Kind:
    """Files of one kind.

    Attributes:
        name: on the command line of damage.py.
        make: fills an empty folder.
        observe: folder -> {"numbers": JSON, "identity": JSON}. Numbers may differ from those of the undamaged folder
            only with the identity, which is what a record repeats: the hash of a text, of a model's files. Without an
            identity they never may, and a mapping may then lack entries, if that is said.
        files: pattern of those that are damaged, below the folder.
        of_user: without a digest to hold it against, another content is another input: a table's YAML.
        without: damages that mean nothing to it.
        refused: damages that are never another input, whatever the identity says: a text's line ends.
        slow: more than a second a case.
    """

    name: str
    make: Callable[[Path], None]
    observe: Callable[[Path], dict[str, Any]]
    files: str = "**/*"
    of_user: bool = False
    without: Collection[str] = ()
    refused: Collection[str] = ()
    slow: bool = False

    def victims(self, folder: Path) -> list[Path]:
        """The files to damage, sorted."""
        return sorted(p for p in folder.glob(self.files) if p.is_file() and not p.is_symlink())


def all_kinds() -> list[Kind]:
    """Every kind; this imports what their readers need, before children are forked."""
    from tools.attack import (
        kinds_caches,
        kinds_experiment,
        kinds_kept,
        kinds_models,
        kinds_texts,
    )

    modules = (kinds_kept, kinds_models, kinds_texts, kinds_caches, kinds_experiment)
    return [kind for module in modules for kind in module.KINDS]


def digest_of(model: nn.Module) -> str:
    """Hash of all weights and buffers of a model, their names and dtypes."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(-1).numpy().tobytes())
    return digest.hexdigest()[:16]
