r"""Files that appear whole or not at all, and show that they are the ones that were written, under their own names.

A sealed JSON file is two lines, the second as it is or as long as it likes:

    <SHA-256 of "<name>\n<JSON>", in hex>
    <JSON>

The name is hashed with the content, so that one intact file copied over another is noticed like any other damage.

The files of a folder, of a model, a report, published artifacts, have their digests beside them in SHA256SUMS. The
format is coreutils', so that `sha256sum -c SHA256SUMS` checks a folder without lutlab:

    <SHA-256 of the file's bytes, in hex>  <its path from the folder>
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lutlab.base.errors import LutlabError

SUMS = "SHA256SUMS"
_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{32}")  # as drafts are named
_HOUR = 3600.0


class Damaged(ValueError):
    """The content differs from what was written, or was written under another name; the caller's message names the
    file.
    """


def write_atomically(path: Path, data: bytes) -> Path:
    """Write beside the file, then put it in place in one step.

    Raises:
        LutlabError: the disk is full or the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # other writers have their own
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # it may not have been made
            temporary.unlink(missing_ok=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise LutlabError(
            f"cannot write {path}: {'the disk is full' if full else error.strerror}; "
            f"{'free some space' if full else 'check the folder'} and run again: finished cells are kept"
        ) from error
    return path


@contextlib.contextmanager
def draft_beside(path: Path) -> Iterator[Path]:
    """A private folder beside a path, in which to make what is to stand there; gone at the end, as are old ones of it.

    Raises:
        OSError: it cannot be made.
    """
    remove_leftovers(path.parent, f".{path.name}.*")
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    draft.mkdir(mode=0o700, parents=True)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def remove_leftovers(folder: Path, pattern: str = ".*") -> list[Path]:
    """Remove what killed writers left in a folder, `.<name>.<uuid>`, and return it; `**/.*` looks in its folders too.

    A writer that is still at work, here or on another machine, touches its file or folder more often than each hour.
    """
    leftovers = [p for p in folder.glob(pattern) if _LEFTOVER.fullmatch(p.name)]
    removed = []
    for path in leftovers:
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if time.time() - path.lstat().st_mtime > _HOUR:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
                removed.append(path)
    return removed


def set_aside(path: Path) -> Path:
    """Rename a damaged file to `<name>.damaged` (`.damaged-2`, …), so that it can be looked at; returns its new path.

    Raises:
        LutlabError: the folder cannot be written.
    """
    places = (
        path.with_name(f"{path.name}.damaged{n}") for n in ("", *(f"-{i}" for i in range(2, 1000)))
    )
    place = next(each for each in places if not os.path.lexists(each))
    try:
        os.replace(path, place)
    except FileNotFoundError:  # another process was faster
        pass
    except OSError as error:
        raise LutlabError(
            f"{path} is damaged, and cannot be moved out of the way ({error.strerror}): delete it and run again"
        ) from error
    return place


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(value: Any, name: str) -> bytes:
    """A JSON value as a sealed file's content; `name` is the file's own, or what it belongs to."""
    text = json.dumps(value)
    return f"{_digest(text, name)}\n{text}".encode()


def unsealed(data: bytes, name: str) -> Any:
    """The value of a file that `sealed` made under this name.

    Raises:
        Damaged: it is not intact, or of another name.
    """
    digest, _, text = data.decode(errors="replace").partition("\n")
    if digest != _digest(text, name):
        raise Damaged("its digest is not that of its content and name")
    return json.loads(text)


def _digest(text: str, name: str) -> str:
    return hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()


# ---- SHA256SUMS ----


def write_sums(folder: Path, files: Iterable[Path] | None = None) -> Path:
    """Write SHA256SUMS over files below a folder as they are now; None: all that lie in it.

    Raises:
        LutlabError: the disk is full or the folder cannot be written.
    """
    if files is None:
        files = (path for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    lines = [
        f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n" for path in sorted(files)
    ]
    return write_atomically(folder / SUMS, "".join(lines).encode())


def has_sums(folder: Path) -> bool:
    """Whether a folder has a SHA256SUMS, be it a link that leads nowhere: checking refuses that."""
    return os.path.lexists(folder / SUMS)


def check_sums(
    folder: Path, cure: str, used: Iterable[str] = (), some: slice = slice(None)
) -> None:
    """Compare every file that SHA256SUMS names, and those that are `used`, with what it says.

    Args:
        folder: folder with a SHA256SUMS.
        cure: the end of the message.
        used: names of files that must be among them.
        some: slice of the sorted file names to compare, where others compare the rest.

    Raises:
        LutlabError: a file is missing, differs or cannot be read, one of `used` is not named, or SHA256SUMS is damaged.
    """
    digests = _digests(folder, cure)
    for name in sorted({*digests, *used})[some]:
        _compare(folder, name, digests, cure)


def check_file(folder: Path, name: str, cure: str) -> None:
    """Compare one file, by its path from a folder with a SHA256SUMS; raises LutlabError as check_sums."""
    _compare(folder, name, _digests(folder, cure), cure)


def _compare(folder: Path, name: str, digests: dict[str, str], cure: str) -> None:
    if name not in digests:
        raise LutlabError(f"{folder / name} is not named in {SUMS}: {cure}")
    try:
        same = sha256_of(folder / name) == digests[name]
    except OSError as error:
        raise LutlabError(f"{folder / name} cannot be read ({error.strerror}): {cure}") from error
    if not same:
        raise LutlabError(f"{folder / name} is not the file that {SUMS} names: {cure}")


def _digests(folder: Path, cure: str) -> dict[str, str]:
    """Path from the folder -> digest."""
    digests: dict[str, str] = {}
    path = folder / SUMS
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            match = re.fullmatch(r"([0-9a-f]{64}) [ *]([^/\\].*)", line)
            if match is None or ".." in match[2].split("/") or "\0" in line:
                raise ValueError(f"a line reads {line[:80]!r}")
            digests[match[2]] = match[1]
    except (OSError, ValueError) as error:
        raise LutlabError(f"{path} is damaged or cannot be read ({error}): {cure}") from error
    return digests


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
