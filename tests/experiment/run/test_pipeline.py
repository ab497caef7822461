"""The whole way of a sweep: plan, measure, store, report, track."""

import re
import socket
from unittest import mock

import pytest
from tests import wandb_offline
from tests.command_line import QUICK
from tests.experiment.run.table4 import cells_of

from lutlab.experiment.store.record import content_id


def test_a_sweep_of_embedded_models_measures_and_reports_without_a_network(command, monkeypatch):
    network = mock.Mock(side_effect=OSError("no network"))
    monkeypatch.setattr(socket.socket, "connect", network)
    monkeypatch.setattr(socket, "getaddrinfo", network)
    outcome = command(*QUICK, "method=rtn", "q=2,4", "g=64")
    network.assert_not_called()
    records = command.records().values()
    assert {r["status"] for r in records} == {"done"}
    assert {(r["run"]["q"], r["evaluation"]["evaluator"]) for r in records} == {
        (2, "ppl"), (2, "weight_error"), (4, "ppl"), (4, "weight_error"),
    }  # fmt: skip
    ppl = {r["run"]["q"]: r["values"]["ppl"] for r in records if "ppl" in r["values"]}
    assert ppl[4] < ppl[2]
    assert all(f"{value:.2f}" in outcome.out for value in ppl.values())
    kernels = [r["facts"].get("kernel") for r in records if "ppl" in r["values"]]
    assert all(re.search(r", \w+, \d+ threads", name) for (name,) in kernels)
    assert not any("kernel" in r["facts"] for r in records if "ppl" not in r["values"])


@pytest.mark.slow
def test_a_sweep_stands_beside_full_precision_and_is_never_written_over(command):
    line = ["method=bcq", "method.bcq.offset=true,false", "q=3", "g=32", *QUICK[:2], "data.limit=2"]
    command(*line, "name=mine")
    folder = command.results / "sweep" / "mine"
    cells = {(r["row"], r["metric"]): r for r in cells_of(folder)}
    rows = [f"opt-embedded-s/bcq/3/32/{offset}" for offset in ("true", "false")]
    full = cells["opt-embedded-s/none/16/-/-", "ppl"]
    for row in rows:
        cell = cells[row, "ppl"]
        assert cell["baseline"] == full["measured"] != cell["measured"]
        assert float(cells[row, "bits_per_weight"]["measured"]) < 6
    page = (folder / "table.md").read_text()
    difference = float(cells[rows[0], "ppl"]["measured"]) - float(full["measured"])
    assert re.search(rf"\(\+{difference:.2f} ± [\d.]+\)", page)
    assert "method.bcq.offset=true,false q=3 g=32" in page  # the command that gives this table

    # one value of one method
    mixed = ["method=rtn,bcq", "method.bcq.offset=true", *line[2:], "mode=report", "name=one"]
    reported = " ".join(command(*mixed).out.split())
    assert "method=rtn,bcq method.bcq.offset=true q=3" in reported

    errors = command(*line[:-1], "data.limit=3", "name=mine", code=2).err
    assert "name=mine is that of another sweep" in errors
    before = (folder / "table.csv").read_bytes()
    command(*line, "mode=report", "name=mine")  # the same one again
    assert (folder / "table.csv").read_bytes() == before
    assert len(list((command.results / "sweep").iterdir())) == 2


def test_a_record_tells_where_its_number_comes_from(command):
    command(*QUICK, "method=none", "q=4")
    (record,) = [r for r in command.records().values() if "ppl" in r["values"]]
    # method=none ignores q and g, so that rows of full precision are one cell.
    assert record["run"]["q"] == 16
    assert record["evaluation"]["text"]["protocol"] == "passages-joined"
    assert len(record["samples"]) == record["n"] > 10
    assert record["facts"].keys() >= {"token_sha256", "text_sha256", "seqlen", "bos", "loss_dtype"}
    assert record["facts"]["standard_error"].keys() == record["values"].keys()
    provenance = "git_commit git_dirty cpu threads versions identity measured_at"
    assert record["provenance"].keys() >= {*provenance.split()}
    for name, each in command.records().items():
        identity = each["provenance"]["identity"]
        assert content_id(identity) == name == each["cell_id"]
        assert identity["components"]


def test_a_row_and_its_table_are_tracked_offline_by_default(command):
    command(*QUICK, "baseline=false")
    outcome = command(QUICK[0], "baseline=false")  # measured before, without tracking
    runs = wandb_offline.read_runs(command.results / "wandb")
    assert sorted(run.job_type for run in runs) == ["row", "table"]
    assert "wandb" not in outcome.out.replace(str(command.results), "")


def test_a_folder_without_one_text_leaves_that_column_unmeasured_and_says_so(command, tmp_path):
    ptb = tmp_path / "texts/ptb/ptb.valid.txt"
    ptb.parent.mkdir(parents=True)
    ptb.write_text("a few words of a sentence\n" * 500)
    line = ["method=none", "evaluate=[ppl:wikitext2,ppl:ptb]", *QUICK[1:]]
    outcome = command(*line, f"data.root={tmp_path / 'texts'}")
    (record,) = command.records().values()
    assert record["evaluation"]["text"]["protocol"] == "ptb"
    assert record["facts"]["text_differs"] == "500 rows, and ptb (validation) has 3370"
    flat = " ".join(outcome.out.split())
    assert "no text 'wikitext2' under data.root=" in flat
    assert "another text than the published one: 500 rows, and ptb (validation) has" in flat

    (tmp_path / "empty").mkdir()
    assert "docs/data-layout.md" in command(*line, f"data.root={tmp_path / 'empty'}", code=2).err
