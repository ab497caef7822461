"""The store of measured cells: one JSON file a cell, named by its content address, written atomically, never edited.

    <root>/records/<cell_id>.json                 {"sha256": <of the record's canonical JSON>, "record": {...}}
    <root>/<paper>/<artifact>/records.jsonl       a published artifact: all its records, a line each (lines.py)

`cell_id` hashes what decides the number (plan/ids.py), so that a finished cell is found again, whichever table asked
for it, and a change of any of it is another cell.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lutlab.atomic import write_atomically
from lutlab.digests import Damaged
from lutlab.errors import LutlabError
from lutlab.experiment.store import lines
from lutlab.experiment.store.record import Record, canonical, decode, encode


def content_id(value: Any) -> str:
    """16 hex digits naming a JSON value by its content."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


class Store:
    """Records under a folder. Safe for many processes: each file appears whole or not at all.

    A folder of published artifacts is read alike and never written to: publishing does that, an artifact at a time.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.folder = self.root / "records"

    @property
    def published(self) -> list[Path]:
        """The records.jsonl of the artifacts under the root, sorted."""
        return sorted(self.root.glob(f"*/*/{lines.NAME}"))

    def path(self, cell_id: str) -> Path:
        """The file of a cell."""
        return self.folder / f"{cell_id}.json"

    def load(self, cell_id: str) -> Record | None:
        """The record of a cell, None where there is none.

        Raises:
            LutlabError: the file is damaged or truncated, or holds another cell.
        """
        try:
            text = self.path(cell_id).read_text(encoding="utf-8")
        except FileNotFoundError:
            found = (lines.read_lines(path).get(cell_id) for path in self.published)
            return next(filter(None, found), None)
        record = _decoded(text, self.path(cell_id))
        if record.cell_id != cell_id:
            raise LutlabError(
                f"the record {self.path(cell_id)} is that of cell {record.cell_id}: a file's name is its cell's; "
                "rename it back, or delete it and run again"
            )
        return record

    def all(self) -> Mapping[str, Record]:
        """Cell id -> record of every cell under the root, sorted.

        Raises:
            LutlabError: a file or a line is damaged.
        """
        records: dict[str, Record] = {}
        for path in self.published:
            records |= lines.read_lines(path)
        for path in self.folder.glob("*.json"):
            records[path.stem] = _decoded(path.read_text(encoding="utf-8"), path)
        return dict(sorted(records.items()))

    def check_writable(self) -> None:
        """Raise LutlabError where the root holds published artifacts, or nothing can be written."""
        if published := self.published:
            raise LutlabError(
                f"{self.root} holds published artifacts ({published[0]}), which a run only reads: choose another "
                "results= folder, or publish with 'make publish' (results/README.md)"
            )
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.root).close()  # a read-only one is known only so
        except OSError as error:
            raise LutlabError(
                f"results={self.root} cannot be written ({error.strerror or type(error).__name__}): give another folder"
            ) from error

    def save(self, record: Record) -> Path:
        """Write a record; an earlier one of the same cell (a failed try) is replaced.

        Raises:
            LutlabError: the disk is full, the folder cannot be written, or it is a published one.
        """
        self.check_writable()
        text = json.dumps(encode(record), indent=1, ensure_ascii=False)
        return write_atomically(self.path(record.cell_id), text.encode())


def _decoded(text: str, path: Path) -> Record:
    try:
        return decode(text)
    except Damaged as error:
        raise LutlabError(
            f"the record {path} is damaged or truncated ({error}); delete that file and run again: "
            "only this cell is measured anew, all others are kept"
        ) from error
