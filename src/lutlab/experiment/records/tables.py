"""The cells of all tables below a results folder, each table compared with the SHA256SUMS that were written with it.

A published table that differs is refused; a report of a run of one's own is named and left out, since any run of its
command writes it again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from lutlab.errors import LutlabError
from lutlab.experiment.report import csv
from lutlab.experiment.report.published import CURE, TABLE
from lutlab.experiment.store import lines
from lutlab.kept.files import SUMS, check_file, check_sums, has_sums

log = logging.getLogger(__name__)
# Folders of a results folder that repeat what stands elsewhere.
COPIES = ("rendered", "publishing", "wandb")
# Fields that a reader of any table asks for.
_FIELDS = {"artifact", "row", "column", "metric", "verdict", "protocol", "cell_id"}


def is_original(path: Path) -> bool:
    """Whether a path from a results folder leads to no copy."""
    return not set(path.parts) & set(COPIES)


def cells_of(root: Path, published: bool) -> Iterator[dict[str, str]]:
    """The rows of every table.csv, by the names of its header, with its variant.

    Args:
        root: a results folder, or a machine's folder of published artifacts.
        published: the latter.

    Raises:
        LutlabError: files of a machine are not those of its SHA256SUMS, or a published table cannot be read.
    """
    if published and has_sums(root):
        check_sums(root, CURE)
    unsealed = []
    for table in sorted(root.rglob(TABLE)):
        has_records = (table.parent / lines.NAME).exists()
        if not is_original(table.relative_to(root)) or has_records != published:
            continue
        if not has_sums(root if published else table.parent):
            unsealed.append(table)
        try:
            yield from _parsed(table, CURE) if published else _own_cells(table)
        except LutlabError as error:
            if published:
                raise
            log.warning("%s", error)
    if unsealed:
        log.warning(
            "%d tables under %s have no %s and are taken as they are, %s first: reports of earlier versions",
            len(unsealed),
            root,
            SUMS,
            unsealed[0],
        )


def _own_cells(table: Path) -> list[dict[str, str]]:
    cure = "it is left out; the run with mode=report writes it again"
    if has_sums(table.parent):
        check_file(table.parent, table.name, cure)
    return _parsed(table, cure)


def _parsed(table: Path, cure: str) -> list[dict[str, str]]:
    try:
        found = csv.parse(table.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LutlabError(f"{table} cannot be read ({error}): {cure}") from error
    if any(not cell.keys() >= _FIELDS or None in cell.values() for cell in found):
        raise LutlabError(f"{table} is not a table of lutlab's, or damaged: {cure}")
    return [{"variant": table.parent.name} | cell for cell in found]  # a published one says it
