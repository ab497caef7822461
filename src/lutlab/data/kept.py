"""Findings that take seconds, kept in the user's cache folder under a hash of all bytes that they were found in."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

from lutlab.atomic import set_aside, write_atomically
from lutlab.caches import cache_folder
from lutlab.digests import Damaged, sealed, unsealed
from lutlab.errors import LutlabError

log = logging.getLogger(__name__)


def recall(name: str, sources: Iterable[bytes], find: Callable[[], Any]) -> Any:
    """The value of find(), which was kept if it was found in the same bytes before.

    Args:
        name: of the file in the cache.
        sources: everything that decides the value, the code that finds it included; only their content counts.
        find: returns a JSON value.
    """
    path = cache_folder("texts") / f"{name}-{_sha256(sources)[:32]}.sealed"
    damaged = False
    if path.is_file():
        try:
            return unsealed(path.read_bytes(), path.name)
        except (Damaged, OSError) as error:
            log.warning("%s is damaged (%s): it is set aside and found again", path, error)
            damaged = True
    found = find()
    try:
        if damaged:
            set_aside(path)
        write_atomically(path, sealed(found, path.name))
    except LutlabError as error:
        log.info("%s is found anew in every process: %s", name, error)
    return found


def _sha256(parts: Iterable[bytes]) -> str:
    """Hash of parts, each preceded by its length."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
