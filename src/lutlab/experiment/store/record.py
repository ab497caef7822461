"""A measured cell as the store keeps it, and its JSON with a checksum.

Of a published artifact, records.jsonl has all records in one file, a line a record, sorted by cell id:

    {"record": {...}, "sha256": <of the record's canonical JSON>}

A line is canonical JSON, so that the same records are the same bytes, and its checksum is verified when it is read.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lutlab.base.errors import WRONG_TYPE, LutlabError
from lutlab.base.kept.files import Damaged, write_atomically

LINES = "records.jsonl"


@dataclass(frozen=True)
class Record:
    """One measured cell as stored. status: done | failed | oom; a failed cell says why in `reason`."""

    cell_id: str
    status: str
    run: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    values: Mapping[str, float]
    n: int
    samples: tuple[float, ...]
    facts: Mapping[str, Any]
    provenance: Mapping[str, Any]
    seconds: float
    reason: str = ""


def canonical(value: Any) -> str:
    """One spelling of a JSON value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def content_id(value: Any) -> str:
    """16 hex digits naming a JSON value by its content."""
    return _sha256(value)[:16]


def encode(record: Record) -> dict[str, Any]:
    """The record as JSON values beside the SHA-256 of their canonical spelling."""
    content = dataclasses.asdict(record) | {"samples": list(record.samples)}
    content = json.loads(canonical(content))  # as it will be read back
    return {"sha256": _sha256(content), "record": content}


def decode(text: str) -> Record:
    """The record of a JSON text that `encode` made.

    Raises:
        Damaged: it is not JSON, not a record, not the one whose checksum it has, or its id is not that of what it says
            its number depends on (provenance.identity, which the oldest records lack).
    """
    try:
        stored = json.loads(text)
        content, digest = stored["record"], stored["sha256"]
        if digest != _sha256(content):
            raise Damaged("its checksum does not match")
        record = Record(**content | {"samples": tuple(content["samples"])})
        identity = record.provenance.get("identity")
    except Damaged:
        raise
    except (ValueError, *WRONG_TYPE) as error:
        raise Damaged("it is not the JSON of a record") from error
    if identity is not None and content_id(identity) != record.cell_id:
        raise Damaged(f"its id {record.cell_id} is not that of its provenance.identity")
    return record


def _sha256(content: Any) -> str:
    return hashlib.sha256(canonical(content).encode()).hexdigest()


# ---- records.jsonl ----


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
