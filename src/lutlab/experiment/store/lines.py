"""records.jsonl: the records of a published artifact in one file, a line a record, sorted by cell id.

    {"record": {...}, "sha256": <of the record's canonical JSON>}

A line is canonical JSON, so that the same records are the same bytes, and its checksum is verified when it is read.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path

from lutlab.errors import LutlabError
from lutlab.experiment.store.record import Record, canonical, decode, encode
from lutlab.kept.files import Damaged, write_atomically

NAME = "records.jsonl"


def write_lines(path: Path, records: Iterable[Record]) -> Path:
    """Write records, each cell once.

    Raises:
        LutlabError: the disk is full or the folder cannot be written.
    """
    by_id = {record.cell_id: record for record in records}
    lines = [canonical(encode(by_id[cell])) + "\n" for cell in sorted(by_id)]
    return write_atomically(path, "".join(lines).encode())


def read_lines(path: Path) -> Mapping[str, Record]:
    """Cell id -> record. A file that did not change is read once a process.

    Raises:
        FileNotFoundError: there is none.
        LutlabError: a line is damaged, or a cell has two: the message names file and line; the file is no text.
    """
    try:
        known = path.stat()
        return _read(path, known.st_mtime_ns, known.st_size)
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise LutlabError(
            f"{path} cannot be read ({type(error).__name__}: {error}); restore the file with git, or publish the "
            "artifact again"
        ) from error


@functools.lru_cache(maxsize=64)
def _read(path: Path, mtime_ns: int, size: int) -> Mapping[str, Record]:
    return parse_lines(path.read_text(encoding="utf-8"), path)


def parse_lines(text: str, name: Path | str) -> dict[str, Record]:
    """The records of a file's text; `name` is what errors call it. Raises LutlabError as read_lines."""
    records: dict[str, Record] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        try:
            record = decode(line)
        except Damaged as error:
            raise LutlabError(
                f"{name}, line {number}: the record is damaged or truncated ({error}); restore the file with git, "
                "or publish the artifact again"
            ) from error
        if record.cell_id in records:
            raise LutlabError(
                f"{name}, line {number}: cell {record.cell_id} has a second record; keep one of the two lines"
            )
        records[record.cell_id] = record
    return records
