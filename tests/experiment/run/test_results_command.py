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
from tests.command_line import QUICK

from lutlab.experiment.records import prune
from lutlab.experiment.run.main import main
from lutlab.experiment.store.record import LINES, read_lines
from lutlab.experiment.store.store import Store
from tools.published_list import PUBLISHED


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A results folder with one sweep of two rows."""
    folder = tmp_path_factory.mktemp("measured") / "results"
    with pytest.MonkeyPatch.context() as patch:
        line = ["run.py", *QUICK, "data.limit=2", "q=4,3", "g=32", "name=mine", f"results={folder}"]
        patch.setattr(sys, "argv", line)
        assert main() == 0
    return folder


def results(monkeypatch, capfd, *arguments):
    monkeypatch.setattr(sys, "argv", ["run.py", "results", *map(str, arguments)])
    code = main()
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def cell(folder, evaluator, q):
    records = Store(folder).all().values()
    (found,) = [r for r in records if r.evaluation["evaluator"] == evaluator and r.run["q"] == q]
    return found


def test_a_table_and_its_cells_are_listed(measured, monkeypatch, capfd):
    code, out, _ = results(monkeypatch, capfd, "list", "--results", measured)
    assert code == 0
    assert "sweep/mine" in out
    _, out, _ = results(monkeypatch, capfd, "list", "mine/*/3/32", "--results", measured)
    assert cell(measured, "ppl", 3).cell_id in out
    assert cell(measured, "ppl", 4).cell_id not in out


def test_a_cell_is_shown_with_all_that_is_known_of_it(measured, monkeypatch, capfd):
    record = cell(measured, "ppl", 3)
    code, out, _ = results(monkeypatch, capfd, "show", record.cell_id[:10], "--results", measured)
    assert code == 0
    for said in (
        record.cell_id,
        str(record.values["ppl"]),
        "q=3",
        "evaluate=[ppl:passages-joined]",
    ):
        assert said in out
    assert f"commit                       {record.provenance['git_commit']}" in out
    assert "in sweep/mine, mine: row opt-embedded-s/rtn/3/32" in out
    code, _, err = results(monkeypatch, capfd, "show", "nowhere", "--results", measured)
    assert code == 2
    assert "no cell nowhere" in err


def test_a_cell_is_measured_again_and_compared(measured, monkeypatch, capfd, tmp_path):
    warm.run_children(monkeypatch)
    record = cell(measured, "weight_error", 3)
    code, out, _ = results(monkeypatch, capfd, "rerun", record.cell_id, "--results", measured)
    assert code == 0, out
    assert "equal to the last bit" in out
    other = dataclasses.replace(
        record, values={name: value * 1.5 for name, value in record.values.items()}
    )
    Store(tmp_path).save(other)
    code, out, _ = results(monkeypatch, capfd, "rerun", record.cell_id, "--results", tmp_path)
    assert code == 1
    assert "-0.333 relatively" in out


def test_two_folders_are_compared_cell_by_cell(measured, monkeypatch, capfd, tmp_path):
    code, out, _ = results(monkeypatch, capfd, "diff", measured, measured)
    assert code == 0
    assert "4 cells in both: 4 equal, 0 differ" in out


def test_what_moved_since_is_named(measured):
    record = cell(measured, "ppl", 3)
    assert prune.moved(record) == []
    identity = json.loads(json.dumps(record.provenance["identity"]))
    identity["components"] |= {"evaluator/ppl": 0, "method/gone": 1}
    identity["libraries"]["torch"] = "1.0"
    record.provenance["identity"] = identity
    assert prune.moved(record)[0].startswith("evaluator/ppl 0 -> ")
    assert "method/gone 1 -> gone" in prune.moved(record)
    assert any(reason.startswith("torch 1.0 -> ") for reason in prune.moved(record))


def test_published_records_say_what_moved_since(monkeypatch, capfd, tmp_path):
    own = Path("amd-epyc-2cores", "lut-gemm-v3", "table4")
    shutil.copytree(PUBLISHED / own, tmp_path / own)
    code, out, err = results(monkeypatch, capfd, "stale", "--results", tmp_path)
    assert code == 0, err
    assert re.search(r"\d+ of [1-9]\d* records are of earlier code", out)


def test_only_what_is_named_is_pruned(measured, monkeypatch, capfd, tmp_path):
    kept = tmp_path / "quantized" / "abc"
    kept.mkdir(parents=True)
    (kept / "block-0000.safetensors").write_bytes(b"0" * 2_000_000)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    code, out, _ = results(monkeypatch, capfd, "prune", "--results", tmp_path)
    assert code == 0
    assert "quantized: 1 things, 2.0 MB" in out
    assert kept.exists()
    results(monkeypatch, capfd, "prune", "quantized", "--yes", "--results", tmp_path)
    assert not kept.exists()
    code, _, err = results(monkeypatch, capfd, "prune", "nonsense", "--results", measured)
    assert code == 2
    assert "unknown kind 'nonsense'" in err


def test_everything_is_exported(measured, monkeypatch, capfd, tmp_path):
    for name, read in (("all.csv", pandas.read_csv), ("all.parquet", pandas.read_parquet)):
        code, _, err = results(monkeypatch, capfd, "export", tmp_path / name, "--results", measured)
        assert code == 0, err
        found = read(tmp_path / name)
        assert set(found["cell_id"]) == set(Store(measured).all())
    code, _, err = results(monkeypatch, capfd, "export", tmp_path / "all.xlsx", "--results", measured)  # fmt: skip
    assert code == 2


def test_a_library_moves_the_cells_of_those_that_ask_for_it_alone():
    """Of records by llama.cpp's quantizers, installed or not; and of one that names a library too many."""
    records = read_lines(PUBLISHED / "amd-epyc-2cores" / "lutlab" / "gguf_types" / LINES).values()
    of_ggml = [r for r in records if r.run["method"].startswith("ggml")]
    assert of_ggml
    moved = {reason for record in of_ggml for reason in prune.moved(record)}
    assert not [reason for reason in moved if "not asked for" in reason]
    record = of_ggml[0]
    identity = record.provenance["identity"]
    identity = identity | {"libraries": {"torch": "0.1", "transformers": "5.1"}}
    other = dataclasses.replace(record, provenance={**record.provenance, "identity": identity})
    torch, transformers = [reason for reason in prune.moved(other) if reason.startswith("t")]
    assert torch.startswith("torch 0.1 -> ")
    assert transformers == "transformers 5.1 -> not asked for"
