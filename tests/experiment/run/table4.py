"""Table 4 in seconds: two rows on the first windows of each text."""

import csv

SOME = ["rows=[opt-30b/fp16,opt-30b/q3_g64]", "data.limit=4"]
TABLE = ["+exp=table4", *SOME, "logger=none"]
CELLS = 12
RENDERED = "lut-gemm-v3/table4/embedded-first4"


def cells_of(folder):
    """Rows of the table.csv in a folder, a cell each."""
    with (folder / "table.csv").open(newline="") as file:
        return list(csv.DictReader(file))
