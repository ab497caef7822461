"""A measured cell as the store keeps it, and its JSON with a checksum."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lutlab.kept.files import Damaged


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
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged("it is not the JSON of a record") from error
    if identity is not None and content_id(identity) != record.cell_id:
        raise Damaged(f"its id {record.cell_id} is not that of its provenance.identity")
    return record


def _sha256(content: Any) -> str:
    return hashlib.sha256(canonical(content).encode()).hexdigest()
