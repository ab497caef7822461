"""Render what is published: `make report`, or `python -m tools.render [--only <pattern>]`.

    results/rendered/<machine>/<paper>/<artifact>/<variant>/{table.md,csv,tex,html, figure.png,svg}

Every number comes from the records of the published artifact; nothing is measured, and no model or text is read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from lutlab.base.errors import LutlabError
from lutlab.experiment.report import published, write_report
from lutlab.experiment.run.ending import ended
from tools.published_list import PUBLISHED, read_list

RENDERED = Path("results") / "rendered"


def render(only: str = "*", machine: str = "*") -> list[Path]:
    """Write the reports of the published artifacts and machines that match the patterns; returns their folders.

    Raises:
        LutlabError: nothing matches, or a published file is damaged.
    """
    commands = {(v.artifact, v.name): v.command for v in read_list()}
    written = []
    for path in sorted(PUBLISHED.glob(f"*/*/*/{published.TABLE}")):
        artifact = path.parent.relative_to(PUBLISHED)
        own, name = artifact.parts[0], "/".join(artifact.parts[1:])
        if not (fnmatchcase(name, only) and fnmatchcase(own, machine)):
            continue
        mine = {variant: line for (of, variant), line in commands.items() if of == name}
        for variant, table in published.read(path.parent).tables(mine).items():
            folder = RENDERED / artifact / variant
            write_report(table, folder)
            written.append(folder)
    if not written:
        raise LutlabError(
            f"nothing under {PUBLISHED} matches --only '{only}' --machine '{machine}': give patterns of "
            "<paper>/<artifact> and of a machine's folder"
        )
    return written


def rewrite(only: str = "*", machine: str = "*") -> list[Path]:
    """Write page and table of published artifacts anew from their records; returns the artifacts' folders.

    Raises:
        LutlabError: nothing matches, or a published file is damaged.
    """
    commands: dict[str, dict[str, str]] = {}
    for variant in read_list(only):
        commands.setdefault(variant.artifact, {})[variant.name] = variant.command
    found = {
        table.parent: own
        for artifact, own in commands.items()
        for table in sorted(PUBLISHED.glob(f"{machine}/{artifact}/{published.TABLE}"))
    }
    if not found:
        raise LutlabError(f"nothing of --only '{only}' is published under {PUBLISHED}/{machine}")
    for folder, own in found.items():
        published.write(published.read(folder), folder, own)
        published.seal(folder.parents[1])
    return list(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code: 0, or 2 for a mistake."""
    parser = argparse.ArgumentParser(prog="tools.render", description=__doc__)
    parser.add_argument("--only", default="*", help="pattern of <paper>/<artifact>")
    parser.add_argument("--machine", default="*", help="pattern of the machine's folder")
    given = parser.parse_args(arguments)
    return ended(lambda: print(*render(given.only, given.machine), sep="\n"))


if __name__ == "__main__":
    sys.exit(main())
