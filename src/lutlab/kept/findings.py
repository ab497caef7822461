"""A cache of values that take long to find, sealed; a file that is damaged is named, set aside, and counts as none.

    <cache>/known/<kind>-<key>.sealed     rendered sources, compilers, features of a CPU; key: of all that decides it
    <cache>/texts/<name>-<key>.sealed     texts that took seconds to find
    <cache>/…                             what tuning found on this machine, by `kept` and `keep`

What tuning finds chooses among kernels that all give the product, and its readers take only values that tuning can have
found, so that no file makes a product wrong. With `known` the first product of a process needs neither jinja2 nor
archspec's tables, and runs no compiler.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lutlab.errors import LutlabError
from lutlab.kept.caches import cache_folder, others_can_change, writable
from lutlab.kept.files import Damaged, sealed, set_aside, unsealed, write_atomically

log = logging.getLogger(__name__)
_Found = TypeVar("_Found")
_NOTHING = object()


def kept(path: Path, read: Callable[[Any], _Found], nothing: _Found) -> _Found:
    """Findings of a file.

    Args:
        path: path of the file.
        read: function from the file's content to the findings; raises ValueError, TypeError, KeyError or AttributeError
            where they are not such as are found.
        nothing: findings where there is no file, or a damaged one.
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

    Args:
        path: path of the file.
        change: function that reads the file's findings, and returns the new ones.

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
    """The value of find(), from the cache where it is there; code is made of it, so others may not change it.

    Args:
        kind: letters and digits, the beginning of the file's name.
        decides: JSON values; find() must depend on nothing else.
        find: function that returns a JSON value.

    Raises:
        LutlabError: others can change the cache folder, and the system's temporary folder too; the disk is full.
    """
    key = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:32]
    path = cache_folder("known") / f"{kind}-{key}.sealed"

    def own(value: Any) -> Any:
        if why := others_can_change(path):
            raise Damaged(why)
        return value

    value = kept(path, own, _NOTHING)
    if value is _NOTHING:
        value = find()
        there = writable(path.parent) / path.name
        write_atomically(there, sealed(value, path.name)).chmod(0o600)
    return value


def recall(name: str, sources: Iterable[bytes], find: Callable[[], Any]) -> Any:
    """The value of find(), from the cache where the same bytes led to it before.

    Args:
        name: name of the file in the cache.
        sources: everything that decides the value, the code that finds it included; only their content counts.
        find: function that returns a JSON value.
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


def set_damaged_aside(path: Path, why: Exception) -> None:
    """Name in a warning what is damaged, and rename it, where it can be, so that it is made again."""
    log.warning("%s is damaged (%s): it is set aside, to be made again", path, why)
    # The cache can only be read, or another process was quicker.
    with contextlib.suppress(LutlabError):
        set_aside(path)
