"""The README's commands are the ones CI runs, and what they name exists."""

from __future__ import annotations

import collections
import csv
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_runs_the_readmes_test_command_to_the_letter() -> None:
    commands = [line for line in README.splitlines() if line.startswith("python3 -m venv")]
    assert len(commands) == 2
    install, _, test = commands[1].rpartition(" && ")
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert install in script
    assert test in script


def test_it_is_read_at_one_sitting() -> None:
    assert len(README.splitlines()) <= 120


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_environment_names_no_versions_of_its_own() -> None:
    """pyproject.toml is the one list of versions."""
    environment = (ROOT / "environment.yml").read_text()
    assert "-e .[dev]" in environment
    assert "torch" not in environment


def test_its_table_of_the_real_model_is_the_published_one() -> None:
    """In each line the row of least divergence within the limit, of ours and of llama.cpp's."""
    block = README.partition("<!-- published-real -->")[2].partition("<!-- /published-real -->")[0]
    source = ROOT / re.search(r"\((results/published/[^)]+)/table\.md\)", block)[1] / "table.csv"
    rows, labels = collections.defaultdict(dict), {}
    with source.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["variant"] == "real-data-first4":
                rows[row["row"]][row["column"]] = float(row["measured"])
                labels[row["row"]] = dict(one.split("=", 1) for one in row["labels"].split("; "))
    lines = [[c.strip() for c in x.split("|")[1:-1]] for x in block.splitlines() if x[:3] != "|--"]
    lines = [line for line in lines if line and line[0][:1].isdigit()]
    assert len(lines) > 4
    for limit, *shown in lines:
        for side, cells in (("ours", shown[:4]), ("llama.cpp", shown[4:])):
            fitting = [
                name
                for name, row in rows.items()
                if row["bits"] <= float(limit)
                and labels[name]["Method"].startswith("llama.cpp") == (side == "llama.cpp")
            ]
            if not fitting:
                assert cells == ["-", "", "", ""]
                continue
            best = min(fitting, key=lambda name: rows[name]["kld"])
            row = rows[best]
            assert labels[best]["Stored as"] in cells[0]
            assert cells[1:] == [f"{row['bits']:.2f}", f"{row['kld']:.3f}", f"{row['ppl']:.2f}"]


def test_what_it_says_of_a_small_model_is_recorded() -> None:
    """Sizes, paces and divergences of README and of the page on text, of one run of bench_real_model.py."""
    folder = ROOT / "results" / "published" / "amd-epyc-2cores" / "benchmarks"
    found = json.loads((folder / "real_model.json").read_text(encoding="utf-8"))
    assert found["threads"] == 1
    rows = {row["name"]: row for row in found["rows"]}
    full, four, three = (rows[name] for name in ("full precision", "rtn_q4", "gptq_swept_q3"))
    wide = rows["rtn_q4_embeddings_16"]
    text = " ".join(README.split())
    assert (
        f"decodes {four['tokens_per_s']:.0f} tokens a second of it, and {full['tokens_per_s']:.0f} in"
        in text
    )
    assert (
        f"{three['file_mb']:.1f} MB of weights and {three['tokens_per_s']:.0f} tokens a second"
        in text
    )
    assert f"{three['kld_along_blocks'][-1]:.3f} nats" in text
    assert f"four bits have {four['kld_along_blocks'][-1]:.3f}" in text
    page = " ".join((ROOT / "docs" / "how-to" / "generate.md").read_text(encoding="utf-8").split())
    assert f"{four['file_mb']:.1f} MB of weights in the place of {wide['file_mb']:.1f}" in page
    assert (
        f"{four['tokens_per_s']:.0f} tokens a second in the place of {wide['tokens_per_s']:.0f}"
        in page
    )


def test_its_table_is_the_published_run() -> None:
    """Every number between the markers of the first table's page stands in the CSV beside the page that it links to."""
    page = (ROOT / "docs" / "first-table.md").read_text(encoding="utf-8")
    block = page.partition("<!-- published-table -->")[2].partition("<!-- /published-table -->")[0]
    source = (
        ROOT / "results" / "published" / "amd-epyc-2cores" / "lut-gemm-v3" / "table4" / "table.csv"
    )
    with source.open(newline="") as file:
        cells = {
            (row["row"], row["column"]): row
            for row in csv.DictReader(file)
            if row["variant"] == "embedded"
        }
    lines = [
        [c.strip() for c in line.split("|")[1:-1]]
        for line in block.splitlines()
        if line.startswith("| OPT-")
    ]
    assert len(lines) == 10
    for paper_model, q, g, *numbers in lines:
        config = "fp16" if q == "16" else f"q{q}_g{g}"
        row = f"{paper_model.split()[0].lower()}/{config}"
        for column, published, measured in zip(
            ("wiki2", "ptb", "lambada"), numbers[::2], numbers[1::2], strict=True
        ):
            cell = cells[row, column]
            assert float(published) == float(cell["published"])
            assert measured == f"{float(cell['measured']):.2f}"
