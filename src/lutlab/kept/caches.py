"""The user's cache folder: what can be made again at any time. LUTLAB_CACHE names another one; delete it at will.

Compiled code and findings that decide numbers lie there, and are trusted. So its folders are made for their user alone
(0700), and are read only where nobody else can change them: all that is on the way belongs to the user or to root, and
only its owner writes it, or it is sticky as /tmp, where others cannot rename what is not theirs. Otherwise, and where
the folder cannot be written, a private temporary one serves this process; one warning names the path and the cure.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path

from lutlab.errors import LutlabError

log = logging.getLogger(__name__)


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
            found = part.lstat()
            if found.st_uid not in (0, user):
                return f"{part} belongs to another user ({found.st_uid}): chown {user} {part}"
            if stat.S_ISLNK(found.st_mode):
                target = part.parent / os.readlink(part)
                return others_can_change(target / path.relative_to(part))
            sticky = part != path and found.st_mode & stat.S_ISVTX
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
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
