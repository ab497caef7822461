"""Files that a results folder can do without: finished blocks, calibration inputs, failed or stale records."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lutlab.errors import LutlabError, nearest
from lutlab.experiment.records.stale import moved
from lutlab.experiment.store.store import Store

KINDS = ("quantized", "calibration", "failed", "stale")


@dataclass(frozen=True)
class Prunable:
    """One kind of things that may go: their paths, and bytes on disk."""

    kind: str
    paths: tuple[Path, ...]
    bytes: int


def prunable(results: Path, kinds: Sequence[str]) -> list[Prunable]:
    """Prunable files of a results folder, by kind; nothing is removed.

    Args:
        results: a `results=` folder.
        kinds: some of KINDS. quantized, calibration: finished blocks and the inputs of their layers, which a run that
            goes on would make again; failed: records of failed tries; stale: records that today's code would not find.

    Raises:
        LutlabError: no such folder or kind, published artifacts, or a damaged record.
    """
    if not results.is_dir():
        raise LutlabError(f"no folder {results}: give a results= folder")
    store = Store(results)
    store.check_writable()
    return [_found(store, kind) for kind in kinds]


def remove(found: Prunable) -> None:
    """Remove prunable files."""
    for path in found.paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _found(store: Store, kind: str) -> Prunable:
    if kind not in KINDS:
        raise LutlabError(f"unknown kind '{kind}': {nearest(kind, KINDS)}")
    if kind in ("quantized", "calibration"):
        folder = store.root / kind
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
    else:
        records = store.all().values()
        goes = (r.status != "done" if kind == "failed" else bool(moved(r)) for r in records)
        paths = [store.path(r.cell_id) for r, one in zip(records, goes, strict=True) if one]
    return Prunable(kind, tuple(paths), sum(map(_bytes, paths)))


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
