"""Publishing: what is measured is written, what is not is said and kept; of numbers before, only noise is not said."""

import contextlib
import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import pandas
import pytest
from tests import warm
from tests.base.refusals import refused
from tests.command_line import QUICK
from tests.conftest import ROOT

from lutlab.base.kept.files import write_sums
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.artifact.predicted import reason_of
from lutlab.experiment.report import csv, published
from lutlab.experiment.report.published import Published
from lutlab.experiment.store.record import Record
from lutlab.kernels.codegen.isa import Isa
from tools import changes, publish, render
from tools.published_list import LIST, read_list

NAME = "lut-gemm-v3/table4"
FIRST, TEXTS = "embedded-first2", "embedded-texts-first2"
PUBLISHED = ROOT / "results" / "published"
HERE = Path("results/published/here")
RECORD = Record(
    cell_id="0123456789abcdef", status="done", run={}, evaluation={"evaluator": "ppl"}, values={"ppl": 20.5}, n=1,
    samples=(3.0,), facts={"seqlen": 8}, provenance={"git_commit": "abc", "git_dirty": False}, seconds=1.0,
)  # fmt: skip
CELL = {
    "column": "wiki2", "measured_on": "", "model": "m", "note": "", "stand_in": "True", "verdict": "stand-in",
}  # fmt: skip


def git(*arguments: str) -> None:
    line = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
    subprocess.run(line, check=True, capture_output=True)


def commit() -> None:
    git("add", "results/published")
    git("commit", "-qm", "published", "--allow-empty")


def listed(text: str) -> None:
    Path("results/published/list.yaml").write_text(text)


def tree_is(dirty: bool | None, monkeypatch) -> None:
    about = publish.environment() | {"git_dirty": dirty}
    monkeypatch.setattr(publish, "environment", lambda: about)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch) -> Path:
    """A folder with a list, run.py and a commit; the tree of the code counts as clean."""
    (tmp_path / "results/published").mkdir(parents=True)
    (tmp_path / "run.py").symlink_to(ROOT / "run.py")
    monkeypatch.chdir(tmp_path)
    listed(f"""{NAME}:
  {FIRST}: data.limit=2 "rows=['opt-30b/fp16','opt-30b/q3_g64']"
  {TEXTS}: data.root=texts data.limit=2
nuqmm/table3: {{embedded: ""}}
""")
    tree_is(False, monkeypatch)
    git("init", "-q")
    commit()
    return tmp_path


class Measured:
    """Stands in for the runs: writes the report and the record of a variant, as run.py would."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {FIRST: RECORD}
        self.second: str | None = None  # cell of another row, empty where it cannot be measured
        self.calls: list[tuple[str, str, bool]] = []

    def __call__(self, variants, alone: bool, jobs: int) -> None:
        for variant in variants:
            self.calls.append((variant.artifact, variant.name, alone))
            if record := self.records.get(variant.name):
                self.write(publish.WORK / variant.artifact / variant.name, record)

    def write(self, folder: Path, record: Record) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        cells = {"opt-30b/fp16": record.cell_id, "opt-30b/q3_g64": self.second}
        value = record.values["ppl"]
        known = {row: cell for row, cell in cells.items() if cell is not None}
        rows = [CELL | {"row": r, "cell_id": c, "measured": c and value} for r, c in known.items()]
        pandas.DataFrame(rows).to_csv(folder / "table.csv", index=False)
        write_sums(folder)
        publish.Store(publish.WORK).save(record)


@pytest.fixture
def measured(checkout: Path, monkeypatch) -> Measured:
    stand_in = Measured()
    monkeypatch.setattr(publish, "measure", stand_in)
    return stand_in


@pytest.fixture
def run(measured, capsys):
    """Exit code of publishing, and what it says."""

    def publishing(*arguments: str) -> tuple[int, str]:
        code = publish.main([*arguments, "--machine", "here", "--jobs", "1"])
        return code, capsys.readouterr().err

    return publishing


def kept():
    return published.read(HERE / NAME)


def numbers() -> int:
    """How many cells of the first variant have one."""
    return sum(bool(cell["cell_id"]) for cell in kept().cells[FIRST])


def test_what_is_measured_is_written_and_the_rest_said(measured, run) -> None:
    code, text = run()
    assert code == 1
    assert list(kept().cells) == [FIRST]
    assert kept().records == {RECORD.cell_id: RECORD}
    assert f"{NAME}, {TEXTS}: its run wrote no" in text
    assert "nuqmm/table3, embedded: its run wrote no" in text
    assert not (HERE / "nuqmm").exists()
    order = [alone for _, _, alone in measured.calls]
    assert order == sorted(order), "all accuracies before the first speed"
    assert run("--only", "nuqmm/*")[0] == 1
    assert measured.calls[-1][0] == "nuqmm/table3"


def test_numbers_are_compared_with_those_of_the_last_commit(measured, run) -> None:
    run()
    commit()
    for value in (20.5, 21.5):
        measured.records[FIRST] = dataclasses.replace(RECORD, values={"ppl": value})
        text = run()[1]
        changes = (HERE / "changes.md").read_text()
        assert ("| opt-30b/fp16 | wiki2 " in changes) == (value != 20.5)
    assert "20.5 |" in changes
    assert "21.5 |" in changes
    assert "1 numbers differ" in text
    commit()
    HERE.rename(HERE.with_name("older"))
    commit()
    assert "0 numbers differ" in run()[1], "it came from another machine's folder"


def test_a_variant_that_cannot_be_measured_stays_unless_pruned(measured, run) -> None:
    measured.records[TEXTS] = dataclasses.replace(RECORD, cell_id="ffff")
    run()
    assert set(kept().cells) == {FIRST, TEXTS}
    shutil.rmtree(publish.WORK / NAME)
    del measured.records[TEXTS]
    code, text = run("--only", NAME)
    assert (code, "kept published" in text) == (1, True)
    assert set(kept().records) == {RECORD.cell_id, "ffff"}
    assert run("--only", NAME, "--prune")[0] == 1
    assert set(kept().records) == {RECORD.cell_id}
    shutil.rmtree(publish.WORK / NAME)
    measured.records.clear()
    run("--only", NAME, "--prune")
    assert not (HERE / NAME).exists()


def test_a_variant_measured_again_keeps_its_new_numbers_beside_a_kept_one(measured, run) -> None:
    measured.records[TEXTS] = dataclasses.replace(RECORD, cell_id="ffff")
    run()
    again = dataclasses.replace(RECORD, values={"ppl": 21.5})
    measured.records[FIRST] = again
    assert f"--variants is {FIRST}; kept published" in run("--variants", FIRST)[1]
    assert kept().records[RECORD.cell_id] == again
    assert "ffff" in kept().records


def test_a_row_that_cannot_be_measured_here_is_not_published_away(measured, run) -> None:
    for measured.second in (RECORD.cell_id, ""):
        code, text = run("--only", NAME)
        assert (code, numbers()) == (1, 2)
    assert "1 published rows cannot be measured here, first opt-30b/q3_g64; kept published" in text
    run("--only", NAME, "--prune")
    assert numbers() == 1


def test_cells_of_a_plan_without_record_are_not_published(measured, run) -> None:
    run()
    publish.Store(publish.WORK).path(RECORD.cell_id).unlink()
    measured.records.clear()
    assert "1 of its 1 cells are not measured" in run()[1]


def test_what_is_no_longer_listed_goes_with_prune(run) -> None:
    run()
    listed('nuqmm/table3:\n  embedded: ""\n')
    assert f"{NAME} is not in the list; --prune removes it" in run()[1]
    assert kept()
    run("--prune")
    assert not (HERE / NAME).exists()


def test_a_reader_is_warned(measured, run) -> None:
    provenance = {"git_commit": "def", "git_dirty": True}
    measured.records[TEXTS] = dataclasses.replace(RECORD, cell_id="ffff", provenance=provenance)
    text = run()[1]
    assert "its records are of 2 commits" in text
    assert "1 records are of a tree that was not clean" in text
    assert "git_commit: abc (1), def (1)" in (HERE / NAME / "table.md").read_text()


def test_a_speed_of_another_machine_is_refused(measured, run) -> None:
    about = {"cpu": "AMD EPYC 25/17", "isa": "avx2", "cores": 2, "gpu": None}
    measured.records[FIRST] = dataclasses.replace(
        RECORD, evaluation={"evaluator": "generation"}, provenance=RECORD.provenance | about
    )
    code, text = run()
    assert code == 1
    assert "speeds of amd-epyc-25-17-avx2-2cores do not go to results/published/here" in text
    assert not (HERE / NAME).exists()


@pytest.mark.parametrize("dirty", [True, None])
def test_a_dirty_tree_measures_nothing(measured, run, monkeypatch, dirty) -> None:
    tree_is(dirty, monkeypatch)
    code, text = run()
    assert (code, measured.calls) == (2, [])
    assert "git status" in text


@pytest.mark.parametrize(("text", "message"), [
    ("- a", "must map names"),
    ('lut-gemm-v3/tabel4: {a: ""}', "unknown artifact 'lut-gemm-v3/tabel4': did you mean"),
    ("lut-gemm-v3/table4:\n  embedded:", "give the overrides as one text"),
    ("lut-gemm-v3/table4: []", "lut-gemm-v3/table4 must map names"),
    ("a: b: c", "is not YAML"),
])  # fmt: skip
def test_a_wrong_list_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list.yaml").write_text(text)
    refused(message, read_list, path=tmp_path / "list.yaml")
    with contextlib.chdir(tmp_path):
        refused("at the top of a checkout", read_list)


def test_published_artifacts_are_rendered_without_measuring(run, capsys) -> None:
    run()
    assert render.main(["--only", NAME]) == 0
    folder = Path("results/rendered/here") / NAME / FIRST
    tables = (f"table.{suffix}" for suffix in ("md", "csv", "tex", "html"))
    files = {*tables, "figure.png", "figure.svg", "SHA256SUMS"}
    assert {path.name for path in folder.iterdir()} == files
    page = (folder / "table.md").read_text()
    assert "20.50 †" in page
    assert "git_commit: abc" in page
    assert render.main(["--only", "nothing"]) == 2
    assert "nothing under" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed-2-4-16/table3", "lut-gemm-v3/table5"])
def test_a_published_reason_is_todays(name: str) -> None:
    (folder,) = PUBLISHED.glob(f"*/{name}")
    found = published.read(folder)
    for variant in (v for v in read_list(name, ROOT / LIST) if v.name in found.cells):
        cells = found.cells[variant.name]
        today = render.reasons(found, variant.name, variant.command)
        notes = {
            c["row"] + c["column"]: reason_of(c["note"]) or c["note"]
            for c in cells
            if not c["cell_id"]
        }
        again = render.with_reasons(cells, today)
        assert notes == {c["row"] + c["column"]: c["note"] for c in again if not c["cell_id"]}


def test_pages_are_written_anew_from_records_of_any_tree(measured, run, monkeypatch) -> None:
    run()
    run("--render-only", "--only", NAME)
    before = {path: path.read_bytes() for path in (HERE / NAME).iterdir()}
    (HERE / NAME / "table.md").write_text("an older page")
    tree_is(True, monkeypatch)
    calls = len(measured.calls)
    assert run("--render-only", "--only", NAME)[0] == 0
    assert {path: path.read_bytes() for path in (HERE / NAME).iterdir()} == before
    assert len(measured.calls) == calls
    assert run("--render-only", "--only", "nuqmm/*")[0] == 2, "nothing of it is published"


@pytest.mark.parametrize(
    "line", [[*QUICK, "alone=true"], ["evaluate=[peak_memory]", "logger=none", "alone=false"]]
)
def test_only_rows_that_share_the_machine_or_only_those_that_do_not(command, line) -> None:
    assert command(*line).code == 0
    assert command.records() == {}


@pytest.mark.slow
def test_a_real_run_is_published_and_goes_on_where_it_was(checkout, capfd, monkeypatch) -> None:
    warm.run_children(monkeypatch)
    variant = read_list(NAME)[0]
    listed(f"{NAME}:\n  {variant.name}: {variant.line}\n")
    assert publish.main(["--machine", "here", "--jobs", "2"]) == 0, capfd.readouterr().err
    first = kept()
    rows = csv.parse((HERE / NAME / "table.csv").read_text())
    assert sum(bool(row["measured"]) for row in rows) == len(first.records) == 12
    assert {r.provenance["threads"] for r in first.records.values()} == {1}
    assert {json.dumps(r.run["q"]) for r in first.records.values()} == {"16", "3"}
    assert publish.main(["--machine", "here", "--jobs", "2"]) == 0
    assert kept() == first


@pytest.mark.parametrize(
    ("isa", "alone", "own"),
    [("avx512", False, "avx2"), ("avx512", True, None), ("neon", False, None)],
)
def test_accuracies_of_avx512_are_of_avx2(checkout, monkeypatch, isa, alone, own) -> None:
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    monkeypatch.setattr(publish, "detect", lambda: Isa(isa, ()))
    given = []

    def ran(command, env, **_):
        given.append(env)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(publish.subprocess, "run", ran)
    publish.measure(read_list(NAME), alone, jobs=1)
    assert [env.get("ATEN_CPU_CAPABILITY") for env in given] == [own]


SAMPLES = (1.0, 0.9, 1.1, 1.2, 0.8)  # quartiles 0.9 and 1.1: a number may be 1.11 times another
TABLE3 = "nuqmm/table3"


def artifact(name: str, column: str, values: dict[str, float], samples=SAMPLES) -> Published:
    """One whose last row was not measured."""
    numbers = [(row, str(value), row) for row, value in values.items()] + [("none", "", "")]
    cells = [{"row": r, "column": column, "measured": m, "cell_id": c} for r, m, c in numbers]
    records = {r: Record(r, "done", {}, {}, {}, len(samples), samples, {}, {}, 0.0) for r in values}
    return Published(name, {"embedded": cells}, records)


@pytest.mark.parametrize(
    ("after", "differs"), [(10.0, False), (10.000009, False), (10.00002, True), (9.9999, True)]
)
def test_accuracies(after: float, differs: bool) -> None:
    first, second = (artifact(NAME, "wiki2", {"opt-30b/fp16": ppl}) for ppl in (10.0, after))
    comparison = changes.compare([first], second)
    assert bool(comparison.changes) == differs
    assert (comparison.numbers, comparison.compared) == (1, 1)


@pytest.mark.parametrize(("after", "samples", "differs"), [
    (11.0, SAMPLES, False),
    (9.1, SAMPLES, False),
    (11.2, SAMPLES, True),
    (8.9, SAMPLES, True),
    (11.2, (0.5, 1.0, 1.5), False),  # within the quartiles of the later one
    (11.2, (), True),
])  # fmt: skip
def test_speeds(after: float, samples: tuple[float, ...], differs: bool) -> None:
    columns = load_artifact(TABLE3).columns
    column = next(key for key, spec in columns.items() if spec.evaluator == "kernel_latency")
    before = artifact(TABLE3, column, {"a-row": 10.0})
    now = artifact(TABLE3, column, {"a-row": after}, samples)
    assert bool(changes.compare([before], now).changes) == differs


def test_new_and_gone_numbers_are_listed_and_counted() -> None:
    before = artifact(NAME, "wiki2", {"opt-30b/fp16": 10.0, "opt-30b/q4_g32": 11.0})
    after = artifact(NAME, "wiki2", {"opt-30b/fp16": 12.5, "opt-66b/fp16": 9.0})
    elsewhere = artifact(NAME, "wiki2", {"opt-30b/fp16": 12.5})  # the same cell of another machine
    elsewhere.cells["real"] = after.cells["real"] = elsewhere.cells["embedded"]
    for version, made in enumerate((before, after), 1):
        components = {"method/bcq": version, "models": 1}
        run = {"method": "bcq", "options": {} if version == 1 else {"starts": "greedy"}}
        made.records["opt-30b/fp16"].provenance.update(
            identity={"components": components, "run": run}, cpu=str(version)
        )
    comparison = changes.compare([elsewhere, before], after)
    assert [(c.place[1], c.before, c.after) for c in comparison.changes] == [
        ("opt-30b/fp16", 10.0, 12.5),
        ("opt-30b/q4_g32", 11.0, None),
        ("opt-66b/fp16", None, 9.0),
    ]
    cause = "method/bcq 1 -> 2; options.starts - -> greedy"
    first = changes.compare([], artifact(NAME, "wiki2", {"opt-30b/fp16": 1.0}))
    text = changes.render([comparison, first], "commit abc")
    assert "commit abc" in text
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()]
    for line in (
        [NAME, "3", "2", "1", "2"],
        [NAME, "1", "0", "0", "1"],
        ["embedded", "opt-30b/fp16", "wiki2", "10", "12.5", "+25 %", cause],
        ["embedded", "opt-66b/fp16", "wiki2", "-", "9", "", ""],
    ):
        assert line in cells
