"""Artifacts by name: a file experiments/<paper>/<artifact>.yaml is a choice of `+exp=` by being there.

A user's own folder (`experiments=<folder>`) is added to lutlab's by add_folder, for the whole process. The papers that
artifacts cite are in the references.bib of each.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

from lutlab.base import sources
from lutlab.base.errors import LutlabError, nearest

EXPERIMENTS = sources.folder("experiments")
LEAD_PAPER = "lut-gemm-v3"  # its artifacts have short names: +exp=table4
_folders = [EXPERIMENTS]


def add_folder(folder: Path) -> None:
    """Make the artifacts of a user's folder choices of `+exp=` too; adding it again changes nothing.

    Raises:
        LutlabError: no such folder, no artifact in it, or one whose name exists already.
    """
    folder = folder.expanduser().resolve()
    if folder in _folders:
        return
    if not folder.is_dir():
        raise LutlabError(
            f"experiments={folder}: no such folder; give one with <paper>/<artifact>.yaml files"
        )
    files = sorted(folder.glob("*/*.yaml"))
    if not files:
        raise LutlabError(
            f"experiments={folder} has no file <paper>/<artifact>.yaml, which would be its artifacts"
        )
    known = artifacts()
    for path in files:
        if taken := known.get(long_name(path)):
            raise LutlabError(
                f"the artifact {long_name(path)} is in two files: {taken} and {path}; rename yours"
            )
    _folders.append(folder)


def artifacts() -> dict[str, Path]:
    """Every choice of +exp: `<paper>/<artifact>`, and the lead paper's artifacts by short name too."""
    files = [path for folder in _folders for path in sorted(folder.glob("*/*.yaml"))]
    by_name = {long_name(path): path for path in files}
    lead = {p.stem: p for name, p in by_name.items() if name.startswith(f"{LEAD_PAPER}/")}
    return by_name | lead


def artifact_groups() -> dict[str, list[str]]:
    """`all` and `<paper>/all` -> the artifacts they run, by long name."""
    names = [name for name in artifacts() if "/" in name]
    papers = sorted({name.partition("/")[0] for name in names})
    by_paper = {f"{paper}/all": [n for n in names if n.startswith(f"{paper}/")] for paper in papers}
    return {"all": names, **by_paper}


def long_name(path: Path) -> str:
    """Long name of an artifact's file: experiments/lut-gemm-v3/table4.yaml -> lut-gemm-v3/table4."""
    return f"{path.parent.name}/{path.stem}"


def program() -> str:
    """Command by which lutlab was called; where that was no command, `python run.py` in a checkout, else `lutlab`."""
    called = Path(sys.argv[0])
    typed = called.stem == "lutlab" or (called.stem, called.parent.name) == ("__main__", "lutlab")
    if called.name == "run.py" and not typed:
        return f"python {called}"
    return "python run.py" if sources.checkout() == Path.cwd() and not typed else "lutlab"


def short_name(artifact: str) -> str:
    """An artifact as a reader types it: the lead paper's without their paper."""
    paper, _, name = artifact.partition("/")
    return name if paper == LEAD_PAPER else artifact


def cite(key: str) -> str:
    """`Park et al. 2023` from experiments/references.bib, or that of a user's folder.

    Raises:
        LutlabError: no such entry (the message suggests the nearest one), or one without author or year.
    """
    files = [path for folder in _folders if (path := folder / "references.bib").is_file()]
    known = {key: fields for path in files for key, fields in _entries(path)}
    if key not in known:
        places = " or ".join(map(str, files))
        raise LutlabError(f"no entry '{key}' in {places}: {nearest(key, known)}")
    author = re.search(r"author\s*=\s*\{(\w+)", known[key])
    year = re.search(r"year\s*=\s*\{(\d+)", known[key])
    if not (author and year):
        raise LutlabError(f"the entry '{key}' needs an author = {{…}} and a year = {{…}}")
    several = " et al." if " and " in known[key] else ""
    return f"{author[1]}{several} {year[1]}"


@functools.cache
def _entries(path: Path) -> tuple[tuple[str, str], ...]:
    """Key and fields, as they are written, of each entry."""
    text = path.read_text(encoding="utf-8")
    return tuple(re.findall(r"@\w+\{([^,\s]+),(.*?)^\}", text, re.DOTALL | re.MULTILINE))
