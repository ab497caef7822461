"""The whole way of a sweep: plan, measure, store, report, track."""

from __future__ import annotations

import csv
import re
import socket
from pathlib import Path

import pytest
from tests import wandb_offline
from tests.command_line import QUICK, CommandLine

from lutlab.experiment.store.record import content_id

MODEL = "opt-embedded-s"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: socket.socket, address: object) -> None:
        raise AssertionError(f"connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_a_sweep_of_embedded_models_measures_and_reports_without_a_network(
    command: CommandLine, no_network: None
) -> None:
    outcome = command(*QUICK, "method=rtn", "q=2,4", "g=64")
    assert outcome.code == 0, outcome.err
    found = command.records().values()
    assert {r["status"] for r in found} == {"done"}
    assert {(r["run"]["q"], r["evaluation"]["evaluator"]) for r in found} == {
        (2, "ppl"), (2, "weight_error"), (4, "ppl"), (4, "weight_error"),
    }  # fmt: skip
    ppl = {r["run"]["q"]: r["values"]["ppl"] for r in found if "ppl" in r["values"]}
    assert ppl[4] < ppl[2]
    for value in ppl.values():
        assert f"{value:.2f}" in outcome.out
    kernels = [r["facts"].get("kernel") for r in found if "ppl" in r["values"]]
    assert all(re.search(r", \w+, \d+ threads", name) for (name,) in kernels)
    assert not any("kernel" in r["facts"] for r in found if "ppl" not in r["values"])


@pytest.mark.slow
def test_a_sweep_stands_beside_full_precision_and_is_never_written_over(
    command: CommandLine,
) -> None:
    line = ["method=bcq", "method.bcq.offset=true,false", "q=3", "g=32", *QUICK[:2], "data.limit=2"]
    assert command(*line, "name=mine").code == 0
    folder = command.results / "sweep" / "mine"
    with (folder / "table.csv").open(newline="") as file:
        cells = {(r["row"], r["metric"]): r for r in csv.DictReader(file)}
    rows = [f"{MODEL}/bcq/3/32/{offset}" for offset in ("true", "false")]
    full = cells[f"{MODEL}/none/16/-/-", "ppl"]
    for row in rows:
        cell = cells[row, "ppl"]
        assert cell["baseline"] == full["measured"] != cell["measured"]
        assert float(cells[row, "bits_per_weight"]["measured"]) < 6
    said = (folder / "table.md").read_text()
    difference = float(cells[rows[0], "ppl"]["measured"]) - float(full["measured"])
    assert re.search(rf"\(\+{difference:.2f} ± [\d.]+\)", said)
    assert "method.bcq.offset=true,false q=3 g=32" in said  # the command that gives this table

    one = command("method=rtn,bcq", "method.bcq.offset=true", *line[2:], "mode=report", "name=one")
    assert one.code == 0, one.err  # one value of one method
    assert "method=rtn,bcq method.bcq.offset=true q=3" in " ".join(one.out.split())

    other = command(*line[:-1], "data.limit=3", "name=mine")
    assert other.code == 2
    assert "name=mine is that of another sweep" in other.err
    before = (folder / "table.csv").read_bytes()
    assert command(*line, "mode=report", "name=mine").code == 0  # the same one again
    assert (folder / "table.csv").read_bytes() == before
    assert len(list((command.results / "sweep").iterdir())) == 2


def test_a_record_tells_where_its_number_comes_from(command: CommandLine) -> None:
    command(*QUICK, "method=none", "q=4")
    (record,) = [r for r in command.records().values() if "ppl" in r["values"]]
    # method=none ignores q and g, so that rows of full precision are one cell.
    assert record["run"]["q"] == 16
    assert record["evaluation"]["text"]["protocol"] == "passages-joined"
    assert len(record["samples"]) == record["n"] > 10
    assert {"token_sha256", "text_sha256", "seqlen", "bos", "loss_dtype"} <= set(record["facts"])
    assert record["facts"]["standard_error"].keys() == record["values"].keys()
    assert {
        "git_commit",
        "git_dirty",
        "cpu",
        "threads",
        "versions",
        "identity",
        "measured_at",
    } <= set(record["provenance"])
    for name, one in command.records().items():
        assert content_id(one["provenance"]["identity"]) == name == one["cell_id"]
        assert one["provenance"]["identity"]["components"]


def test_a_row_and_its_table_are_tracked_offline_by_default(command: CommandLine) -> None:
    assert command(*QUICK, "baseline=false").code == 0
    outcome = command(QUICK[0], "baseline=false")  # measured before, without tracking
    assert outcome.code == 0, outcome.err
    runs = wandb_offline.read_runs(command.results / "wandb")
    assert sorted(run.job_type for run in runs) == ["row", "table"]
    assert "wandb" not in outcome.out.replace(str(command.results), "")


def test_a_folder_without_one_text_leaves_that_column_unmeasured_and_says_so(
    command: CommandLine, tmp_path: Path
) -> None:
    ptb = tmp_path / "texts/ptb/ptb.valid.txt"
    ptb.parent.mkdir(parents=True)
    ptb.write_text("a few words of a sentence\n" * 500)
    wanted = ["method=none", "evaluate=[ppl:wikitext2,ppl:ptb]", *QUICK[1:]]
    outcome = command(*wanted, f"data.root={tmp_path / 'texts'}")
    assert outcome.code == 0, outcome.err
    (record,) = command.records().values()
    assert record["evaluation"]["text"]["protocol"] == "ptb"
    assert record["facts"]["text_differs"] == "500 rows, and ptb (validation) has 3370"
    printed = " ".join(outcome.out.split())
    assert "no text 'wikitext2' under data.root=" in printed
    assert "another text than the published one: 500 rows, and ptb (validation) has" in printed

    (tmp_path / "empty").mkdir()
    outcome = command(*wanted, f"data.root={tmp_path / 'empty'}")
    assert outcome.code == 2
    assert "docs/data-layout.md" in outcome.err
