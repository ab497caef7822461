"""The papers that artifacts cite: references.bib of experiments/ and of a user's folder."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from lutlab.errors import LutlabError, nearest
from lutlab.experiment.artifact.catalog import bibliographies


def cite(key: str) -> str:
    """`Park et al. 2023` from experiments/references.bib, or that of a user's folder.

    Raises:
        LutlabError: no such entry; the message suggests the nearest one.
    """
    files = bibliographies()
    known = {key: fields for path in files for key, fields in _entries(path)}
    if key not in known:
        places = " or ".join(map(str, files))
        raise LutlabError(f"no entry '{key}' in {places}: {nearest(key, known)}")
    author = re.search(r"author\s*=\s*\{(\w+)", known[key])[1]
    year = re.search(r"year\s*=\s*\{(\d+)", known[key])[1]
    several = " et al." if " and " in known[key] else ""
    return f"{author}{several} {year}"


@functools.cache
def _entries(path: Path) -> tuple[tuple[str, str], ...]:
    """Key and fields, as they are written, of each entry."""
    text = path.read_text(encoding="utf-8")
    return tuple(re.findall(r"@\w+\{([^,\s]+),(.*?)^\}", text, re.DOTALL | re.MULTILINE))
