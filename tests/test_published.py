"""Published tables and their records belong together: every measured number has its record, and is its number."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from tests.conftest import ROOT

from lutlab.experiment.artifact.artifact import load_artifact

PUBLISHED = ROOT / "results" / "published"
TABLES = sorted(PUBLISHED.glob("*/*/*/*/table.csv"))


@pytest.mark.parametrize("path", TABLES, ids=lambda p: p.parent.relative_to(PUBLISHED).as_posix())
def test_every_measured_number_is_that_of_a_record(path: Path) -> None:
    machine = PUBLISHED / path.relative_to(PUBLISHED).parts[0]
    artifact = load_artifact("/".join(path.relative_to(machine).parts[:2]))
    measured = 0
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if not row["measured"]:
                continue
            record = json.loads((machine / f"records/{row['cell_id']}.json").read_text())["record"]
            column = artifact.columns[row["column"]]
            value = record["values"][column.metric] * column.factor
            assert float(row["measured"]) == pytest.approx(value, rel=1e-12), row
            measured += 1
    assert measured


def test_no_published_file_names_a_folder_of_a_machine() -> None:
    pattern = re.compile(r"(^|[^A-Za-z0-9_.~])/(work|root|home|tmp|Users)/")
    files = [p for p in PUBLISHED.rglob("*") if p.suffix in (".json", ".csv", ".md", ".html")]
    kept = [p for p in files if not {"quantized", "calibration"} & set(p.parts)]
    assert kept
    assert [p for p in kept if pattern.search(p.read_text(encoding="utf-8"))] == []
