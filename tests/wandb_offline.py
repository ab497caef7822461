"""Reads an offline Weights & Biases run back from disk, since wandb itself offers no reader any more.

A `.wandb` file is a 7-byte header and LevelDB log records (crc 4, length 2, type 1, data) in blocks of 32 KiB; a record
that crosses a block is split into first, middle and last parts (types 2, 3, 4; whole: 1). Tables lie beside it as JSON.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7
WHOLE, FIRST, LAST = 1, 2, 4
# Versions of wandb whose files this reader was written for, first and last tried.
READABLE = ((0, 22), (0, 31))


@dataclass
class OfflineRun:
    """Everything that a run has said of itself."""

    id: str = ""
    name: str = ""
    group: str = ""
    job_type: str = ""
    project: str = ""
    tags: tuple[str, ...] = ()
    exit_code: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)  # pattern of metrics -> their step metric
    history: list[dict[str, Any]] = field(default_factory=list)
    # Artifacts other than tables -> where they lie.
    files: dict[str, str] = field(default_factory=dict)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)


def readable(version: str) -> bool:
    major, minor = (int(part) for part in version.split(".")[:2])
    return READABLE[0] <= (major, minor) <= READABLE[1]


def read_runs(folder: Path, patience_s: float = 20.0) -> list[OfflineRun]:
    """All runs below `folder`; wandb's own process writes the end of a finished run a moment later, so wait for it."""
    until = time.monotonic() + patience_s
    while True:
        runs = [read_run(path) for path in sorted(folder.rglob("*.wandb"))]
        if all(run.exit_code is not None for run in runs) or time.monotonic() > until:
            return runs
        time.sleep(0.05)


def read_run(path: Path) -> OfflineRun:
    from wandb.proto import wandb_internal_pb2

    run = OfflineRun()
    for data in chunks(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.id = record.run.run_id
            run.name, run.group = record.run.display_name, record.run.run_group
            run.job_type, run.project = record.run.job_type, record.run.project
            run.tags = tuple(record.run.tags)
            run.config |= _items(record.run.config.update)
        elif kind == "config":
            run.config |= _items(record.config.update)
        elif kind == "summary":
            run.summary |= _items(record.summary.update)
        elif kind == "metric":
            run.steps[record.metric.glob_name or record.metric.name] = record.metric.step_metric
        elif kind == "history":
            run.history.append(_items(record.history.item))
        elif kind == "artifact" and record.artifact.type != "run_table":
            run.files |= {f.path: f.local_path for f in record.artifact.manifest.contents}
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    run.config.pop("_wandb", None)
    for table in path.parent.glob("files/media/table/*.table.json"):
        run.tables[table.name.split("_")[0]] = json.loads(table.read_text(encoding="utf-8"))
    return run


def chunks(data: bytes) -> Iterator[bytes]:
    """The payloads of a LevelDB log."""
    offset, collected = HEADER, b""
    while offset + HEADER <= len(data):
        left = BLOCK - offset % BLOCK
        if left < HEADER:
            offset += left
            continue
        _, length, kind = struct.unpack("<IHB", data[offset : offset + HEADER])
        if kind == 0 and length == 0:  # padding to the end of the block
            offset += left
            continue
        part = data[offset + HEADER : offset + HEADER + length]
        offset += HEADER + length
        collected = part if kind in (WHOLE, FIRST) else collected + part
        if kind in (WHOLE, LAST):
            yield collected


def _items(updates: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in updates}
