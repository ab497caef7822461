"""Table 4 in seconds: two rows on the first windows of each text."""

from __future__ import annotations

import csv
from pathlib import Path

SOME = ["rows=[opt-30b/fp16,opt-30b/q3_g64]", "data.limit=4"]
TABLE = ["+exp=table4", *SOME, "logger=none"]
CELLS = 12
RENDERED = "lut-gemm-v3/table4/embedded-first4"


def table_csv(results: Path) -> list[dict[str, str]]:
    """Rows of the rendered Table 4."""
    with (results / RENDERED / "table.csv").open(newline="") as file:
        return list(csv.DictReader(file))
