"""Render what is published: `make report`, or `python -m tools.render [--only <pattern>]`.

    results/rendered/<machine>/<paper>/<artifact>/<variant>/{table.md,csv,tex,html, figure.png,svg}

Every number comes from the records of the published artifact; nothing is measured, and no model or text is read.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from lutlab.base.errors import LutlabError
from lutlab.experiment.plan.resolve import NO_TEXT, obstacles
from lutlab.experiment.report import published, write_report
from lutlab.experiment.report.compare import NOT_YET
from lutlab.experiment.report.published import Published
from lutlab.experiment.row import sweeping
from lutlab.experiment.run.cli import composing
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
        as_published = published.read(folder)
        cells = {
            name: with_reasons(cells, reasons(as_published, name, own[name]))
            for name, cells in as_published.cells.items()
        }
        published.write(dataclasses.replace(as_published, cells=cells), folder, own)
        published.seal(folder.parents[1])
    for of_machine in PUBLISHED.glob(f"{machine}/"):
        published.seal(of_machine)  # benchmarks write there, too
    return list(found)


def reasons(of: Published, variant: str, command: str) -> dict[tuple[str, str], str]:
    """Row and column of a variant -> why today's code does not measure it on the kind of machine that measured it.

    Raises:
        LutlabError: the artifact no longer takes the command.
    """
    device = "cuda" if any(r.provenance.get("gpu") for r in of.records_of([variant])) else "cpu"
    _, _, line = command.partition("+exp=")
    with composing() as compose:
        (request,) = sweeping.parse([f"+exp={of.artifact}", *shlex.split(line)[1:]])
        assert request.artifact, "its name is that of a table"
        empty = {cell["row"] for cell in of.cells[variant] if not cell["cell_id"]}
        rows = [r for r in sweeping.rows_of(request, compose(request.arguments)) if r.key in empty]
        by_cell = {}
        for row in rows:
            fixed = any(override.startswith("device=") for override in row.overrides)
            own = compose([*row.overrides, *([] if fixed else [f"device={device}"])])
            reasons_of_row = obstacles(own, request.artifact.columns_of(row))
            by_cell |= {(row.key, column): reason for column, reason in reasons_of_row.items()}
        return by_cell


def with_reasons(
    cells: Sequence[Mapping[str, str]], today: Mapping[tuple[str, str], str]
) -> list[dict[str, str]]:
    """The cells of a table, those without a record with today's reason; a text that was not there stays so."""
    return [
        dict(cell)
        if cell["cell_id"] or cell["note"].startswith(NO_TEXT)
        else {
            **cell,
            "verdict": "not run",
            "note": today.get((cell["row"], cell["column"]), NOT_YET),
        }
        for cell in cells
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code: 0, or 2 for a mistake."""
    parser = argparse.ArgumentParser(prog="tools.render", description=__doc__)
    parser.add_argument("--only", default="*", help="pattern of <paper>/<artifact>")
    parser.add_argument("--machine", default="*", help="pattern of the machine's folder")
    given = parser.parse_args(arguments)
    return ended(lambda: print(*render(given.only, given.machine), sep="\n"))


if __name__ == "__main__":
    sys.exit(main())
