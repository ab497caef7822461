"""A text of the user's own: `evaluate=[ppl:mine] data.text.mine=<file or folder>`, and `calibration.text=mine`.

    notes.txt                   one text, as it is
    pages.jsonl, x.parquet      the field `text` of every row
    a folder                    all of these in it, in the order of their names

Pieces are joined by two newlines, as rows of WikiText-2 are.
"""

from __future__ import annotations

import re
from pathlib import Path

from lutlab.base.errors import LutlabError
from lutlab.data.files import read_rows
from lutlab.data.protocols import PROTOCOLS, Protocol

SOURCE = "file"
SUFFIXES = (".txt", ".md", ".jsonl", ".parquet")


def declare(name: str) -> None:
    """Make a name that of a text of the user's.

    Raises:
        LutlabError: a text that ships or is known has the name, or it is no name.
    """
    known = PROTOCOLS.get(name)
    if (known and known.dataset != SOURCE) or not re.fullmatch(r"\w[\w-]*", name):
        cause = "is lutlab's name of another text" if known else "is no name"
        raise LutlabError(
            f"data.text.{name}: '{name}' {cause}: choose one of your own, as data.text.mine=<file>"
        )
    about = "a text of the user's own, its pieces joined by two newlines"
    PROTOCOLS[name] = Protocol(SOURCE, name, "stream", "\n\n", True, about)


def read(place: str | Path) -> tuple[list[str], str]:
    """Pieces of a text, and their origin.

    Raises:
        LutlabError: no such file or folder, nothing of these kinds in it, a file that cannot be read, or no text.
    """
    path = Path(place).expanduser()
    if not path.exists():
        raise LutlabError(
            f"there is no file or folder {path}: give a text, as data.text.mine=notes.txt"
        )
    files = [path]
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.suffix in SUFFIXES]
    if not files:
        raise LutlabError(
            f"{path} has no file that ends with {', '.join(SUFFIXES)}: give a file, or another folder"
        )
    pieces = [piece for file in files for piece in _pieces(file)]
    if not any(piece.strip() for piece in pieces):
        raise LutlabError(f"{path} has no text: give a longer one")
    return pieces, f"file: {path.name}"


def _pieces(file: Path) -> list[str]:
    """Rows of a table of texts; of a plain file, all of it."""
    rows = read_rows(file, "text")
    table = file.suffix == ".parquet" or ".json" in file.name
    return rows if table else ["\n".join(rows)]
