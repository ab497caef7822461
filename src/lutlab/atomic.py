"""Write a file so that a reader, a crash or a full disk never shows half of it."""

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
