"""Reproduce rows of a paper's table, and read what was measured back as a pandas table.

    python examples/reproduce_table.py

LUT-GEMM's Table 4 on the first windows of each text. A small model that ships with lutlab is in the place of OPT-30B:
compare the order of the rows and the claims below the table, not the values. Results are kept in `results/` of the
current folder, and a second call measures nothing.
"""

import subprocess
import sys

import lutlab

ASKED = ["+exp=table4", "rows=['opt-30b/*']", "data.limit=2", "data.examples=8", "logger=none"]
subprocess.run([sys.executable, "-m", "lutlab", *ASKED], check=True)

cells = lutlab.results("results")
perplexity = cells[(cells["metric"] == "ppl") & cells["measured"].notna()]
rows = perplexity.pivot_table(index=["q", "g", "stored_bits"], columns="text", values="measured")
print(rows.sort_index(ascending=False).round(2))
