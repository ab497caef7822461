"""Data sets as files under one folder, laid out as docs/data-layout.md says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from lutlab.base.errors import LutlabError, MissingTextError
from lutlab.data.choices import ITEMS
from lutlab.data.files import each, parsed, read_rows
from lutlab.data.protocols import protocol
from lutlab.data.splits import SPLITS

_LABELS = "valid-labels.lst"  # PIQA's right answers, a line each, beside its questions
# calibration protocol -> the one read instead, under its own name, where a folder lacks the first one's large file
STAND_INS = {
    "c4-train": "c4-train-first1000",
    "wikitext2-train": "wikitext103-train-head",
    "mnli-train": "mnli-train-subset",
}


def resolve(name: str, root: str) -> str:
    """The protocol to read under `root` for protocol `name`: itself, unless only its stand-in's file is there."""
    instead = STAND_INS.get(name)
    folder = Path(os.path.expanduser(root))
    return instead if instead and _find(instead, folder) and not _find(name, folder) else name


def _find(name: str, folder: Path) -> Path | None:
    """The first file of protocol `name` that exists in `folder`."""
    rule = protocol(name)
    return _first(folder, SPLITS[rule.dataset, rule.split].files)


def _first(folder: Path, names: Iterable[str]) -> Path | None:
    """The first that is there, also as something that cannot be read: its reader says so."""
    return next((folder / name for name in names if os.path.lexists(folder / name)), None)


def read(dataset: str, split: str, root: str | None, limit: int | None) -> tuple[list[str], str]:
    """Rows as the hub's copy of the data set gives them, and their origin.

    Raises:
        MissingTextError: no such file.
        LutlabError: no root, no such folder, or a damaged file.
    """
    names = SPLITS[dataset, split].files
    if root is None:
        raise LutlabError(
            f"data.source=folder needs data.root=<folder>: a folder that holds {names[0]} (docs/data-layout.md)"
        )
    folder = Path(os.path.expanduser(root))
    if not os.path.isdir(folder):  # unlike Path's, False also of a name that is too long
        raise LutlabError(
            f"data.root={root} is not a folder (looked at {os.path.abspath(folder)})\n"
            f"give the folder that holds {names[0]}; docs/data-layout.md lists all files, data.source=hub needs none"
        )
    path = _first(folder, names)
    if path is None:
        raise MissingTextError(
            f"{dataset} ({split}) is missing: there is no {' and no '.join(names)} under {folder.resolve()}\n"
            "docs/data-layout.md says where to fetch it; data.source=hub downloads it"
        )
    rows = read_rows(path, None if dataset in ITEMS else "text", limit)
    if dataset == "piqa":
        rows = _labelled(rows, path)
    return list(map(_HUB_ROW.get(dataset, str), rows)), f"folder: {path.relative_to(folder)}"


def _wikitext_row(line: str) -> str:
    """wikitext-2-raw-v1: a line keeps its line end, a line of one space is an empty row."""
    return f"{line}\n" if line.strip() else ""


def _labelled(rows: list[str], path: Path) -> list[str]:
    """PIQA's records with the labels that are published in a file of their own."""
    beside = path.with_name(_LABELS)
    labels = each(_label, read_rows(beside, "label"), str(beside), "is no answer of piqa")
    if len(labels) != len(rows):
        raise LutlabError(
            f"{path} has {len(rows)} questions and {_LABELS} beside it {len(labels)} answers: they do not belong "
            "together; fetch both again, see docs/data-layout.md"
        )
    answers = iter(labels)
    return each(
        lambda row: json.dumps(parsed(row) | {"label": next(answers)}),
        rows,
        str(path),
        "is no question of piqa",
    )


def _label(row: str) -> str:
    if row not in ("0", "1"):
        raise ValueError(f"{row!r} is neither 0 nor 1")
    return row


_HUB_ROW: dict[str, Callable[[str], str]] = {
    "wikitext2": _wikitext_row,
    "wikitext103": _wikitext_row,
    "ptb": str.strip,
}
