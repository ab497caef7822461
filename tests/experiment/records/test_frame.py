"""`lutlab.results`: a row a cell, of working folders and published ones, with every axis."""

import json
import shutil

import pytest
from tests.command_line import QUICK

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.experiment.records import frame
from lutlab.experiment.store.record import LINES, read_lines
from tools.published_list import PUBLISHED

TABLE4 = "lut-gemm-v3/table4"


def test_every_published_cell_is_a_row_with_the_number_of_its_record(published):
    machine = next(path for path in sorted(PUBLISHED.iterdir()) if (path / TABLE4).is_dir())
    lines = (machine / TABLE4 / "records.jsonl").read_text().splitlines()
    records = {r["cell_id"]: r for r in (json.loads(line)["record"] for line in lines)}
    mine = published[(published.artifact == "table4") & (published.paper == "lut-gemm-v3")]
    mine = mine[(mine.machine == machine.name) & (mine.metric == "ppl") & mine.measured.notna()]
    assert len(mine) > 30
    for row in mine.itertuples():
        assert row.measured == records[row.cell_id]["values"]["ppl"]
        assert row.commit == records[row.cell_id]["provenance"]["git_commit"]
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
    rtn = published[published.method == "rtn"]
    assert {"q", "g", "method.variant", "calibration.samples", "data.limit"} <= set(
        published.columns
    )
    assert rtn["method.variant"].notna().all()
    assert published[published.method == "none"]["method.variant"].isna().all()


def test_claims_are_counted_as_on_the_page(tmp_path):
    machine = next(path for path in sorted(PUBLISHED.iterdir()) if (path / TABLE4).is_dir())
    shutil.copytree(machine / TABLE4, tmp_path / machine.name / TABLE4)
    found = frame.claims(tmp_path)
    mine = found[
        (found.paper == "lut-gemm-v3")
        & (found.artifact == "table4")
        & (found.variant == "embedded")
    ]
    assert (mine.hold <= mine.decidable).all()
    assert mine.published_decidable.sum() > 0


@pytest.mark.slow
def test_a_working_folder_is_read_as_published_ones_are(command, tmp_path):
    command("method=rtn", "q=4,3", "g=32", *QUICK)
    found = lutlab.results(command.results)
    assert set(found.cell_id) >= set(command.records())
    q3 = found[(found.q == 3) & (found.metric == "ppl")]
    assert q3["model"].unique().tolist() == ["opt-embedded-s"]
    copy = tmp_path / "results" / "rendered"
    shutil.copytree(command.results / "sweep", copy / "sweep")
    assert len(lutlab.results(command.results)) == len(found)


def test_what_others_published_is_shown_where_it_is_asked_for(tmp_path):
    machine = next(path for path in PUBLISHED.iterdir() if path.is_dir())
    name = "lut-gemm-v3/table4"
    shutil.copytree(machine / name, tmp_path / "published" / machine.name / name)
    with pytest.raises(LutlabError, match="has the authors' numbers"):
        lutlab.results(tmp_path)
    assert len(lutlab.results(tmp_path, published=True)) == len(
        lutlab.results(tmp_path / "published")
    )


def test_nothing_measured_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(LutlabError, match="run a table or a sweep first"):
        lutlab.results(tmp_path)
    with pytest.raises(LutlabError, match="no folder"):
        lutlab.results(tmp_path / "none")
