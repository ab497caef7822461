"""Texts that come with every Python: the held-out slices of its documentation (data/pydocs.py)."""

from __future__ import annotations

import platform

from lutlab.data import pydocs


def read(dataset: str, limit: int | None) -> tuple[list[str], str]:
    """Rows of a slice and their origin; the documentation's words change with the Python version, so it is named."""
    return pydocs.heldout(dataset)[:limit], f"embedded: Python {platform.python_version()}"
