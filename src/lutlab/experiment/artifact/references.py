"""experiments/references.bib: the papers, and those whose numbers they cite, by key."""

from __future__ import annotations

import functools
import re

from lutlab.errors import LutlabError, nearest
from lutlab.experiment.artifact.catalog import EXPERIMENTS


def cite(key: str) -> str:
    """`Park et al. 2023` from experiments/references.bib.

    Raises:
        LutlabError: no such entry; the message suggests the nearest one.
    """
    known = _entries()
    if key not in known:
        raise LutlabError(f"experiments/references.bib has no entry '{key}': {nearest(key, known)}")
    author = re.search(r"author\s*=\s*\{(\w+)", known[key])[1]
    year = re.search(r"year\s*=\s*\{(\d+)", known[key])[1]
    several = " et al." if " and " in known[key] else ""
    return f"{author}{several} {year}"


@functools.cache
def _entries() -> dict[str, str]:
    """Key -> fields, as they are written."""
    bibliography = (EXPERIMENTS / "references.bib").read_text(encoding="utf-8")
    found = re.findall(r"@\w+\{([^,\s]+),(.*?)^\}", bibliography, re.DOTALL | re.MULTILINE)
    return dict(found)
