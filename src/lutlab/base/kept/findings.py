"""The user's cache folder: what can be made again at any time. LUTLAB_CACHE names another one; delete it at will.

Compiled code and findings that decide numbers lie there, and are trusted. So its folders are made for their user alone
(0700), and are read only where nobody else can change them: all that is on the way belongs to the user or to root, and
only its owner writes it, or it is sticky as /tmp, where others cannot rename what is not theirs. Otherwise, and where
the folder cannot be written, a private temporary one serves this process; one warning names the path and the cure.

Values that take long to find are kept there, sealed; a file that is damaged is named, set aside, and counts as none:

    <cache>/known/<kind>-<key>.sealed     rendered sources, compilers, features of a CPU; key: of all that decides it
    <cache>/texts/<name>-<key>.sealed     texts that took seconds to find
    <cache>/full-precision/<key>/         what full-precision models put out on a text, some gigabytes at most
    <cache>/…                             what tuning found on this machine, by `kept` and `keep`

What tuning finds chooses among kernels that all give the product, and its readers take only values that tuning can have
found, so that no file makes a product wrong. With `known` the first product of a process needs neither jinja2 nor
archspec's tables, and runs no compiler.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import (
    Damaged,
    remove_leftovers,
    sealed,
    set_aside,
    unsealed,
    write_atomically,
)

log = logging.getLogger(__name__)
_Found = TypeVar("_Found")
_NOTHING = object()


def cache_folder(name: str) -> Path:
    """The folder of one kind of things, to read from; it does not exist where it cannot be made.

    Raises:
        LutlabError: others can change it, and the system's temporary folder too.
    """
    root = os.environ.get("LUTLAB_CACHE")
    if not root:
        import platformdirs

        root = platformdirs.user_cache_dir("lutlab")
    folder = Path(root).absolute() / name
    _make(folder)
    why = others_can_change(folder)
    return (
        _instead(folder, f"{folder} is not used, as others can change it; {why}, or")
        if why
        else folder
    )


@functools.cache
def writable(folder: Path) -> Path:
    """The folder, made, or a private temporary one for this process where it cannot be written; one warning says so.

    Raises:
        LutlabError: others can change what lies in the system's temporary folder.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        return _instead(folder, f"cannot write {folder} ({error.strerror});")


def others_can_change(path: Path) -> str:
    """Path on the way to a file that users other than this one and root can change, and the cure; "" without one.

    Links are followed: what holds a link counts, and what is on the way to where it leads. What does not exist, or
    cannot be looked at, cannot be read either, and is no reason.
    """
    user = os.geteuid()
    try:
        path.stat()  # links in a circle end here
        for part in (*reversed(path.parents), path):
            state = part.lstat()
            if state.st_uid not in (0, user):
                return f"{part} belongs to another user ({state.st_uid}): chown {user} {part}"
            if stat.S_ISLNK(state.st_mode):
                target = part.parent / os.readlink(part)
                return others_can_change(target / path.relative_to(part))
            sticky = part != path and state.st_mode & stat.S_ISVTX
            if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
                return f"{part} can be written by others: chmod go-w {part}"
    except OSError:
        return ""
    return ""


def _make(folder: Path) -> None:
    """Make a folder and all that lack on the way, for the user alone; whoever writes says why it cannot be made."""
    try:
        for each in (*reversed(folder.parents), folder):
            if not each.exists():
                each.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        log.debug("cannot make %s: %s", folder, error.strerror)


@functools.cache
def _instead(folder: Path, why: str) -> Path:
    """A private temporary folder in a folder's place, with one warning, which begins with `why`."""
    log.warning(
        "%s set LUTLAB_CACHE to a folder of your own. Until then what it keeps, as built kernels, is made in a private "
        "temporary folder, again in every process",
        why,
    )
    place = _private() / folder.name
    place.mkdir(mode=0o700, exist_ok=True)
    return place


@functools.cache
def _private() -> Path:
    """A temporary folder for this process alone."""
    temporary = Path(tempfile.mkdtemp(prefix="lutlab-")).absolute()
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    if why := others_can_change(temporary):
        raise LutlabError(
            f"there is no folder that only you can change, to build kernels in: {why}, or set LUTLAB_CACHE or TMPDIR "
            "to a folder of your own"
        )
    return temporary


# ---- findings ----


def kept(path: Path, read: Callable[[Any], _Found], nothing: _Found) -> _Found:
    """Findings of a file; `nothing` where there is none, or a damaged one.

    `read` makes them of its content, and raises ValueError, TypeError, KeyError or AttributeError where they are not
    such as are found.
    """
    if not os.path.lexists(path):
        return nothing
    try:
        return read(unsealed(path.read_bytes(), path.name))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        set_damaged_aside(path, error)
    return nothing


def keep(path: Path, change: Callable[[], Any]) -> Path:
    """Write what change() returns, JSON, while other processes wait for their turn; returns the file.

    Raises:
        LutlabError: the folder cannot be written.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise LutlabError(
            f"cannot write {path}: {error.strerror}; set LUTLAB_CACHE to a folder of your own"
        ) from error
    try:
        # A file system of a network may lock no folders: there the later of two that write at once wins.
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        return write_atomically(path, sealed(change(), path.name))
    finally:
        os.close(folder)


def known(kind: str, decides: Sequence[Any], find: Callable[[], Any]) -> Any:
    """The value of find(), JSON, from the cache where it is there; code is made of it, so others may not change it.

    It is kept under `kind`, letters and digits, and the hash of `decides`, JSON values: find() depends on nothing else.

    Raises:
        LutlabError: others can change the cache folder, and the system's temporary folder too; the disk is full.
    """
    key = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:32]
    path = cache_folder("known") / f"{kind}-{key}.sealed"

    def trusted(value: Any) -> Any:
        if why := others_can_change(path):
            raise Damaged(why)
        return value

    value = kept(path, trusted, _NOTHING)
    if value is _NOTHING:
        value = find()
        place = writable(path.parent) / path.name
        write_atomically(place, sealed(value, path.name)).chmod(0o600)
    return value


def recall(name: str, sources: Iterable[bytes], find: Callable[[], Any]) -> Any:
    """The value of find(), JSON, from the cache where the same bytes led to it before.

    `sources` are everything that decides the value, the code that finds it included; only their content counts.
    """
    digest = hashlib.sha256()
    for part in sources:
        digest.update(len(part).to_bytes(8, "little") + part)
    path = cache_folder("texts") / f"{name}-{digest.hexdigest()[:32]}.sealed"
    value = kept(path, lambda value: value, _NOTHING)
    if value is _NOTHING:
        value = find()
        try:
            write_atomically(path, sealed(value, path.name))
        except LutlabError as error:
            log.info("%s is found anew in every process: %s", name, error)
    return value


def make_room(folder: Path, limit: int, used: Path) -> None:
    """Remove the folders in one that were not touched for longest, until all but `used` hold `limit` bytes at most."""
    remove_leftovers(folder, "**/.*")
    others = (each for each in folder.iterdir() if each.is_dir() and each != used)
    total = 0
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        for each in sorted(others, key=lambda each: each.stat().st_mtime, reverse=True):
            total += sum(file.stat().st_size for file in each.iterdir())
            if total > limit:
                shutil.rmtree(each, ignore_errors=True)


def set_damaged_aside(path: Path, why: Exception) -> None:
    """Name in a warning what is damaged, and rename it, where it can be, so that it is made again."""
    log.warning("%s is damaged (%s): it is set aside, to be made again", path, why)
    # The cache can only be read, or another process was quicker.
    with contextlib.suppress(LutlabError):
        set_aside(path)
