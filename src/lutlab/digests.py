r"""Digests, by which a file that was read shows that it is the one that was written, under the name it was written for.

A sealed JSON file is two lines, the second as it is or as long as it likes:

    <SHA-256 of "<name>\n<JSON>", in hex>
    <JSON>

The name is hashed with the content, so that one intact file copied over another is noticed like any other damage.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


class Damaged(ValueError):
    """Content is not what was written, or was written under another name. Whoever knows the file says which."""


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 24):
            digest.update(chunk)
    return digest.hexdigest()


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
