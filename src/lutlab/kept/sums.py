"""SHA256SUMS: the digests of the files of a folder, beside them: of a model, a report, published artifacts.

The format is coreutils', so that `sha256sum -c SHA256SUMS` checks a folder without lutlab:

    <SHA-256 of the file's bytes, in hex>  <its path from the folder>
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from lutlab.errors import LutlabError
from lutlab.kept.files import sha256_of, write_atomically

NAME = "SHA256SUMS"


def write_sums(folder: Path, files: Iterable[Path] | None = None) -> Path:
    """Write SHA256SUMS over files below a folder as they are now; None: all that lie in it.

    Raises:
        LutlabError: the disk is full or the folder cannot be written.
    """
    if files is None:
        files = (path for path in folder.iterdir() if path.is_file() and path.name != NAME)
    lines = [
        f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n" for path in sorted(files)
    ]
    return write_atomically(folder / NAME, "".join(lines).encode())


def has_sums(folder: Path) -> bool:
    """Whether a folder has a SHA256SUMS, be it a link that leads nowhere: checking refuses that."""
    return os.path.lexists(folder / NAME)


def check_sums(
    folder: Path, cure: str, used: Iterable[str] = (), some: slice = slice(None)
) -> None:
    """Compare every file that SHA256SUMS names with what it says.

    Args:
        folder: folder with a SHA256SUMS.
        cure: the end of the message.
        used: names of files that must be among them.
        some: slice of the sorted file names to compare, where others compare the rest.

    Raises:
        LutlabError: a file is missing, differs or cannot be read, one of `used` is not named, or SHA256SUMS is damaged.
    """
    said = _said(folder, cure)
    for name in sorted({*said, *used})[some]:
        _compare(folder, name, said, cure)


def check_file(folder: Path, name: str, cure: str) -> None:
    """Compare one file, by its path from a folder with a SHA256SUMS; raises LutlabError as check_sums."""
    _compare(folder, name, _said(folder, cure), cure)


def _compare(folder: Path, name: str, said: dict[str, str], cure: str) -> None:
    if name not in said:
        raise LutlabError(f"{folder / name} is not named in {NAME}: {cure}")
    try:
        same = sha256_of(folder / name) == said[name]
    except OSError as error:
        raise LutlabError(f"{folder / name} cannot be read ({error.strerror}): {cure}") from error
    if not same:
        raise LutlabError(f"{folder / name} is not the file that {NAME} names: {cure}")


def _said(folder: Path, cure: str) -> dict[str, str]:
    """Path from the folder -> digest."""
    said, path = {}, folder / NAME
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            found = re.fullmatch(r"([0-9a-f]{64}) [ *]([^/\\].*)", line)
            if found is None or ".." in found[2].split("/") or "\0" in line:
                raise ValueError(f"a line reads {line[:80]!r}")
            said[found[2]] = found[1]
    except (OSError, ValueError) as error:
        raise LutlabError(f"{path} is damaged or cannot be read ({error}): {cure}") from error
    return said


def is_named(path: Path, name: str) -> bool:
    """Whether a file is the one that its name in the hub's cache says; a name that is no hash says nothing.

    Large files are named by their SHA-256, others by git's id, of which a mirror may send a plain SHA-1.

    Raises:
        OSError: it cannot be read.
    """
    if re.fullmatch("[0-9a-f]{64}", name):
        return sha256_of(path) == name
    if not re.fullmatch("[0-9a-f]{40}", name):
        return True
    data = path.read_bytes()
    heads = (b"blob %d\0" % len(data), b"")
    return name in (hashlib.sha1(head + data, usedforsecurity=False).hexdigest() for head in heads)
