"""Cells of tables are those that were written: of published ones or nothing, of one's own or left out by name."""

import random
import re
import shutil
from pathlib import Path

import pytest
from tests.experiment.report.example import example_table

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import write_sums
from lutlab.experiment.records.frame import cells_of
from lutlab.experiment.report import csv, published
from tools.published_list import PUBLISHED

ARTIFACTS = ("lut-gemm-v3/table2", "lut-gemm-v3/table3")


def damages(whole: bytes) -> list[bytes]:
    chance = random.Random(11)
    flips = [(at, 1 << chance.randrange(8)) for at in chance.sample(range(len(whole)), 8)]
    flipped = [whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :] for at, bit in flips]
    lines = whole.splitlines(keepends=True)
    return [*flipped, b"", whole[:-9], b"\xff" + whole, b"".join(lines[:1] + lines[2:])]


def report(folder: Path) -> Path:
    """table.csv and SHA256SUMS, as write_report has them beside the other files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.csv").write_text(csv.render(example_table()))
    return write_sums(folder)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    place = tmp_path / "machine"
    of = next(path for path in sorted(PUBLISHED.iterdir()) if (path / ARTIFACTS[0]).is_dir())
    for name in ARTIFACTS:
        shutil.copytree(of / name, place / name)
    return place


@pytest.mark.parametrize("name", ["table.csv", "records.jsonl"])
def test_damage_to_what_is_published_is_refused(name: str, machine: Path) -> None:
    expected = list(cells_of(machine, published=True))
    published.seal(machine)
    path = machine / ARTIFACTS[1] / name
    whole = path.read_bytes()
    for data in [*damages(whole), (machine / ARTIFACTS[0] / name).read_bytes()]:
        path.write_bytes(data)
        for read in (
            lambda: list(cells_of(machine, published=True)),
            lambda: published.read(path.parent),
        ):
            with pytest.raises(
                LutlabError, match=rf"table3/{re.escape(name)} .*restore it with git"
            ):
                read()
    path.unlink()
    with pytest.raises(LutlabError, match=r"cannot be read .*restore it with git"):
        list(cells_of(machine, published=True))
    path.write_bytes(whole)
    assert list(cells_of(machine, published=True)) == expected


def test_a_damaged_report_is_named_and_left_out(tmp_path, caplog) -> None:
    for variant in ("one", "two"):
        report(tmp_path / "paper/table" / variant)
    expected = list(cells_of(tmp_path, published=False))
    assert {cell["variant"] for cell in expected} == {"one", "two"}
    path = tmp_path / "paper/table/two/table.csv"
    for data in damages(path.read_bytes()):
        path.write_bytes(data)
        caplog.clear()
        found = list(cells_of(tmp_path, published=False))
        assert found == [cell for cell in expected if cell["variant"] == "one"]
        assert "two/table.csv is not the file" in caplog.messages[0]
        assert "left out" in caplog.messages[0]
    report(path.parent)
    assert list(cells_of(tmp_path, published=False)) == expected


def test_tables_of_earlier_versions_are_read_and_said(tmp_path, caplog) -> None:
    sums = report(tmp_path / "paper/table/one")
    expected = list(cells_of(tmp_path, published=False))
    sums.unlink()
    assert list(cells_of(tmp_path, published=False)) == expected
    assert re.search("1 tables under .* have no SHA256SUMS", caplog.messages[-1])
    (sums.parent / "table.csv").write_bytes(b"a,b\n1,2\n")
    assert list(cells_of(tmp_path, published=False)) == []
    assert "is not a table of lutlab's" in " ".join(caplog.messages)
