"""What was found out once, kept in the cache folder under all that decides it: sources, compilers, features of a CPU.

    <cache>/known/<kind>-<key>.sealed        one JSON value; key = sha256 of what decides it

The first product of a process then needs neither jinja2 nor archspec's tables, and runs no compiler. A file that is not
as it was written is named, set aside and found out again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lutlab import caches
from lutlab.atomic import write_atomically
from lutlab.digests import Damaged, sealed, unsealed
from lutlab.kernels.codegen import built


def known(kind: str, decides: Sequence[Any], find: Callable[[], Any]) -> Any:
    """The value that find() returns, kept from before or found now.

    Args:
        kind: letters and digits; of the file's name.
        decides: JSON values; find() must depend on nothing else.
        find: returns a JSON value.

    Raises:
        LutlabError: others can change the cache folder, and the system's temporary folder too; the disk is full.
    """
    key = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:32]
    folder = caches.cache_folder("known")
    path = folder / f"{kind}-{key}.sealed"
    if os.path.lexists(path):
        try:
            return _read(path)
        except (OSError, Damaged) as error:
            built.set_damaged_aside(path, error)
    value = find()
    there = write_atomically(caches.writable(folder) / path.name, sealed(value, path.name))
    there.chmod(0o600)
    return value


def _read(path: Path) -> Any:
    if why := caches.others_can_change(path):
        raise Damaged(why)
    return unsealed(path.read_bytes(), path.name)
