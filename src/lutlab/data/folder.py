"""Data sets as files under one folder, laid out as docs/data-layout.md says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lutlab.data.files import read_rows
from lutlab.errors import LutlabError

_C4 = "c4/en/c4-validation.00000-of-00008"
# (data set, split) -> file names, the first that exists is read
FILES = {
    ("wikitext2", "test"): ("wikitext2/wiki.test.raw",),
    ("ptb", "validation"): ("ptb/ptb.valid.txt",),
    ("ptb", "test"): ("ptb/ptb.test.txt",),
    ("c4", "validation"): (f"{_C4}.json.gz", f"{_C4}.json", f"{_C4}.jsonl"),
    ("lambada", "test"): ("lambada/lambada_test.jsonl",),
    ("lambada-standard", "test"): ("lambada/lambada_test_plain_text.txt",),
}


def read(dataset: str, split: str, root: str | None, limit: int | None) -> tuple[list[str], str]:
    """Rows as the hub's copy of the data set gives them, and their origin.

    Raises:
        LutlabError: no root, no such folder, no such file, or a damaged one.
    """
    wanted = FILES[dataset, split]
    if root is None:
        raise LutlabError(
            f"data.source=folder needs data.root=<folder>: a folder that holds {wanted[0]} (docs/data-layout.md)"
        )
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise LutlabError(
            f"data.root={root} is not a folder (looked at {folder.resolve()})\n"
            f"give the folder that holds {wanted[0]}; docs/data-layout.md lists all files, data.source=hub needs none"
        )
    path = next((folder / name for name in wanted if (folder / name).is_file()), None)
    if path is None:
        raise LutlabError(
            f"{dataset} ({split}) is missing: there is no {' and no '.join(wanted)} under {folder.resolve()}\n"
            "docs/data-layout.md says where to fetch it; data.source=hub downloads it"
        )
    rows = read_rows(path, "text", limit)
    return list(map(_HUB_ROW.get(dataset, str), rows)), f"folder: {path.relative_to(folder)}"


def _wikitext_row(line: str) -> str:
    """wikitext-2-raw-v1: a line keeps its line end, a line of one space is an empty row."""
    return f"{line}\n" if line.strip() else ""


_HUB_ROW: dict[str, Callable[[str], str]] = {"wikitext2": _wikitext_row, "ptb": str.strip}
