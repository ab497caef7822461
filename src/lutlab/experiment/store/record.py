"""A measured cell as the store keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
