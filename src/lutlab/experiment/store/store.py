"""The store of measured cells: one JSON file a cell, named by its content address, written atomically, never edited.

    <root>/records/<cell_id>.json                 {"sha256": <of the record's canonical JSON>, "record": {...}}
    <root>/<paper>/<artifact>/records.jsonl       a published artifact: all its records, a line each (record.py)

`cell_id` hashes what decides the number (plan/ids.py), so that a finished cell is found again, whichever table asked
for it, and a change of any of it is another cell. A record of a cell's own file that is damaged, or another cell's, is
set aside with a warning, and its cell is measured again; a published one is refused.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import Damaged, set_aside, write_atomically
from lutlab.experiment.store.record import LINES, Record, decode, encode, read_lines

log = logging.getLogger(__name__)


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
        return sorted(self.root.glob(f"*/*/{LINES}"))

    def path(self, cell_id: str) -> Path:
        """The file of a cell."""
        return self.folder / f"{cell_id}.json"

    def stage(self, cell_id: str) -> Path:
        """File in which a worker writes its progress with a cell."""
        return self.folder / f"{cell_id}.stage"

    def load(self, cell_id: str) -> Record | None:
        """The record of a cell; None where it is missing or damaged.

        Raises:
            LutlabError: a published line is damaged; a file cannot be read, or not set aside.
        """
        record = _record_in(self.path(cell_id))
        if record or not (published := self.published):
            return record
        return next(filter(None, (read_lines(path).get(cell_id) for path in published)), None)

    def all(self) -> Mapping[str, Record]:
        """Cell id -> record of every cell under the root, sorted.

        Raises:
            LutlabError: a published line is damaged; a file cannot be read, or not set aside.
        """
        records: dict[str, Record] = {}
        for path in self.published:
            records |= read_lines(path)
        for path in self.folder.glob("*.json"):
            if record := _record_in(path):
                records[path.stem] = record
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


def _record_in(path: Path) -> Record | None:
    """The record in a cell's file, which is named after it; None where it is missing or damaged."""
    try:
        return _decoded(path)
    except FileNotFoundError:
        return None
    except Damaged as error:
        place = set_aside(path)
        log.warning(
            "the record %s is damaged (%s): set aside as %s; the next run that asks for its cell measures it again",
            path,
            error,
            place.name,
        )
        return None
    except OSError as error:
        raise LutlabError(
            f"the record {path} cannot be read ({error.strerror}): check its owner and permissions, or delete it and "
            "run again"
        ) from error


def _decoded(path: Path) -> Record:
    """Raises Damaged, and OSError where it cannot be read."""
    if path.is_dir():
        raise Damaged("it is a folder")
    try:
        record = decode(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise Damaged("it is no UTF-8") from error
    if record.cell_id != path.stem:
        raise Damaged(f"it is that of cell {record.cell_id}")
    return record
