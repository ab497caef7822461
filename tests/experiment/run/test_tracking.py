"""Tracking offline, read back from disk: no account, no network, nothing on the terminal, no loss when it fails."""

from __future__ import annotations

import dataclasses
import json
import logging
import socket
from pathlib import Path

import pytest
from tests.command_line import ROOT, CommandLine
from tests.experiment.row.composing import settings
from tests.wandb_offline import OfflineRun, read_run, read_runs, readable

from lutlab.base.errors import LutlabError
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.records import wandb_files
from lutlab.experiment.records.frame import Shelf, shelves
from lutlab.experiment.report.compare import tuned_badly
from lutlab.experiment.report.published import Published
from lutlab.experiment.row import sweeping
from lutlab.experiment.row.run import run_of
from lutlab.experiment.row.spelling import axes
from lutlab.experiment.run.tracked import LONGEST, TrackedRun, axes_of, histories, runs_of
from lutlab.experiment.run.tracking import Tracker, log_rows, open_tracker
from lutlab.experiment.store.record import canonical

PUBLISHED = ROOT / "results" / "published" / "amd-epyc-2cores"
TABLE4, ROWS = "lut-gemm-v3/table4", ("opt-30b/fp16", "opt-30b/q3_g64")


def published(artifact: str, variant: str, rows: tuple[str, ...] = ()) -> Shelf:
    """Some rows of a published table with their records."""
    (shelf,) = shelves(PUBLISHED)
    cells = [c for c in shelf.cells if (c["artifact"], c["variant"]) == (artifact, variant)]
    cells = [c for c in cells if not rows or c["row"] in rows]
    known = {c["cell_id"] for c in cells} & shelf.records.keys()
    return dataclasses.replace(
        shelf, cells=tuple(cells), records={i: shelf.records[i] for i in known}
    )


def tracked(artifact: str, rows: tuple[str, ...] = (), figure: bytes = b"") -> list[TrackedRun]:
    shelf = published(artifact, "embedded", rows)
    table = Published(artifact, {"embedded": shelf.cells}, shelf.records).tables({})["embedded"]
    return list(runs_of(shelf, "lutlab", table, figure))


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: object) -> None:
        local = self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost")
        assert local, f"tracking offline connects to {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)
    monkeypatch.delenv("WANDB_MODE", raising=False)


@pytest.fixture(scope="module")
def wandb_version() -> str:
    wandb = pytest.importorskip("wandb")
    if not readable(wandb.__version__):
        pytest.skip(f"the offline files of wandb {wandb.__version__} are not known to the reader")
    return wandb.__version__


def test_rows_and_table_are_read_back(
    tmp_path: Path,
    no_network: None,
    wandb_version: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    runs = tracked(TABLE4, ROWS, _dot())
    tracker = open_tracker("offline", tmp_path / "results" / "wandb", "lutlab")
    assert tracker.log("table4", runs) == 3
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert not (tmp_path / "home" / ".local").exists(), "wandb keeps copies in the user's folder"
    found = {run.id: run for run in read_runs(tmp_path / "results" / "wandb")}
    assert found.keys() == {run.id for run in runs}
    for run in runs:
        stored = found[run.id]
        assert (stored.name, stored.group, stored.job_type) == (run.name, run.group, run.kind)
        assert (stored.project, stored.exit_code, stored.tags) == ("lutlab", 0, run.tags)
        assert stored.config == dict(run.config)
        assert {k: stored.summary[k] for k in run.summary} == dict(run.summary)
    check_row(found[runs[1].id])
    check_table(found[runs[2].id])


def _dot() -> bytes:
    import io

    from matplotlib import image

    buffer = io.BytesIO()
    image.imsave(buffer, [[0.0, 1.0]], format="png")
    return buffer.getvalue()


def check_row(run: OfflineRun) -> None:
    """The row's numbers under the text that was read, the paper's beside them, and its charts."""
    assert run.id.startswith("table4-opt-30b-q3_g64-")
    assert run.config["machine"] == "amd-epyc-2cores"
    assert (run.config["q"], run.config["g"], run.config["method.variant"]) == (3, 64, "gptq")
    cells = {c["column"]: c for c in published(TABLE4, "embedded", ROWS[1:]).cells}
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


def check_table(run: OfflineRun) -> None:
    """The table as it is published, its claims, its figure, its records in one file."""
    shelf = published(TABLE4, "embedded", ROWS)
    assert run.summary["figure._type"] == "image-file"
    rows = [
        dict(zip(run.tables["table"]["columns"], row, strict=True))
        for row in run.tables["table"]["data"]
    ]
    assert [r["cell_id"] for r in rows] == [c["cell_id"] for c in shelf.cells]
    said = ["" if r["measured"] is None else str(float(r["measured"])) for r in rows]
    assert said == [c["measured"] for c in shelf.cells]
    assert len(run.tables["claims"]["data"]) == len(load_artifact(TABLE4).claims)
    lines = Path(run.files["records.jsonl"]).read_text().splitlines()
    assert {json.loads(line)["record"]["cell_id"] for line in lines} == shelf.records.keys()


def test_a_row_measured_again_is_one_run(tmp_path: Path, wandb_version: str) -> None:
    tracker = open_tracker("offline", tmp_path, "lutlab")
    row = dataclasses.replace(tracked(TABLE4, ROWS)[1], charts={})
    foreign = tmp_path / "wandb" / f"offline-run-20260101_000000-other-{row.id}"
    foreign.mkdir(parents=True)

    def folders() -> list[Path]:
        return [p for p in (tmp_path / "wandb").glob("offline-run-*") if p != foreign]

    tracker.log("", [row])
    (first,) = folders()
    tracker.log("", [row])
    assert folders() == [first], "nothing changed, and it was written again"
    tracker.log("", [dataclasses.replace(row, summary={**row.summary, "topics/ppl": 1.0})])
    (second,) = folders()
    assert second != first
    assert foreign.exists()
    (path,) = second.glob("*.wandb")
    assert read_runs(second)[0].summary["topics/ppl"] == 1.0
    (inspected,) = wandb_files.read(path.parent)
    by_hand = read_run(path)
    assert inspected["config"] == by_hand.config
    logged = {k: v for k, v in by_hand.summary.items() if not k.startswith("_")}
    assert inspected["summary"] == logged


def test_every_row_of_a_table_has_its_own_axes() -> None:
    shelf = published("lut-gemm-v3/fig14", "embedded")
    by_row = {c["row"]: axes_of([shelf.records[c["cell_id"]]]) for c in shelf.cells}
    assert len({canonical(one) for one in by_row.values()}) == len(by_row) == 162
    # of the kernel's knobs, which were never measured: they need a GPU
    (request,) = sweeping.parse(["+exp=lutlab/r0_knobs"])
    some = dataclasses.replace(settings(), rows=("*mu[48]/l[48]/th[14]*",))
    knobs = sweeping.rows_of(request, some)
    found = [axes(run_of(settings(*row.overrides))) for row in knobs]
    assert len({canonical(one) for one in found}) == len(found) == 8


def test_charts_are_of_the_samples() -> None:
    shelf = published("lut-gemm-iclr2024/table1", "embedded")
    record = next(r for r in shelf.records.values())
    ((name, points),) = histories(record, "kernel_latency").items()
    assert (name, len(points)) == ("round/kernel_latency_s", 25)
    tuned = published("mixed-2-4-16/table4", "embedded").records.values()
    charts = [histories(r, "topics") for r in tuned if "tuning" in r.facts]
    assert charts
    assert all(one["tuning_step/held_out_loss"][0][0] == 0 for one in charts)
    tuning = {"losses": [[2, 1.5]], "held_out": [[0, 2.0], [2, 1.0]], "steps": 9, "kept_step": 2}
    curves = dataclasses.replace(record, samples=(), facts={"tuning": tuning | {"diverged": True}})
    assert histories(curves, "topics")["tuning_step/loss"] == [(2, 1.5)]
    assert tuned_badly(curves) == "a tuning that diverged, of which step 2 of 9 is kept"
    tuning["blocks"] = [{}, {"diverged": False}]
    assert not tuned_badly(dataclasses.replace(curves, facts={"tuning": tuning}))
    tuning["blocks"][1]["diverged"] = True
    assert "in 1 of 1 blocks" in tuned_badly(dataclasses.replace(curves, facts={"tuning": tuning}))
    many = dataclasses.replace(
        record,
        values={"ppl": 1.0},
        samples=(2.0,) * 1000,
        evaluation={"evaluator": "ppl", "text": None},
        facts={"windows": 1000, "seqlen": 2, "bits_by_layer": [4.0, 3.0]},
    )
    charts = histories(many, "topics")
    assert len(charts["window/topics/ppl"]) == LONGEST
    assert charts["window/topics/ppl"][-1][0] == 1000
    assert list(log_rows(charts))[1].keys() == {
        "window", "window/topics/ppl", "layer", "layer/bits_per_weight",
    }  # fmt: skip


def test_track_fills_a_project_from_records_alone(
    command: CommandLine, no_network: None, wandb_version: str
) -> None:
    source = f"logger.records={PUBLISHED.parent}"
    outcome = command("+exp=lut-gemm-iclr2024/table2", "mode=track", source)
    assert outcome.code == 0, outcome.err
    assert "cells have no record" in outcome.out
    runs = read_runs(command.results / "wandb")
    assert {run.job_type for run in runs} == {"row", "table"}
    assert not (command.results / "records").exists()
    for wrong, cure in (
        ("logger=none", "logger=offline"),
        ("q=3", "drop it"),
        ("q=3,4", "drop it"),
    ):
        refused = command("mode=track", source, wrong)
        assert (refused.code, cure in refused.err) == (2, True)


def test_a_failure_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wandb = pytest.importorskip("wandb")
    (row, *_) = tracked(TABLE4, ROWS)
    (tmp_path / "file").write_text("")
    assert open_tracker("offline", tmp_path / "file" / "wandb", "lutlab").log("", [row]) == 0
    assert f"did not take '{row.name}'" in caplog.text

    def crash(**_: object) -> None:
        raise OSError("disk on fire")

    monkeypatch.setattr(wandb, "init", crash)
    with caplog.at_level(logging.WARNING):
        Tracker("offline", tmp_path, "lutlab").log("", [row])
    assert "OSError: disk on fire" in caplog.text
    assert "kept in the records" in caplog.text


def test_none_asks_for_nothing_and_an_unknown_logger_is_explained(tmp_path: Path) -> None:
    assert open_tracker("none", tmp_path, "lutlab") is None
    with pytest.raises(LutlabError, match="did you mean 'offline'"):
        open_tracker("ofline", tmp_path, "lutlab")
