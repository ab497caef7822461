"""Ids, axes and commands of published records, the page of --help, messages of mistaken lines: as text, to compare.

python -m tests.gate.hold            writes the files beside this one anew; git diff then shows what moved
python -m tests.gate.hold --whole F  writes every record's axes and command to F, to compare two commits by diff
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tests.conftest import ROOT
from tests.hostile.typed import scratch, typed

from lutlab.data.protocols import protocol
from lutlab.experiment.plan import ids
from lutlab.experiment.plan.ids import Resolved
from lutlab.experiment.plan.resolve import LABELLED
from lutlab.experiment.row.spelling import axes, evaluation_from, overrides_of, run_from
from lutlab.experiment.run.cli import help_page, short_page
from lutlab.experiment.store.record import Record, canonical, content_id, read_lines

HERE = Path(__file__).parent
PUBLISHED = ROOT / "results" / "published"
ROWS, HELP, MISTAKES = HERE / "rows.txt", HERE / "help.txt", HERE / "mistakes.txt"


def records() -> Iterator[tuple[str, list[Record]]]:
    """Folder below results/published and its records."""
    for path in sorted(PUBLISHED.glob("*/*/*/records.jsonl")):
        yield path.parent.relative_to(PUBLISHED).as_posix(), list(read_lines(path).values())


def recomputed(record: Record) -> dict[str, Any]:
    """What today's code would hash for a record's row: hashes, versions and machine are those that the record names.

    So only the rule is compared: which fields, components and defaults make an id.
    """
    run, evaluation = run_from(record.run), evaluation_from(record.evaluation)
    known = record.provenance["identity"]
    components, said = known["components"], known["run"]
    texts = {evaluation.text: known["text"]["sha256"]} if evaluation.text else {}
    calibration = getattr(run, "calibration", None)
    if calibration:
        texts[calibration.text] = said["calibration"]["text"]
    row = Resolved(
        run,
        {"only": evaluation},
        texts=texts,
        model=said.get("model", ""),
        formats=tuple(n.partition("/")[2] for n in components if n.startswith("format/")),
        speeds={evaluation: known["speed"]} if "speed" in known else {},
        labelled=bool(calibration) and protocol(calibration.text.protocol).kind == LABELLED,
    )
    with (
        mock.patch.object(ids, "libraries", return_value=known["libraries"]),
        mock.patch.object(ids, "versions", lambda *names: {n: components.get(n) for n in names}),
    ):
        return ids.cell_identity(row, evaluation)


def held(record: Record) -> dict[str, Any]:
    """A record's id by today's rule, its axes, and the command that its page prints."""
    run, evaluation = run_from(record.run), evaluation_from(record.evaluation)
    return {
        "cell": record.cell_id,
        "axes": axes(run, evaluation),
        "command": overrides_of(run, evaluation, record.provenance.get("threads")),
    }


def rows() -> str:
    """A line a published artifact: how many records, digests of their axes and of their commands."""
    found = []
    for folder, own in records():
        rows = [held(record) for record in own]
        digests = (content_id([row[name] for row in rows]) for name in ("axes", "command"))
        found.append(f"{folder} {len(own)} {' '.join(digests)}\n")
    return "".join(found)


def help_text() -> str:
    """The pages of --help and --help all, 120 columns wide."""
    with mock.patch.dict(os.environ, {"COLUMNS": "120"}):
        return f"{short_page()}\n\n{help_page()}\n"


def mistaken() -> list[str]:
    """The command lines of mistakes.txt."""
    text = MISTAKES.read_text(encoding="utf-8")
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


def message(line: str) -> str:
    """How a line ends: its exit code, what it says; the current directory is called here."""
    ended = typed(json.loads(f"[{line}]"))
    text = ended.err.replace(str(Path.cwd()), "<here>").replace(str(ROOT), "<checkout>")
    return f"{ended.code}\n" + re.sub(r"(?m)^", "    ", text.rstrip()) + "\n"


def mistakes() -> str:
    """Every line of mistakes.txt with its message."""
    with scratch():
        return "".join(f"$ {line}\n{message(line)}" for line in mistaken())


def _command() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--whole", type=Path)
    given = parser.parse_args()
    if given.whole:
        found = [held(record) for _, own in records() for record in own]
        given.whole.write_text("".join(canonical(one) + "\n" for one in found), encoding="utf-8")
        return
    for path, text in ((ROWS, rows()), (HELP, help_text()), (MISTAKES, mistakes())):
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _command()
