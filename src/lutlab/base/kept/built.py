"""Folders of the cache with what a compiler made: its source, its library, and a seal that binds both to the folder.

    <name>-<key>/   kernel.c · kernel.so · kernel.sealed (their facts, and each one's SHA-256; files.py)

The name holds the key of all that decided the library, and the seal hashes the name: an intact library that is copied
into another's folder, its seal with it, is no more that folder's than a damaged one. A folder is built beside and
renamed: of two processes that build at once, none sees half of it, and the second takes what the first has put there.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.kept import findings
from lutlab.base.kept.files import (
    Damaged,
    draft_beside,
    remove_leftovers,
    sealed,
    sha256_of,
    unsealed,
    write_atomically,
)

SEAL = "kernel.sealed"


def take(
    cache: Path, name: str, make: Callable[[Path], Mapping[str, Any]]
) -> tuple[Path, dict[str, Any]]:
    """A folder of built files, from an earlier build or made now, and its facts.

    Args:
        cache: folder of such folders; another place is taken where it cannot be written (findings.py).
        name: name of the folder, with the key of all that decides its files.
        make: function that fills an empty folder, and returns JSON values, to be sealed with the files.

    Raises:
        LutlabError: no folder can be written.
    """
    _tidy(cache)
    folder = cache / name
    if about := kept(folder):
        return folder, about
    folder = findings.writable(cache) / name
    try:
        with draft_beside(folder) as beside:
            inside = beside / "built"
            inside.mkdir(mode=0o700)
            _seal(inside, name, make(inside))
            return folder, _put(inside, folder)
    except OSError as error:
        raise LutlabError(
            f"cannot write {folder}: {error.strerror}; free some space, or set LUTLAB_CACHE to another folder"
        ) from error


@functools.cache  # once a process
def _tidy(cache: Path) -> None:
    """Remove the drafts that killed processes left, where the cache can be written."""
    with contextlib.suppress(OSError):
        remove_leftovers(cache)


def kept(folder: Path) -> dict[str, Any] | None:
    """Values sealed with a folder's files, if all are as they were built and nobody else can change them; else None.

    A folder that is damaged is named in a warning and set aside, to be built again.
    """
    if not os.path.lexists(folder):
        return None
    try:
        return _whole(folder)
    except Damaged as error:
        findings.set_damaged_aside(folder, error)
    return None


def _seal(folder: Path, name: str, about: Mapping[str, Any]) -> None:
    """Bind the files of a folder to the name that it gets; they become their owner's alone, whatever the umask."""
    files = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
    write_atomically(folder / SEAL, sealed({**about, "files": files}, name))
    for file in (*files, SEAL):
        (folder / file).chmod(0o600)


def _put(inside: Path, folder: Path) -> dict[str, Any]:
    """Rename a sealed folder, unless another process was first; returns the facts of the files that are there."""
    if about := kept(folder):
        return about
    try:
        os.replace(inside, folder)
    except OSError:
        if not os.path.lexists(folder):
            raise
    about = kept(folder)
    if about is None:
        raise LutlabError(
            f"{folder} is damaged as soon as it is built: set LUTLAB_CACHE to another folder"
        )
    return about


def _whole(folder: Path) -> dict[str, Any]:
    """Raises Damaged: a file lacks, is not the one that was sealed under this name, or can be changed by others."""
    try:
        about = unsealed((folder / SEAL).read_bytes(), folder.name)
        for name, digest in about["files"].items():
            if why := findings.others_can_change(folder / name):
                raise Damaged(why)
            if sha256_of(folder / name) != digest:
                raise Damaged(f"{name} is not what was built")
    except OSError as error:
        raise Damaged(f"{error.filename}: {error.strerror}") from error
    return about
