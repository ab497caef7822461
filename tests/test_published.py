"""Published tables and their records belong together: every measured number has its record, and is its number."""

import json
import re
from collections import defaultdict
from typing import get_args

import pytest
from tests.conftest import ROOT
from tests.experiment.run.table4 import cells_of

from lutlab.base.kept.files import check_sums
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.artifact.rows import Scale
from lutlab.experiment.report import published
from lutlab.experiment.report.means import is_mean
from lutlab.experiment.store.record import read_lines
from lutlab.experiment.store.store import Store
from tools.published_list import read_list

PUBLISHED = ROOT / "results" / "published"
ARTIFACTS = sorted(path.parent for path in PUBLISHED.glob("*/*/*/table.csv"))
MACHINES = {folder.parents[1] for folder in ARTIFACTS}
FILES = [p for depth in range(1, 5) for p in PUBLISHED.glob("/".join("*" * depth)) if p.is_file()]
NAMES = {"records.jsonl", "table.csv", "table.md"}
of_each = pytest.mark.parametrize(
    "folder", ARTIFACTS, ids=lambda path: path.relative_to(PUBLISHED).as_posix()
)


@of_each
def test_every_measured_number_is_that_of_a_record(folder):
    artifact = load_artifact("/".join(folder.parts[-2:]))
    records = read_lines(folder / "records.jsonl")
    lines = {line.key: line for scale in get_args(Scale) for line in artifact.rows(scale)}
    measured, cell_ids, means = 0, set(), {}
    for cell in cells_of(folder):
        cell_ids.add(cell["cell_id"])
        if not cell["measured"]:
            continue
        line, number = lines[cell["row"]], float(cell["measured"])
        column = artifact.columns_of(line)[cell["column"]]
        if is_mean(line, column):
            means[cell["variant"], cell["row"], cell["column"]] = number
            continue
        value = records[cell["cell_id"]].values[column.metric] * column.factor
        assert number == pytest.approx(value, rel=1e-12), cell
        measured += 1
    assert measured
    tables = published.read(folder).tables({}) if means else {}
    for (variant, key, column), mean in means.items():
        cells = next(row.cells for row in tables[variant].rows if row.key == key)
        assert mean == pytest.approx(cells[column].measured, rel=1e-12)
    assert cell_ids - {""} == set(records), "no cell without its record, no record without a cell"
    assert {record.provenance["git_dirty"] for record in records.values()} == {False}


def test_accuracies_by_avx2_have_the_same_digits_on_two_processors():
    of_cell = defaultdict(dict)  # cell id -> processor -> values
    for folder in ARTIFACTS:
        for record in read_lines(folder / "records.jsonl").values():
            about = record.provenance
            reads = about["identity"].keys() & {"text", "speed"} == {"text"}
            if reads and about["torch_cpu_capability"] == "AVX2":
                of_cell[record.cell_id][about["cpu"]] = record.values
    twice = [list(of.values()) for of in of_cell.values() if len(of) > 1]
    assert twice
    assert [values for values in twice if values != values[:1] * len(values)] == []


@of_each
def test_its_page_has_a_section_for_each_variant_of_the_list(folder):
    stored = published.read(folder)
    commands = {v.name: v.command for v in read_list(stored.artifact, PUBLISHED / "list.yaml")}
    assert set(stored.cells) <= set(commands)
    page = (folder / "table.md").read_text(encoding="utf-8")
    for variant, table in stored.tables(commands).items():
        assert f"\n## {variant}\n" in page
        assert f"`{table.command}`, scale {table.scale}" in page


def test_files_are_those_of_their_sums():
    """Publishing writes them; after a benchmark or a merge by hand, `tools.publish --render-only` does."""
    for machine in (folder for folder in PUBLISHED.iterdir() if folder.is_dir()):
        check_sums(machine, "render it again")
        sums = (machine / "SHA256SUMS").read_text().splitlines()
        files = [p for p in FILES if p.is_relative_to(machine)]
        assert len(sums) == len([p for p in files if p.name not in ("SHA256SUMS", "changes.md")])


def test_records_lie_in_a_few_files_that_the_store_reads():
    machines = [folder for folder in PUBLISHED.iterdir() if folder.is_dir()]
    assert len(FILES) <= 3 * len(ARTIFACTS) + 15 * len(machines)  # benchmarks beside artifacts
    assert {p.name for p in FILES if p.parent in ARTIFACTS} <= NAMES
    assert all(Store(machine).all() for machine in MACHINES)  # verifies checksums and ids


def test_every_benchmark_names_its_commit_and_processor():
    benchmarks = [json.loads(p.read_text()) for p in FILES if p.parent.name == "benchmarks"]
    assert benchmarks
    for origin in (benchmark["origin"] for benchmark in benchmarks):
        assert origin.keys() >= {"git_commit", "git_dirty", "cpu", "isa", "date"}


def test_no_published_file_names_a_folder_of_a_machine():
    pattern = re.compile(r"(^|[^A-Za-z0-9_.~])/(work|root|home|tmp|Users)/")
    assert FILES
    assert [p for p in FILES if pattern.search(p.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("q", [2, 3, 4])
@pytest.mark.parametrize("method", ["bcq", "bcq_offset"])
def test_binary_codes_err_no_more_than_uniform_ones_on_any_real_layer(q, method):
    (folder,) = PUBLISHED.glob("*/lutlab/binary_and_uniform")
    stored = published.read(folder)
    (variant,) = (name for name in stored.cells if name.startswith("real"))
    cells = {(c["row"], c["column"]): c["cell_id"] for c in stored.cells[variant]}
    binary, uniform = (
        stored.records[cells[f"llama/q{q}/{name}", "error"]].samples for name in (method, "rtn")
    )
    assert len(binary) == len(uniform) == 210
    assert [layer for layer in range(210) if binary[layer] > uniform[layer]] == []


def test_the_page_of_methods_says_how_far_a_quality_repeats_on_another_processor():
    measured = defaultdict(dict)
    for path in PUBLISHED.glob("*/*/*/records.jsonl"):
        for r in read_lines(path).values():
            known, text = r.provenance["identity"], r.evaluation["text"] or {}
            run = known.get("run", {})
            plain = "text" in known and not (
                run.get("options") or run.get("skip") or "options" in known
            )
            if (plain and r.run["model"]["source"] == "package" and text.get("limit") == 4
                and r.evaluation["evaluator"] == "ppl" and text["protocol"] == "wikitext2"
                and (r.run["calibration"] or {"samples": 32})["samples"] == 32):  # fmt: skip
                by_isa = measured[r.run["method"], r.run["q"], r.run["g"]]
                by_isa[r.provenance["torch_cpu_capability"]] = r.values["ppl"]
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    lines = page.partition("| | AVX2 | AVX-512 |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(lines) >= 6
    for line in lines:
        name, *values = (cell.strip() for cell in line.strip("|").split("|"))
        row = re.fullmatch(r"`(\w+)`(?:, q=(\d))?(?: g=(\d+)|, a scale a row)?", name)
        exact = measured[row[1], float(row[2] or 16), int(row[3] or -1)]
        assert len(exact) == 2
        for isa, value in zip(("AVX2", "AVX512"), values, strict=True):
            assert value == f"{exact[isa]:.{len(value.partition('.')[2])}f}"
