"""Published tables and their records belong together: every measured number has its record, and is its number."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import get_args

import pytest
from tests.conftest import ROOT

from lutlab.base.kept.files import check_sums
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.artifact.rows import Scale
from lutlab.experiment.report import published
from lutlab.experiment.report.means import is_mean
from lutlab.experiment.store.record import content_id, read_lines
from lutlab.experiment.store.store import Store
from tools.published_list import read_list

PUBLISHED = ROOT / "results" / "published"
ARTIFACTS = sorted(path.parent for path in PUBLISHED.glob("*/*/*/table.csv"))
FILES = [p for depth in range(1, 5) for p in PUBLISHED.glob("/".join("*" * depth)) if p.is_file()]
NAMES = {"records.jsonl", "table.csv", "table.md"}


@pytest.mark.parametrize("folder", ARTIFACTS, ids=lambda p: p.relative_to(PUBLISHED).as_posix())
def test_every_measured_number_is_that_of_a_record(folder: Path) -> None:
    artifact = load_artifact("/".join(folder.parts[-2:]))
    lines = (folder / "records.jsonl").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    records = {r["cell_id"]: r for r in (json.loads(line)["record"] for line in lines)}
    measured, named, means = 0, set(), {}
    rows = {r.key: r for scale in get_args(Scale) for r in artifact.rows(scale)}
    with (folder / "table.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            named.add(row["cell_id"])
            if not row["measured"]:
                continue
            column = artifact.columns_of(rows[row["row"]])[row["column"]]
            if is_mean(rows[row["row"]], column):
                means[row["variant"], row["row"], row["column"]] = float(row["measured"])
                continue
            value = records[row["cell_id"]]["values"][column.metric] * column.factor
            assert float(row["measured"]) == pytest.approx(value, rel=1e-12), row
            measured += 1
    assert measured
    tables = published.read(folder).tables({}) if means else {}
    for (variant, key, column), mean in means.items():
        found = next(r.cells[column] for r in tables[variant].rows if r.key == key)
        assert mean == pytest.approx(found.measured, rel=1e-12)
    assert named - {""} == set(records), "no cell without its record, no record without a cell"
    assert {record["provenance"]["git_dirty"] for record in records.values()} == {False}


@pytest.mark.parametrize("folder", ARTIFACTS, ids=lambda p: p.relative_to(PUBLISHED).as_posix())
def test_its_page_has_a_section_for_each_variant_of_the_list(folder: Path) -> None:
    found = published.read(folder)
    listed = {v.name: v.command for v in read_list(found.artifact, PUBLISHED / "list.yaml")}
    assert set(found.cells) <= set(listed)
    page = (folder / "table.md").read_text(encoding="utf-8")
    for variant, table in found.tables(listed).items():
        assert f"\n## {variant}\n" in page
        assert f"`{table.command}`, scale `{table.scale}`" in page


def test_files_are_those_of_their_sums() -> None:
    """Publishing writes them; after a merge by hand, `seal` of report/published.py does."""
    for machine in {folder.parents[1] for folder in ARTIFACTS}:
        check_sums(machine, "render it again")
        said = (machine / "SHA256SUMS").read_text().splitlines()
        assert len(said) == len(NAMES) * sum(folder.parents[1] == machine for folder in ARTIFACTS)


def test_records_lie_in_a_few_files_that_the_store_reads() -> None:
    assert len(FILES) <= 3 * len(ARTIFACTS) + 40  # benchmarks beside artifacts
    others = {p.name for p in FILES if p.parent in ARTIFACTS} - NAMES
    assert others == set()
    for machine in {folder.parents[1] for folder in ARTIFACTS}:
        assert Store(machine).all()  # checksums are verified on the way


def test_an_id_is_the_hash_of_what_its_record_says_of_it() -> None:
    """Of records that say so: those measured before ids were made of versions do not."""
    machines = {folder.parents[1] for folder in ARTIFACTS}
    for record in (r for machine in machines for r in Store(machine).all().values()):
        if "identity" in record.provenance:
            assert content_id(record.provenance["identity"]) == record.cell_id


def test_no_published_file_names_a_folder_of_a_machine() -> None:
    pattern = re.compile(r"(^|[^A-Za-z0-9_.~])/(work|root|home|tmp|Users)/")
    assert FILES
    assert [p for p in FILES if pattern.search(p.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("q", [2, 3, 4])
@pytest.mark.parametrize("method", ["bcq", "bcq_offset"])
def test_binary_codes_err_no_more_than_uniform_ones_on_any_real_layer(q: int, method: str) -> None:
    (folder,) = PUBLISHED.glob("*/lutlab/binary_and_uniform")
    found = published.read(folder)
    (variant,) = (name for name in found.cells if name.startswith("real"))
    cells = {(c["row"], c["column"]): c["cell_id"] for c in found.cells[variant]}
    binary, uniform = (
        found.records[cells[f"llama/q{q}/{name}", "error"]].samples for name in (method, "rtn")
    )
    assert len(binary) == len(uniform) == 210
    pairs = enumerate(zip(binary, uniform, strict=True))
    assert [layer for layer, (one, other) in pairs if one > other] == []


def test_the_page_of_methods_says_how_far_a_quality_repeats_on_another_processor() -> None:
    found = {}
    for path in PUBLISHED.glob("*/*/*/records.jsonl"):
        for r in read_lines(path).values():
            known = r.provenance["identity"]
            plain = "text" in known and not known["run"].get("options") and "options" not in known
            windows = (r.evaluation["text"] or {}).get("limit")
            if (plain and r.run["model"]["source"] == "package" and windows == 4
                and r.evaluation["evaluator"] == "ppl" and r.evaluation["text"]["protocol"] == "wikitext2"
                and (r.run["calibration"] or {"samples": 32})["samples"] == 32):  # fmt: skip
                name = r.run["method"], r.run["q"], r.run["g"]
                isa = r.provenance["torch_cpu_capability"]
                found.setdefault(name, {})[isa] = r.values["ppl"]
    both = {name: values for name, values in found.items() if len(values) == 2}
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    lines = page.partition("| | AVX2 | AVX-512 |")[2].partition("\n\n")[0].splitlines()[2:]
    told = {}
    for line in lines:
        name, *values = (cell.strip() for cell in line.strip("|").split("|"))
        method, q, g = re.fullmatch(
            r"`(\w+)`(?:, q=(\d))?(?: g=(\d+)|, a scale a row)?", name
        ).groups()
        told[method, float(q or 16), int(g or -1)] = values
    assert told.keys() <= both.keys()
    assert len(told) >= 6
    for name, values in told.items():
        exact = both[name]["AVX2"], both[name]["AVX512"]
        assert values == [
            f"{v:.{len(t.partition('.')[2])}f}" for v, t in zip(exact, values, strict=True)
        ]
