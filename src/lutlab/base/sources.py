"""Folders of the project that are no Python: conf, experiments, kernels.

An installed wheel carries them beside its modules, in lutlab/share; a checkout has them at its top. pyproject.toml
says which folders a wheel takes.
"""

from __future__ import annotations

from pathlib import Path

from lutlab.base.errors import LutlabError

_PACKAGE = Path(__file__).resolve().parents[1]
_SHARE = _PACKAGE / "share"


def checkout() -> Path | None:
    """The top of the checkout that this package runs from; None in an installed wheel."""
    return None if _SHARE.is_dir() else _PACKAGE.parents[1]


def folder(name: str) -> Path:
    """A folder of the project: conf, experiments or kernels.

    Raises:
        LutlabError: the package is in neither of the two places, as a copy of src/lutlab alone.
    """
    path = (checkout() or _SHARE) / name
    if not path.is_dir():
        raise LutlabError(
            f"lutlab's folder {name}/ is not at {path}: install lutlab with pip, or run it from its checkout"
        )
    return path
