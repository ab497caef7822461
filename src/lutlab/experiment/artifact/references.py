"""The papers that artifacts cite: references.bib of experiments/ and of a user's folder."""

from __future__ import annotations

import re

from lutlab.errors import LutlabError
from lutlab.experiment.artifact.catalog import bibliographies


def cite(key: str) -> str:
    """`Park et al. 2023` from experiments/references.bib, or that of a user's folder.

    Raises:
        LutlabError: no such entry.
    """
    files = bibliographies()
    every = "\n".join(path.read_text(encoding="utf-8") for path in files)
    entry = re.search(rf"@\w+\{{{re.escape(key)},(.*?)^\}}", every, re.DOTALL | re.MULTILINE)
    if entry is None:
        raise LutlabError(f"no entry '{key}' in {' or '.join(map(str, files))}")
    author = re.search(r"author\s*=\s*\{(\w+)", entry[1])[1]
    year = re.search(r"year\s*=\s*\{(\d+)", entry[1])[1]
    several = " et al." if " and " in entry[1] else ""
    return f"{author}{several} {year}"
