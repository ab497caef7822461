"""Tracking offline, read back from disk: no account, no network, nothing on the terminal, no loss when it fails."""

import dataclasses
import io
import json
import socket
from pathlib import Path
from unittest import mock

import pytest
from matplotlib import image
from tests.command_line import ROOT
from tests.experiment.row.composing import settings
from tests.wandb_offline import read_runs, readable

from lutlab.base.errors import LutlabError
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.records import wandb_files
from lutlab.experiment.records.frame import shelves
from lutlab.experiment.report.published import Published
from lutlab.experiment.row import sweeping
from lutlab.experiment.row.run import run_of
from lutlab.experiment.row.spelling import axes
from lutlab.experiment.run.tracked import LONGEST, axes_of, histories, runs_of
from lutlab.experiment.run.tracking import Tracker, log_rows, open_tracker
from lutlab.experiment.store.record import canonical

PUBLISHED = ROOT / "results" / "published" / "amd-epyc-25-1-avx2-2cores"
TABLE4, ROWS = "lut-gemm-v3/table4", ("opt-30b/fp16", "opt-30b/q3_g64")


def published(artifact, rows=()):
    """Some rows of a published table with their records."""
    (shelf,) = shelves(PUBLISHED)
    cells = [c for c in shelf.cells if (c["artifact"], c["variant"]) == (artifact, "embedded")]
    cells = [c for c in cells if not rows or c["row"] in rows]
    known = {c["cell_id"] for c in cells} & shelf.records.keys()
    records = {i: shelf.records[i] for i in known}
    return dataclasses.replace(shelf, cells=tuple(cells), records=records)


def tracked(artifact, rows=(), figure=b""):
    shelf = published(artifact, rows)
    table = Published(artifact, {"embedded": shelf.cells}, shelf.records).tables({})["embedded"]
    return list(runs_of(shelf, "lutlab", table, figure))


@pytest.fixture
def no_network(monkeypatch):
    connect = socket.socket.connect

    def local_only(self, address):
        local = self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost")
        assert local, f"tracking offline connects to {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)
    monkeypatch.delenv("WANDB_MODE", raising=False)


@pytest.fixture(scope="module")
def wandb():
    """The package, in a version whose files can be read here."""
    package = pytest.importorskip("wandb")
    if not readable(package.__version__):
        pytest.skip(f"the offline files of wandb {package.__version__} are not known to the reader")
    return package


def test_rows_and_table_are_read_back(tmp_path, no_network, wandb, capfd, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    image.imsave(figure := io.BytesIO(), [[0.0, 1.0]], format="png")
    runs = tracked(TABLE4, ROWS, figure.getvalue())
    tracker = open_tracker("offline", tmp_path / "results" / "wandb", "lutlab")
    assert tracker.log("table4", runs) == 3
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "home" / ".local").exists(), "wandb keeps copies in the user's folder"
    stored = {run.id: run for run in read_runs(tmp_path / "results" / "wandb")}
    assert stored.keys() == {run.id for run in runs}
    for run in runs:
        again = stored[run.id]
        assert (again.name, again.group, again.job_type) == (run.name, run.group, run.kind)
        assert (again.project, again.exit_code, again.tags) == ("lutlab", 0, run.tags)
        assert again.config == dict(run.config)
        assert again.summary.items() >= dict(run.summary).items()
    check_row(stored[runs[1].id])
    check_table(stored[runs[2].id])


def check_row(run):
    """The row's numbers under the text that was read, the paper's beside them, and its charts."""
    assert run.id.startswith("table4-opt-30b-q3_g64-")
    machines = "amd-epyc-25-1-avx2-2cores, amd-epyc-avx2-2cores"  # of the speed, of the quality
    assert run.config["machine"] == machines
    assert (run.config["q"], run.config["g"], run.config["method.variant"]) == (3, 64, "gptq")
    cells = {c["column"]: c for c in published(TABLE4, ROWS[1:]).cells}
    assert run.summary["topics/ppl"] == float(cells["wiki2"]["measured"])
    assert run.summary["topics/ppl/wiki2/published"] == float(cells["wiki2"]["published"])
    assert run.summary["topics/ppl/wiki2/verdict"] == "stand-in"
    assert not [key for key in run.summary if key.startswith(("wiki", "ptb"))]
    charts = {"window", "layer"}
    assert run.steps.items() >= {f"{step}/*": step for step in charts}.items()
    assert not [key for key in run.summary if key.partition("/")[0] in charts]
    windows = [row["window/topics/ppl"] for row in run.history if "window/topics/ppl" in row]
    assert windows[-1] == pytest.approx(run.summary["topics/ppl"], rel=1e-12)
    layers = [row["layer"] for row in run.history if "layer/weight_relative_mse" in row]
    assert layers == list(range(24))


def check_table(run):
    """The table as it is published, its claims, its figure, its records in one file."""
    shelf = published(TABLE4, ROWS)
    assert run.summary["figure._type"] == "image-file"
    table = run.tables["table"]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [r["cell_id"] for r in rows] == [c["cell_id"] for c in shelf.cells]
    measured = ["" if r["measured"] is None else str(float(r["measured"])) for r in rows]
    assert measured == [c["measured"] for c in shelf.cells]
    assert len(run.tables["claims"]["data"]) == len(load_artifact(TABLE4).claims)
    lines = Path(run.files["records.jsonl"]).read_text().splitlines()
    assert {json.loads(line)["record"]["cell_id"] for line in lines} == shelf.records.keys()


def test_a_row_measured_again_is_one_run(tmp_path, wandb):
    tracker = open_tracker("offline", tmp_path, "lutlab")
    row = dataclasses.replace(tracked(TABLE4, ROWS)[1], charts={})
    foreign = tmp_path / "wandb" / f"offline-run-20260101_000000-other-{row.id}"
    foreign.mkdir(parents=True)

    def folder_after(summary):
        tracker.log("", [dataclasses.replace(row, summary=summary)])
        (folder,) = {*(tmp_path / "wandb").glob("offline-run-*")} - {foreign}
        return folder

    first = folder_after(row.summary)
    assert folder_after(row.summary) == first, "nothing changed, and it was written again"
    second = folder_after({**row.summary, "topics/ppl": 1.0})
    assert second != first
    assert foreign.exists()
    (by_hand,) = read_runs(second)
    assert by_hand.summary["topics/ppl"] == 1.0
    (inspected,) = wandb_files.read(second)
    assert inspected["config"] == by_hand.config
    logged = {k: v for k, v in by_hand.summary.items() if not k.startswith("_")}
    assert inspected["summary"] == logged


def test_every_row_of_a_table_has_its_own_axes():
    shelf = published("lut-gemm-v3/fig14")
    by_row = {c["row"]: axes_of([shelf.records[c["cell_id"]]]) for c in shelf.cells}
    assert len(set(map(canonical, by_row.values()))) == len(by_row) == 162
    # of the kernel's knobs, which were never measured: they need a GPU
    (request,) = sweeping.parse(["+exp=lutlab/r0_knobs"])
    some = dataclasses.replace(settings(), rows=("*mu[48]/l[48]/th[14]*",))
    knobs = [axes(run_of(settings(*row.overrides))) for row in sweeping.rows_of(request, some)]
    assert len(set(map(canonical, knobs))) == len(knobs) == 8


def test_charts_are_of_the_samples():
    record = next(iter(published("lut-gemm-iclr2024/table1").records.values()))
    ((name, points),) = histories(record, "kernel_latency").items()
    assert (name, len(points)) == ("round/kernel_latency_s", 25)
    tuned = published("lutlab/two_and_three_bits").records.values()
    charts = [histories(r, "topics") for r in tuned if "tuning" in r.facts]
    assert charts
    assert all(chart["tuning_step/held_out_loss"][0][0] == 0 for chart in charts)
    tuning = {"losses": [[2, 1.5]], "held_out": [[0, 2.0], [2, 1.0]]}
    curves = dataclasses.replace(record, samples=(), facts={"tuning": tuning})
    assert histories(curves, "topics")["tuning_step/loss"] == [(2, 1.5)]
    evaluation = {"evaluator": "ppl", "text": None}
    facts = {"windows": 1000, "seqlen": 2, "bits_by_layer": [4.0, 3.0]}
    many = {"values": {"ppl": 1.0}, "samples": (2.0,) * 1000, "evaluation": evaluation}
    charts = histories(dataclasses.replace(record, **many, facts=facts), "topics")
    assert len(charts["window/topics/ppl"]) == LONGEST
    assert charts["window/topics/ppl"][-1][0] == 1000
    steps = {"window", "window/topics/ppl", "layer", "layer/bits_per_weight"}
    assert list(log_rows(charts))[1].keys() == steps


def test_track_fills_a_project_from_records_alone(command, no_network, wandb):
    source = f"logger.records={PUBLISHED.parent}"
    line = ["+exp=lut-gemm-iclr2024/table2", "mode=track", source]
    assert "cells have no record" in command(*line).out
    runs = read_runs(command.results / "wandb")
    assert {run.job_type for run in runs} == {"row", "table"}
    assert not (command.results / "records").exists()
    cures = {"logger=none": "logger=offline", "q=3": "drop it", "q=3,4": "drop it"}
    for wrong, cure in cures.items():
        assert cure in command("mode=track", source, wrong, code=2).err


def test_a_failure_is_a_warning(tmp_path, monkeypatch, caplog):
    wandb = pytest.importorskip("wandb")
    (row, *_) = tracked(TABLE4, ROWS)
    (tmp_path / "file").write_text("")
    assert open_tracker("offline", tmp_path / "file" / "wandb", "lutlab").log("", [row]) == 0
    assert f"did not take '{row.name}'" in caplog.text

    monkeypatch.setattr(wandb, "init", mock.Mock(side_effect=OSError("disk on fire")))
    Tracker("offline", tmp_path, "lutlab").log("", [row])
    assert "OSError: disk on fire" in caplog.text
    assert "kept in the records" in caplog.text


def test_none_asks_for_nothing_and_an_unknown_logger_is_explained(tmp_path):
    assert open_tracker("none", tmp_path, "lutlab") is None
    with pytest.raises(LutlabError, match="did you mean 'offline'"):
        open_tracker("ofline", tmp_path, "lutlab")
