"""Files that appear whole or not at all, so that a reader, a crash or a full disk never shows half of one."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
import uuid
from pathlib import Path

from lutlab.errors import LutlabError

_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{32}")  # as write_atomically names them
_HOUR = 3600.0


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


def remove_leftovers(folder: Path, older_s: float = _HOUR) -> list[Path]:
    """Remove what killed writers left in a folder: `.<name>.<uuid>` that nobody has written to for so long; the files.

    A writer that is still at work, here or on another machine, touches its file far more often.
    """
    found = [p for p in folder.glob(".*") if _LEFTOVER.fullmatch(p.name)]
    removed = []
    for path in found:
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            if time.time() - path.stat().st_mtime > older_s:
                path.unlink()
                removed.append(path)
    return removed


def set_aside(path: Path) -> Path:
    """Rename what was found damaged to `<name>.damaged` (`.damaged-2`, …), so that it can be looked at; its new place.

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
