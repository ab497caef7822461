"""The store of measured cells: one JSON file a cell, named by its content address, written atomically, never edited.

    <root>/records/<cell_id>.json      {"sha256": <of the record's canonical JSON>, "record": {...}}

`cell_id` hashes what decides the number (plan/ids.py), so that a finished cell is found again, whichever table asked
for it, and a change of any of it is another cell.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from lutlab.atomic import write_atomically
from lutlab.errors import LutlabError
from lutlab.experiment.store.record import Record


def canonical(value: Any) -> str:
    """One spelling of a JSON value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def content_id(value: Any) -> str:
    """16 hex digits naming a JSON value by its content."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


class Store:
    """Records under a folder. Safe for many processes: each file appears whole or not at all."""

    def __init__(self, root: Path) -> None:
        self.folder = Path(root) / "records"

    def path(self, cell_id: str) -> Path:
        """The file of a cell."""
        return self.folder / f"{cell_id}.json"

    def load(self, cell_id: str) -> Record | None:
        """The record of a cell, None where there is none.

        Raises:
            LutlabError: the file is damaged or truncated, or holds another cell.
        """
        path = self.path(cell_id)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            stored = json.loads(text)
            record = stored["record"]
            intact = stored["sha256"] == hashlib.sha256(canonical(record).encode()).hexdigest()
            if intact:
                found = Record(**record | {"samples": tuple(record["samples"])})
                return self._named(found, cell_id)
        except (ValueError, KeyError, TypeError):
            pass  # not JSON, or not a record: damaged, as below
        raise LutlabError(
            f"the record {path} is damaged or truncated (its checksum does not match); delete that file and run again: "
            "only this cell is measured anew, all others are kept"
        )

    def _named(self, record: Record, cell_id: str) -> Record:
        if record.cell_id == cell_id:
            return record
        raise LutlabError(
            f"the record {self.path(cell_id)} is that of cell {record.cell_id}: a file's name is its cell's; rename it "
            "back, or delete it and run again"
        )

    def save(self, record: Record) -> Path:
        """Write a record; an earlier one of the same cell (a failed try) is replaced.

        Raises:
            LutlabError: the disk is full or the folder cannot be written.
        """
        content = dataclasses.asdict(record) | {"samples": list(record.samples)}
        content = json.loads(canonical(content))  # as it will be read back
        digest = hashlib.sha256(canonical(content).encode()).hexdigest()
        text = json.dumps({"sha256": digest, "record": content}, indent=1, ensure_ascii=False)
        return write_atomically(self.path(record.cell_id), text.encode())
