"""SHA256SUMS: the digest of every file of a model folder that lutlab wrote, beside them.

The format is coreutils', so that `sha256sum -c SHA256SUMS` checks a folder without lutlab:

    <SHA-256 of the file's bytes, in hex>  <its name>
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from lutlab.atomic import write_atomically
from lutlab.digests import sha256_of
from lutlab.errors import LutlabError

NAME = "SHA256SUMS"


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS over all files of a folder as they are now.

    Raises:
        LutlabError: the disk is full or the folder cannot be written.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != NAME)
    lines = [f"{sha256_of(path)}  {path.name}\n" for path in files]
    write_atomically(folder / NAME, "".join(lines).encode())


def check_sums(folder: Path, cure: str, used: Iterable[str] = ()) -> None:
    """Compare every file that SHA256SUMS names with what it says.

    Args:
        folder: with a SHA256SUMS.
        cure: the end of the message.
        used: names of files that must be among them.

    Raises:
        LutlabError: a file is missing, differs or cannot be read, one of `used` is not named, or SHA256SUMS is damaged.
    """
    try:
        said = _parsed((folder / NAME).read_bytes())
        changed = [name for name in said if sha256_of(folder / name) != said[name]]
    except OSError as error:
        raise LutlabError(f"{error.filename} cannot be read ({error.strerror}): {cure}") from error
    except ValueError as error:
        raise LutlabError(f"{folder / NAME} is damaged ({error}): {cure}") from error
    if changed:
        raise LutlabError(f"{folder / changed[0]} is not the file that {NAME} names: {cure}")
    if strange := sorted(set(used) - said.keys()):
        raise LutlabError(f"{folder / strange[0]} is not named in {NAME}: {cure}")


def check_shipped(folder: Path, shipped: Path) -> None:
    """Check a model that ships with lutlab; a folder that lies elsewhere than in `shipped` is the user's.

    Raises:
        LutlabError: as check_sums.
    """
    if folder.parent == shipped:
        cure = "a model that ships with lutlab is damaged; reinstall lutlab, or restore the file with git"
        check_sums(folder, cure, used=["config.json", "model.safetensors", "tokenizer.json"])


def _parsed(data: bytes) -> dict[str, str]:
    """Name -> digest of a SHA256SUMS. A name lies in the folder itself."""
    said = {}
    for line in data.decode().splitlines():
        found = re.fullmatch(r"([0-9a-f]{64}) [ *]([^/\\]+)", line)
        if found is None:
            raise ValueError(f"a line reads {line[:80]!r}")
        said[found[2]] = found[1]
    return said
