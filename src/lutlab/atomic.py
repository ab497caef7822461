"""Files that appear whole or not at all, so that a reader, a crash or a full disk never shows half of one."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from pathlib import Path

from lutlab.errors import LutlabError


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
