"""A measured cell as the store keeps it, and its JSON with a checksum."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lutlab.digests import Damaged


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


def encode(record: Record) -> dict[str, Any]:
    """The record as JSON values beside the SHA-256 of their canonical spelling."""
    content = dataclasses.asdict(record) | {"samples": list(record.samples)}
    content = json.loads(canonical(content))  # as it will be read back
    return {"sha256": _sha256(content), "record": content}


def decode(text: str) -> Record:
    """The record of a JSON text that `encode` made.

    Raises:
        Damaged: it is not JSON, not a record, or not the one whose checksum it has.
    """
    try:
        stored = json.loads(text)
        content, digest = stored["record"], stored["sha256"]
        if digest != _sha256(content):
            raise Damaged("its checksum does not match")
        return Record(**content | {"samples": tuple(content["samples"])})
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged("it is not the JSON of a record") from error


def _sha256(content: Any) -> str:
    return hashlib.sha256(canonical(content).encode()).hexdigest()
