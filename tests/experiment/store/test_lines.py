"""records.jsonl: the same records are the same bytes, and no damaged line passes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from tests.experiment.store.test_store import RECORD

from lutlab.base.errors import LutlabError
from lutlab.experiment.store.record import read_lines, write_lines

OTHER = dataclasses.replace(RECORD, cell_id="00ff", facts={"text": "two\nlines\u2028"})


def test_round_trip_is_exact_sorted_and_the_same_bytes(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a/records.jsonl", [RECORD, OTHER, RECORD])
    assert list(read_lines(path).items()) == [(OTHER.cell_id, OTHER), (RECORD.cell_id, RECORD)]
    again = write_lines(tmp_path / "b/records.jsonl", [OTHER, RECORD])
    assert again.read_bytes() == path.read_bytes()
    lines = [json.loads(line) for line in path.read_text().removesuffix("\n").split("\n")]
    assert [line["record"]["cell_id"] for line in lines] == [OTHER.cell_id, RECORD.cell_id]


@pytest.mark.parametrize("damage", ["truncate", "edit", "empty line", "other json"])
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    path = write_lines(tmp_path / "records.jsonl", [RECORD, OTHER])
    text = path.read_text()
    damaged = {
        "truncate": text[:-100],
        "edit": text.replace('"cell_id":"0123', '"cell_id":"3210'),
        "empty line": text + "\n",
        "other json": text + "[1, 2]\n",
    }[damage]
    assert damaged != text
    path.write_text(damaged)
    line = 2 if damage in ("truncate", "edit") else 3
    with pytest.raises(LutlabError, match=rf"records.jsonl, line {line}: .*damaged.*git"):
        read_lines(path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "records.jsonl", [RECORD])
    path.write_bytes(b"\xff" + path.read_bytes())
    with pytest.raises(
        LutlabError, match=r"records\.jsonl cannot be read .*restore the file with git"
    ):
        read_lines(path)


def test_a_cell_has_one_record(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "records.jsonl", [RECORD])
    path.write_text(path.read_text() * 2)
    with pytest.raises(LutlabError, match="line 2: cell 0123456789abcdef has a second record"):
        read_lines(path)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "records.jsonl", [RECORD])
    assert read_lines(path)[RECORD.cell_id].n == RECORD.n
    write_lines(path, [dataclasses.replace(RECORD, n=123_456)])
    assert read_lines(path)[RECORD.cell_id].n == 123_456
