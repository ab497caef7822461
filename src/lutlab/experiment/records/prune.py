"""What a results folder can do without: finished blocks, calibration inputs, failed or stale records.

A stale record is one that this code would not make: components, libraries or kernels moved since it was measured.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from lutlab.base import registry
from lutlab.base.errors import LutlabError, nearest
from lutlab.experiment.store.components import kernels_fingerprint, version
from lutlab.experiment.store.provenance import libraries
from lutlab.experiment.store.record import Record
from lutlab.experiment.store.store import Store

KINDS = ("quantized", "calibration", "failed", "stale")


def prunable(results: Path, kinds: Sequence[str]) -> dict[str, list[Path]]:
    """Prunable files and folders of a results folder, by kind; nothing is removed.

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
    return {kind: _of_kind(store, kind) for kind in kinds}


def remove(paths: Iterable[Path]) -> None:
    """Remove files and folders."""
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def size(paths: Iterable[Path]) -> int:
    """Bytes of files and folders on disk."""
    files = [file for path in paths for file in (path, *path.rglob("*")) if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _of_kind(store: Store, kind: str) -> list[Path]:
    if kind not in KINDS:
        raise LutlabError(f"unknown kind '{kind}': {nearest(kind, KINDS)}")
    if kind in ("quantized", "calibration"):
        folder = store.root / kind
        return sorted(folder.iterdir()) if folder.is_dir() else []
    return [
        store.path(record.cell_id)
        for record in store.all().values()
        if (record.status != "done" if kind == "failed" else moved(record))
    ]


def moved(record: Record) -> list[str]:
    """Reasons why a run of today names this record's cell otherwise; none: it is found again.

    `evaluator/ppl 1 -> 2`, `torch 2.13 -> 2.14`, and of a speed `kernels of cpu`. Models, texts and machines are not
    looked at: only code and libraries.
    """
    identity = record.provenance.get("identity")
    if identity is None:
        return ["no identity: it was measured before ids were kept"]
    return list(_moved(record, identity))


def _moved(record: Record, identity: dict[str, Any]) -> Iterator[str]:
    for name, then in identity["components"].items():
        now = _version(name)
        if str(then).partition("+")[0] != str(now):  # a user's class has its fingerprint after it
            yield f"{name} {then} -> {now if now is not None else 'gone'}"
    decides = [("evaluator", record.evaluation["evaluator"]), ("method", record.run["method"])]
    classes = [registry.classes(kind).get(name) for kind, name in decides]
    used = {"torch", *(library for cls in classes if cls for library in cls.libraries)}
    for name, then in identity["libraries"].items():
        installed = _installed(name) if name in used else "not asked for"
        if installed not in (None, then):
            yield f"{name} {then} -> {installed}"
    if "speed" in identity:
        device = record.run["device"].partition(":")[0]
        if identity["speed"]["kernels"] != kernels_fingerprint(device):
            yield f"kernels of {device}"


def _installed(name: str) -> str | None:
    """The version of a library as ids hold it; None where it is not here, so that its cells are not run."""
    try:
        return libraries(name)[name]
    except PackageNotFoundError:
        return None


def _version(name: str) -> int | None:
    """The version of a component; None where this lutlab does not have it."""
    try:
        return version(name)
    except (LutlabError, KeyError):
        return None
