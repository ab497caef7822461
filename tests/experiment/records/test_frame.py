"""`lutlab.results`: a row a cell, with every axis; of tables that are as they were written, or refused or left out."""

import random
import re

import pytest
from tests.base.refusals import refused
from tests.experiment.report.example import example_table

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import write_sums
from lutlab.experiment.records import frame
from lutlab.experiment.records.frame import cells_of
from lutlab.experiment.report import csv, published
from lutlab.experiment.store.record import LINES, read_lines
from tools.published_list import PUBLISHED

TABLE4 = "lut-gemm-v3/table4"


def test_every_published_cell_is_a_row_with_the_number_of_its_record(published):
    machine = next(path for path in sorted(PUBLISHED.iterdir()) if (path / TABLE4).is_dir())
    records = read_lines(machine / TABLE4 / LINES)
    mine = published[(published.artifact == "table4") & (published.paper == "lut-gemm-v3")]
    mine = mine[(mine.machine == machine.name) & (mine.metric == "ppl") & mine.measured.notna()]
    assert len(mine) > 30
    for row in mine.itertuples():
        assert row.measured == records[row.cell_id].values["ppl"]
        assert row.commit == records[row.cell_id].provenance["git_commit"]
        assert f"method={row.method}" in row.command
    paper = mine[(mine.row == "opt-30b/q4_g32") & (mine.column == "wiki2")]
    assert set(paper.published) == {9.71}
    assert set(paper.source) == {"LUT-GEMM v3, Table 4"} or paper.source.notna().all()


def test_a_cell_of_two_artifacts_has_in_each_the_record_published_with_it(published):
    measured = published[published.commit.notna()]
    assert (measured.groupby("cell_id").commit.nunique() > 1).any()
    for name, rows in measured.groupby(["machine", "paper", "artifact"]):
        own = read_lines(PUBLISHED.joinpath(*name) / LINES)
        assert [own[cell].provenance["git_commit"] for cell in rows.cell_id] == list(rows.commit)


def test_rows_are_told_apart_by_their_axes(published):
    axes = {"q", "g", "method.variant", "calibration.samples", "data.limit"}
    assert axes <= set(published.columns)
    assert published[published.method == "rtn"]["method.variant"].notna().all()
    assert published[published.method == "none"]["method.variant"].isna().all()


def test_claims_are_counted_as_on_the_page(copied, tmp_path):
    copied(tmp_path, TABLE4)
    claims = frame.claims(tmp_path)
    mine = claims[(claims.paper + "/" + claims.artifact == TABLE4) & (claims.variant == "embedded")]
    assert (mine.hold <= mine.decidable).all()
    assert mine.published_decidable.sum() > 0


def test_what_others_published_is_shown_where_it_is_asked_for(copied, tmp_path):
    copied(tmp_path / "published", TABLE4)
    refused("has the authors' numbers", lutlab.results, tmp_path)
    shown = lutlab.results(tmp_path, published=True)
    assert len(shown) == len(lutlab.results(tmp_path / "published"))


@pytest.mark.parametrize(
    ("name", "message"), [(".", "run a table or a sweep first"), ("none", "no folder")]
)
def test_nothing_measured_is_an_error_that_says_what_to_do(name, message, tmp_path):
    refused(message, lutlab.results, tmp_path / name)


ARTIFACTS = ("lut-gemm-v3/table2", "lut-gemm-v3/table3")


def damages(whole: bytes) -> list[bytes]:
    chance = random.Random(11)
    flips = [(at, 1 << chance.randrange(8)) for at in chance.sample(range(len(whole)), 8)]
    flipped = [whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :] for at, bit in flips]
    lines = whole.splitlines(keepends=True)
    return [*flipped, b"", whole[:-9], b"\xff" + whole, b"".join(lines[:1] + lines[2:])]


def report(folder):
    """table.csv and SHA256SUMS, as write_report has them beside the other files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.csv").write_text(csv.render(example_table()))
    return write_sums(folder)


def cells(folder, published: bool = False) -> list:
    return list(cells_of(folder, published=published))


@pytest.mark.parametrize("name", ["table.csv", "records.jsonl"])
def test_damage_to_what_is_published_is_refused(name: str, copied, tmp_path) -> None:
    machine = copied(tmp_path, *ARTIFACTS)
    expected = cells(machine, published=True)
    published.seal(machine)
    path = machine / ARTIFACTS[1] / name
    whole = path.read_bytes()
    for data in [*damages(whole), (machine / ARTIFACTS[0] / name).read_bytes()]:
        path.write_bytes(data)
        for read in (lambda: cells(machine, published=True), lambda: published.read(path.parent)):
            with pytest.raises(
                LutlabError, match=rf"table3/{re.escape(name)} .*restore it with git"
            ):
                read()
    path.unlink()
    refused(r"cannot be read .*restore it with git", cells, machine, published=True)
    path.write_bytes(whole)
    assert cells(machine, published=True) == expected


def test_a_damaged_report_is_named_and_left_out(tmp_path, caplog) -> None:
    for variant in ("first", "second"):
        report(tmp_path / "paper/table" / variant)
    expected = cells(tmp_path)
    intact = [cell for cell in expected if cell["variant"] == "first"]
    assert {cell["variant"] for cell in expected} == {"first", "second"}
    path = tmp_path / "paper/table/second/table.csv"
    for data in damages(path.read_bytes()):
        path.write_bytes(data)
        caplog.clear()
        assert cells(tmp_path) == intact
        assert re.search("second/table.csv is not the file.*left out", caplog.messages[0])
    report(path.parent)
    assert cells(tmp_path) == expected


def test_tables_of_earlier_versions_are_read_and_said(tmp_path, caplog) -> None:
    sums = report(tmp_path / "paper/table/variant")
    expected = cells(tmp_path)
    sums.unlink()
    assert cells(tmp_path) == expected
    assert re.search("1 tables under .* have no SHA256SUMS", caplog.messages[-1])
    (sums.parent / "table.csv").write_bytes(b"a,b\n1,2\n")
    assert cells(tmp_path) == []
    assert "is not a table of lutlab's" in " ".join(caplog.messages)
