"""The README's commands are the ones CI runs, and what they name exists."""

from __future__ import annotations

import collections
import csv
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
    block = README.partition("<!-- published-real -->")[2].partition("<!-- /published-real -->")[0]
    source = ROOT / re.search(r"\((results/published/[^)]+)/table\.md\)", block)[1] / "table.csv"
    rows, front = collections.defaultdict(dict), set()
    with source.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["variant"].startswith("real"):
                rows[row["row"]][row["column"]] = float(row["measured"])
                front |= {row["row"]} if row["on_front"] == "True" else set()
    digits = {"bits": 2, "ppl": 2, "kld": 3, "agreement": 3}
    expected = {
        name: tuple(f"{row[k]:.{d}f}" for k, d in digits.items()) for name, row in rows.items()
    }
    lines = [line.split(" | ")[2:] for line in block.splitlines() if line.startswith("| ")][1:]
    found = {tuple(cell.strip(" |") for cell in line) for line in lines}
    assert {expected[name] for name in front} <= found <= set(expected.values())


def test_its_table_is_the_published_run() -> None:
    """Every number between the markers stands in the record-backed CSV beside the page that the README links to."""
    block = README.partition("<!-- published-table -->")[2].partition("<!-- /published-table -->")[
        0
    ]
    source = ROOT / re.search(r"\((results/published/[^)]+)/table\.md\)", block)[1] / "table.csv"
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
