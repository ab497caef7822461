"""Two sets of results beside each other, cell by cell: two machines, two folders, two commits of what is published."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import pandas
from lutlab.experiment.records.frame import results
from lutlab.experiment.store.provenance import NoAnswer, ask_git

# A cell of a table, whatever folder it lies in.
PLACE = ["paper", "artifact", "variant", "row", "column", "metric"]


def differ(one: str, other: str) -> pandas.DataFrame:
    """The measured cells of two results, side by side.

    Args:
        one: a folder as of `lutlab.results`, or `<commit>:<folder>`, the folder as git has it at that commit.
        other: the same.

    Returns:
        PLACE, `one` and `other` (the numbers, empty where there is none), `relative` = other / one - 1, and `machine`
        and `commit` of each, for every cell that has a number in one of them.

    Raises:
        LutlabError: no such folder or commit, nothing measured, or a damaged record.
    """
    sides = [_measured(folder) for folder in (one, other)]
    both = sides[0].merge(sides[1], on=PLACE, how="outer", suffixes=("_one", "_other"))
    both = both.rename(columns={"measured_one": "one", "measured_other": "other"})
    both["relative"] = both["other"] / both["one"] - 1
    return both.sort_values(PLACE, ignore_index=True)


def _measured(folder: str) -> pandas.DataFrame:
    with _folder_of(folder) as path:
        cells = results(path)
    measured = cells["measured"].notna() & cells["row"].notna()
    columns = [*PLACE, "measured", "machine", "commit"]
    return cells.loc[measured, columns].drop_duplicates(PLACE, keep="last")


@contextmanager
def _folder_of(name: str) -> Iterator[Path]:
    """The folder itself, or a copy of it as a commit has it."""
    commit, _, folder = name.rpartition(":")
    if not commit:
        yield Path(name)
        return
    try:
        archive = ask_git("archive", commit, folder)
    except NoAnswer as error:
        raise LutlabError(
            f"git has no {folder} at {commit}: {error}; give <commit>:<folder>, the folder from the current one, in a "
            "checkout"
        ) from error
    with tempfile.TemporaryDirectory() as copy:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(copy, filter="data")
        yield Path(copy) / folder
