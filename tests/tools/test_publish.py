"""Publishing: what is measured is written, what is not is said and kept, and the numbers before are compared."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests import warm
from tests.command_line import QUICK, CommandLine
from tests.conftest import ROOT

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import write_sums
from lutlab.experiment.report import csv, published
from lutlab.experiment.report.published import Published
from lutlab.experiment.store.record import Record
from tools import publish, render
from tools.published_list import Variant, read_list

NAME = "lut-gemm-v3/table4"
LIST = f"""
{NAME}:
  embedded-first2: data.limit=2 "rows=['opt-30b/fp16','opt-30b/q3_g64']"
  embedded-texts-first2: data.root=texts data.limit=2
nuqmm/table3:
  embedded: ""
"""
RECORD = Record(
    cell_id="0123456789abcdef",
    status="done",
    run={},
    evaluation={"evaluator": "ppl"},
    values={"ppl": 20.5},
    n=1,
    samples=(3.0,),
    facts={"seqlen": 8},
    provenance={"git_commit": "abc", "git_dirty": False},
    seconds=1.0,
)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a list, run.py and a commit; the tree of the code counts as clean."""
    (tmp_path / "results/published").mkdir(parents=True)
    (tmp_path / "results/published/list.yaml").write_text(LIST)
    (tmp_path / "run.py").symlink_to(ROOT / "run.py")
    monkeypatch.chdir(tmp_path)
    about = publish.environment() | {"git_dirty": False}
    monkeypatch.setattr(publish, "environment", lambda: about)
    git("init", "-q")
    commit()
    return tmp_path


def git(*arguments: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", *who, *arguments], check=True, capture_output=True)


def commit() -> None:
    git("add", "results/published")
    git("commit", "-qm", "published", "--allow-empty")


class Measured:
    """Stands in for the runs: writes the report and the record of a variant, as run.py would."""

    def __init__(self) -> None:
        self.records: dict[str, Record | None] = {}
        self.second: str | None = None  # cell of another row, empty where it cannot be measured
        self.calls: list[tuple[str, str, bool]] = []

    def __call__(self, variants: Sequence[Variant], alone: bool, jobs: int) -> None:
        for variant in variants:
            self.run(variant, alone)

    def run(self, variant: Variant, alone: bool) -> None:
        self.calls.append((variant.artifact, variant.name, alone))
        record = self.records.get(variant.name)
        if record is None:
            return
        one = {
            "row": "opt-30b/fp16",
            "column": "wiki2",
            "measured_on": "",
            "model": "m",
            "note": "",
        }
        one |= {"stand_in": "True", "verdict": "stand-in", "cell_id": record.cell_id}
        one |= {"measured": repr(record.values["ppl"])}
        report = publish.WORK / variant.artifact / variant.name / "table.csv"
        report.parent.mkdir(parents=True, exist_ok=True)
        rows = [one]
        if self.second is not None:
            value = one["measured"] if self.second else ""
            rows += [one | {"row": "opt-30b/q3_g64", "cell_id": self.second, "measured": value}]
        lines = [",".join(one), *(",".join(row.values()) for row in rows)]
        report.write_text("\n".join(lines) + "\n")
        write_sums(report.parent)
        publish.Store(publish.WORK).save(record)


@pytest.fixture
def measured(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    stand_in = Measured()
    monkeypatch.setattr(publish, "measure", stand_in)
    return stand_in


def run(*arguments: str) -> int:
    return publish.main([*arguments, "--machine", "here", "--jobs", "1"])


def found() -> Published:
    return published.read(Path("results/published/here") / NAME)


def test_what_is_measured_is_written_and_the_rest_said(measured: Measured, capsys) -> None:
    measured.records["embedded-first2"] = RECORD
    assert run() == 1
    assert list(found().cells) == ["embedded-first2"]
    assert found().records == {RECORD.cell_id: RECORD}
    said = capsys.readouterr().err
    assert f"{NAME}, embedded-texts-first2: its run wrote no" in said
    assert "nuqmm/table3, embedded: its run wrote no" in said
    assert not Path("results/published/here/nuqmm").exists()
    order = [alone for _, _, alone in measured.calls]
    assert order == sorted(order), "all accuracies before the first speed"
    assert run("--only", "nuqmm/*") == 1
    assert measured.calls[-1][0] == "nuqmm/table3"


def test_numbers_are_compared_with_those_of_the_last_commit(measured: Measured, capsys) -> None:
    measured.records["embedded-first2"] = RECORD
    run()
    commit()
    for value in (20.5, 21.5):
        measured.records["embedded-first2"] = dataclasses.replace(RECORD, values={"ppl": value})
        run()
        text = Path("results/published/here/changes.md").read_text()
        assert ("| opt-30b/fp16 | wiki2 " in text) == (value != 20.5)
    assert "20.5 |" in text
    assert "21.5 |" in text
    assert "1 numbers differ" in capsys.readouterr().err


def test_a_variant_that_cannot_be_measured_stays_unless_pruned(measured: Measured, capsys) -> None:
    other = dataclasses.replace(RECORD, cell_id="ffff")
    measured.records = {"embedded-first2": RECORD, "embedded-texts-first2": other}
    run()
    assert set(found().cells) == set(measured.records)
    (publish.WORK / NAME / "embedded-texts-first2/table.csv").unlink()
    measured.records["embedded-texts-first2"] = None
    assert run("--only", NAME) == 1
    assert set(found().records) == {RECORD.cell_id, "ffff"}
    assert "kept published" in capsys.readouterr().err
    assert run("--only", NAME, "--prune") == 1
    assert set(found().records) == {RECORD.cell_id}
    measured.records["embedded-first2"] = None
    (publish.WORK / NAME / "embedded-first2/table.csv").unlink()
    run("--only", NAME, "--prune")
    assert not (Path("results/published/here") / NAME).exists()


def test_a_row_that_cannot_be_measured_here_is_not_published_away(
    measured: Measured, capsys
) -> None:
    measured.records["embedded-first2"] = RECORD
    for measured.second in (RECORD.cell_id, ""):
        assert run("--only", NAME) == 1
        assert sum(bool(c["cell_id"]) for c in found().cells["embedded-first2"]) == 2
    said = "1 published rows cannot be measured here, first opt-30b/q3_g64; kept published"
    assert said in capsys.readouterr().err
    run("--only", NAME, "--prune")
    assert sum(bool(c["cell_id"]) for c in found().cells["embedded-first2"]) == 1


def test_cells_of_a_plan_without_record_are_not_published(measured: Measured, capsys) -> None:
    measured.records["embedded-first2"] = RECORD
    run()
    publish.Store(publish.WORK).path(RECORD.cell_id).unlink()
    measured.records["embedded-first2"] = None
    run()
    assert "1 of its 1 cells are not measured" in capsys.readouterr().err


def test_what_is_no_longer_listed_goes_with_prune(measured: Measured, capsys) -> None:
    measured.records["embedded-first2"] = RECORD
    run()
    Path("results/published/list.yaml").write_text('nuqmm/table3:\n  embedded: ""\n')
    run()
    assert f"{NAME} is not in the list; --prune removes it" in capsys.readouterr().err
    assert found()
    run("--prune")
    assert not (Path("results/published/here") / NAME).exists()


def test_a_reader_is_warned(measured: Measured, capsys) -> None:
    provenance = {"git_commit": "def", "git_dirty": True}
    other = dataclasses.replace(RECORD, cell_id="ffff", provenance=provenance)
    measured.records = {"embedded-first2": RECORD, "embedded-texts-first2": other}
    run()
    said = capsys.readouterr().err
    assert "its records are of 2 commits" in said
    assert "1 records are of a tree that was not clean" in said
    page = (Path("results/published/here") / NAME / "table.md").read_text()
    assert "git_commit: abc (1), def (1)" in page


@pytest.mark.parametrize("dirty", [True, None])
def test_a_dirty_tree_measures_nothing(measured: Measured, monkeypatch, capsys, dirty) -> None:
    about = publish.environment() | {"git_dirty": dirty}
    monkeypatch.setattr(publish, "environment", lambda: about)
    assert run() == 2
    assert "git status" in capsys.readouterr().err
    assert measured.calls == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "must map names"),
        ('lut-gemm-v3/tabel4: {a: ""}', "unknown artifact 'lut-gemm-v3/tabel4': did you mean"),
        ("lut-gemm-v3/table4:\n  embedded:", "give the overrides as one text"),
        ("lut-gemm-v3/table4: []", "lut-gemm-v3/table4 must map names"),
        ("a: b: c", "is not YAML"),
    ],
)
def test_a_wrong_list_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(text)
    with pytest.raises(LutlabError, match=message):
        read_list(path=path)


def test_the_list_is_read_in_a_checkout(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LutlabError, match="at the top of a checkout"):
        read_list()


def test_published_artifacts_are_rendered_without_measuring(measured: Measured, capsys) -> None:
    measured.records["embedded-first2"] = RECORD
    run()
    assert render.main(["--only", NAME]) == 0
    folder = Path("results/rendered/here") / NAME / "embedded-first2"
    assert {p.name for p in folder.iterdir()} == {
        *(f"table.{suffix}" for suffix in ("md", "csv", "tex", "html")),
        *(f"figure.{suffix}" for suffix in ("png", "svg")),
        "SHA256SUMS",
    }
    page = (folder / "table.md").read_text()
    assert "20.50 †" in page
    assert "git_commit: abc" in page
    assert render.main(["--only", "nothing"]) == 2
    assert "nothing under" in capsys.readouterr().err


def test_pages_are_written_anew_from_records_of_any_tree(measured: Measured, monkeypatch) -> None:
    measured.records["embedded-first2"] = RECORD
    run()
    folder = Path("results/published/here") / NAME
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "table.md").write_text("an older page")
    about = publish.environment() | {"git_dirty": True}
    monkeypatch.setattr(publish, "environment", lambda: about)
    calls = len(measured.calls)
    assert run("--render-only", "--only", NAME) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert len(measured.calls) == calls
    assert run("--render-only", "--only", "nuqmm/*") == 2, "nothing of it is published"


def test_only_rows_that_share_the_machine_or_only_those_that_do_not(command: CommandLine) -> None:
    assert command(*QUICK, "alone=true").code == 0
    assert command.records() == {}
    speeds = ["evaluate=[peak_memory]", "logger=none"]
    assert command(*speeds, "alone=false").code == 0
    assert command.records() == {}


@pytest.mark.slow
def test_a_real_run_is_published_and_goes_on_where_it_was(
    checkout: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm.run_children(monkeypatch)
    listed = read_list(NAME)[:1]
    lines = f"{NAME}:\n  {listed[0].name}: {listed[0].line}\n"
    Path("results/published/list.yaml").write_text(lines)
    assert publish.main(["--machine", "here", "--jobs", "2"]) == 0, capfd.readouterr().err
    first = found()
    rows = csv.parse((Path("results/published/here") / NAME / "table.csv").read_text())
    assert sum(bool(row["measured"]) for row in rows) == len(first.records) == 12
    assert {r.provenance["threads"] for r in first.records.values()} == {1}
    assert {json.dumps(r.run["q"]) for r in first.records.values()} == {"16", "3"}
    assert publish.main(["--machine", "here", "--jobs", "2"]) == 0
    assert found() == first
