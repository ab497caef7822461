"""Ids, axes and commands of what is published, --help and the messages of mistakes are those of the files beside this.

A message may get better: `python -m tests.gate.hold` then writes the files anew, and the diff is for the reviewer.
"""

from __future__ import annotations

import pytest
from tests.gate import hold
from tests.hostile.typed import scratch

LINES = hold.MISTAKES.read_text(encoding="utf-8").split("$ ")[1:]
PARTS = 8


def test_every_published_id_is_what_todays_rule_makes_of_its_row() -> None:
    found = {record.cell_id: hold.recomputed(record) for _, own in hold.records() for record in own}
    assert len(found) > 2000
    assert {cell: hold.content_id(identity) for cell, identity in found.items()} == {
        cell: cell for cell in found
    }


def test_axes_and_commands_are_the_same() -> None:
    assert hold.rows() == hold.ROWS.read_text(encoding="utf-8"), "compare commits by hold --whole"


def test_help_is_the_same() -> None:
    assert hold.help_text() == hold.HELP.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))]
)
def test_mistakes_are_said_as_before(part: int) -> None:
    with scratch():
        for known in LINES[part::PARTS]:
            line = known.partition("\n")[0]
            assert f"{line}\n{hold.message(line)}" == known


def test_there_are_two_hundred_mistakes() -> None:
    assert len(LINES) >= 200
    assert all(known.splitlines()[1] == "2" for known in LINES)
