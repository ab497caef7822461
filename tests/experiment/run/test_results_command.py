"""`lutlab results …`: what was measured is found, shown, measured again, compared and cleared away."""

import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path

import pandas
import pytest
from tests import warm
from tests.command_line import QUICK, printed

from lutlab.experiment.records import prune
from lutlab.experiment.run.main import main
from lutlab.experiment.store.record import LINES, read_lines
from lutlab.experiment.store.store import Store
from tools.published_list import PUBLISHED


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A results folder with one sweep of two rows."""
    folder = tmp_path_factory.mktemp("measured") / "results"
    printed(*QUICK, "data.limit=2", "q=4,3", "g=32", "name=mine", results=folder)
    return folder


@pytest.fixture
def results(measured, monkeypatch, capfd):
    """The command, in the measured folder or another: its output, or errors where it is refused."""

    def call(*words, folder=measured, code=0):
        where = ["--results", folder] if folder else []
        monkeypatch.setattr(sys, "argv", ["run.py", "results", *map(str, [*words, *where])])
        assert main() == code
        out, err = capfd.readouterr()
        return err if code == 2 else out

    return call


def cell(folder, evaluator, q):
    kinds = {(r.evaluation["evaluator"], r.run["q"]): r for r in Store(folder).all().values()}
    return kinds[evaluator, q]


def test_a_table_and_its_cells_are_listed(measured, results):
    assert "sweep/mine" in results("list")
    listed = results("list", "mine/*/3/32")
    assert cell(measured, "ppl", 3).cell_id in listed
    assert cell(measured, "ppl", 4).cell_id not in listed


def test_a_cell_is_shown_with_all_that_is_known_of_it(measured, results):
    record = cell(measured, "ppl", 3)
    shown = results("show", record.cell_id[:10])
    for text in (
        *(record.cell_id, str(record.values["ppl"]), "q=3", "evaluate=[ppl:passages-joined]"),
        f"commit                       {record.provenance['git_commit']}",
        "in sweep/mine, mine: row opt-embedded-s/rtn/3/32",
    ):
        assert text in shown
    assert "no cell nowhere" in results("show", "nowhere", code=2)


def test_a_cell_is_measured_again_and_compared(measured, results, monkeypatch, tmp_path):
    warm.run_children(monkeypatch)
    record = cell(measured, "weight_error", 3)
    assert "equal to the last bit" in results("rerun", record.cell_id)
    values = {name: value * 1.5 for name, value in record.values.items()}
    Store(tmp_path).save(dataclasses.replace(record, values=values))
    assert "-0.333 relatively" in results("rerun", record.cell_id, folder=tmp_path, code=1)


def test_two_folders_are_compared_cell_by_cell(measured, results):
    assert "4 cells in both: 4 equal, 0 differ" in results("diff", measured, measured, folder=None)


def test_what_moved_since_is_named(measured):
    record = cell(measured, "ppl", 3)
    assert prune.moved(record) == []
    identity = json.loads(json.dumps(record.provenance["identity"]))
    identity["components"] |= {"evaluator/ppl": 0, "method/gone": 1}
    identity["libraries"]["torch"] = "1.0"
    record.provenance["identity"] = identity
    first, *others = prune.moved(record)
    assert first.startswith("evaluator/ppl 0 -> ")
    assert "method/gone 1 -> gone" in others
    assert any(reason.startswith("torch 1.0 -> ") for reason in others)


def test_published_records_say_what_moved_since(results, tmp_path):
    own = Path("amd-epyc-25-1-avx2-2cores", "lut-gemm-v3", "table4")
    shutil.copytree(PUBLISHED / own, tmp_path / own)
    stale = results("stale", folder=tmp_path)
    assert re.search(r"\d+ of [1-9]\d* records are of earlier code", stale)


def test_only_what_is_named_is_pruned(results, monkeypatch, tmp_path):
    kept = tmp_path / "quantized" / "abc"
    kept.mkdir(parents=True)
    (kept / "block-0000.safetensors").write_bytes(b"0" * 2_000_000)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert "quantized: 1 things, 2.0 MB" in results("prune", folder=tmp_path)
    assert kept.exists()
    results("prune", "quantized", "--yes", folder=tmp_path)
    assert not kept.exists()
    assert "unknown kind 'nonsense'" in results("prune", "nonsense", code=2)


def test_everything_is_exported(measured, results, tmp_path):
    for name, read in (("all.csv", pandas.read_csv), ("all.parquet", pandas.read_parquet)):
        results("export", tmp_path / name)
        assert set(read(tmp_path / name)["cell_id"]) == set(Store(measured).all())
    results("export", tmp_path / "all.xlsx", code=2)


def test_a_library_moves_the_cells_of_those_that_ask_for_it_alone():
    """Of records by llama.cpp's quantizers, installed or not; and of one that names a library too many."""
    records = read_lines(
        PUBLISHED / "amd-epyc-25-1-avx2-2cores" / "lutlab" / "gguf_types" / LINES
    ).values()
    by_ggml = [r for r in records if r.run["method"].startswith("ggml")]
    assert by_ggml
    moved = {reason for record in by_ggml for reason in prune.moved(record)}
    assert not [reason for reason in moved if "not asked for" in reason]
    provenance = {**by_ggml[0].provenance}
    libraries = {"torch": "0.1", "transformers": "5.1"}
    provenance["identity"] = provenance["identity"] | {"libraries": libraries}
    other = dataclasses.replace(by_ggml[0], provenance=provenance)
    torch, transformers = [reason for reason in prune.moved(other) if reason.startswith("t")]
    assert torch.startswith("torch 0.1 -> ")
    assert transformers == "transformers 5.1 -> not asked for"
