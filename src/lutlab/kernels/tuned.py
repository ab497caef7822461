"""Findings by trying on this machine, sealed in the cache folder: the fastest kernel, panel or prefetch distance.

They choose among kernels that all give the product, and their readers take only values that tuning can have found, so
that no file makes a product wrong. A file that is damaged is named, set aside, and counts as none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lutlab.atomic import write_atomically
from lutlab.digests import sealed, unsealed
from lutlab.errors import LutlabError
from lutlab.kernels.codegen import built

_Found = TypeVar("_Found")


def kept(path: Path, read: Callable[[Any], _Found], nothing: _Found) -> _Found:
    """Findings of a file.

    Args:
        path: of the file.
        read: what was sealed -> the findings; raises ValueError, TypeError, KeyError or AttributeError where they
            are not such as are found.
        nothing: without a file, or with a damaged one.
    """
    if not os.path.lexists(path):
        return nothing
    try:
        return read(unsealed(path.read_bytes(), path.name))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        built.set_damaged_aside(path, error)
    return nothing


def keep(path: Path, change: Callable[[], Any]) -> Path:
    """Write what change() returns, JSON, while other processes wait for their turn; returns the file.

    Args:
        path: of the file.
        change: reads what is kept, and returns what is to be.

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
