"""Texts that come with every Python: its documentation (data/pydocs.py), held out or not, and items made of it."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable

from lutlab.data import continuations, missing_word, pydocs

# data set -> its rows
READERS: dict[str, Callable[[], list[str]]] = {
    **{name: functools.partial(pydocs.heldout, name) for name in pydocs.SLICES},
    "pydocs-train": pydocs.train_documents,
    "continuations": continuations.rows,
    "missing-word": functools.partial(missing_word.evaluated, "docstrings"),
    "missing-word-mismatched": functools.partial(missing_word.evaluated, "topics"),
    "missing-word-train": missing_word.trained,
}


def read(dataset: str, limit: int | None) -> tuple[list[str], str]:
    """Rows of a data set and their origin; the documentation's words change with the Python version, so it is named."""
    return READERS[dataset]()[:limit], f"embedded: Python {platform.python_version()}"
