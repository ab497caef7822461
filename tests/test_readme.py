"""The README's commands are the ones CI runs, and what they name exists."""

import collections
import json
import re

from tests.conftest import ROOT
from tests.experiment.run.table4 import cells_of

from lutlab.experiment.report import published
from tools import coverage
from tools.published_list import LIST, read_list

README = (ROOT / "README.md").read_text(encoding="utf-8")
MACHINE = ROOT / "results" / "published" / "amd-epyc-25-1-avx2-2cores"


def test_ci_runs_the_readmes_test_command_to_the_letter():
    commands = [line for line in README.splitlines() if line.startswith("python3 -m venv")]
    assert len(commands) == 2
    install, _, test = commands[1].rpartition(" && ")
    assert {install, test} <= {*(ROOT / ".ci" / "run").read_text().splitlines()}


def test_it_is_read_at_one_sitting_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 120
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_environment_names_no_versions_of_its_own():
    """pyproject.toml is the one list of versions."""
    environment = (ROOT / "environment.yml").read_text()
    assert "-e .[dev]" in environment
    assert "torch" not in environment


def block_of(page, name):
    """Cells of the lines of a table between the markers of a page, and its text."""
    block = page.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]
    return [[c.strip() for c in line.split("|")[1:-1]] for line in block.splitlines()], block


def test_its_table_of_the_real_model_is_the_published_one():
    """In each line the row of least divergence within the limit, of ours and of llama.cpp's."""
    lines, block = block_of(README, "published-real")
    source = ROOT / re.search(r"\((results/published/[^)]+)/table\.md\)", block)[1]
    rows, labels, ggml = collections.defaultdict(dict), {}, {}
    for cell in cells_of(source):
        if cell["variant"] == "real-data-first8-samples-32":
            row = cell["row"]
            rows[row][cell["column"]] = float(cell["measured"])
            labels[row] = dict(part.split("=", 1) for part in cell["labels"].split("; "))
            ggml[row] = labels[row]["Method"].startswith("llama.cpp")
    lines = [line for line in lines if line and line[0][:1].isdigit()]
    assert len(lines) > 4
    for limit, *shown in lines:
        for theirs, cells in ((False, shown[:4]), (True, shown[4:])):
            own = [name for name in rows if ggml[name] == theirs]
            fitting = [name for name in own if rows[name]["bits"] <= float(limit)]
            if not fitting:
                assert cells == ["-", "", "", ""]
                continue
            best = min(fitting, key=lambda name: rows[name]["kld"])
            bits, kld, ppl = (rows[best][name] for name in ("bits", "kld", "ppl"))
            assert labels[best]["Stored as"] in cells[0]
            assert cells[1:] == [f"{bits:.2f}", f"{kld:.3f}", f"{ppl:.2f}"]


def test_what_it_says_of_a_small_model_is_recorded():
    """Sizes, paces and divergences of README and of the page on text, of one run of bench_real_model.py."""
    stored = json.loads((MACHINE / "benchmarks" / "real_model.json").read_text(encoding="utf-8"))
    assert stored["threads"] == 1
    rows = stored["rows"]
    paces = {row["name"]: f"{row['tokens_per_s']:.0f}" for row in rows}
    sizes = {row["name"]: f"{row['file_mb']:.1f} MB of weights" for row in rows}
    losses = {row["name"]: row.get("kld_along_blocks") for row in rows}
    four, three, wide = "rtn_q4", "hessian_uniform_q3", "rtn_q4_embeddings_16"
    text = " ".join(README.split())
    assert f"decodes {paces[four]} tokens a second of it, and {paces['full precision']} in" in text
    assert f"{sizes[three]} and {paces[three]} tokens a second" in text
    assert f"{losses[three][-1]:.3f} nats" in text
    assert f"four bits have {losses[four][-1]:.3f}" in text
    page = " ".join((ROOT / "docs" / "how-to" / "generate.md").read_text(encoding="utf-8").split())
    assert f"{sizes[four]} in the place of {sizes[wide].partition(' ')[0]}" in page
    assert f"{paces[four]} tokens a second in the place of {paces[wide]}" in page


def test_its_table_is_the_published_run():
    """Every number between the markers of the first table's page stands in the CSV beside the page that it links to."""
    page = (ROOT / "docs" / "first-table.md").read_text(encoding="utf-8")
    lines = [line for line in block_of(page, "published-table")[0] if line and "OPT-" in line[0]]
    stored = [c for c in cells_of(MACHINE / "lut-gemm-v3" / "table4") if c["variant"] == "embedded"]
    cells = {(cell["row"], cell["column"]): cell for cell in stored}
    assert len(lines) == 10
    for model, q, g, *numbers in lines:
        row = f"{model.split()[0].lower()}/{'fp16' if q == '16' else f'q{q}_g{g}'}"
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        for column, pair in zip(("wiki2", "ptb", "lambada"), pairs, strict=True):
            cell = cells[row, column]
            assert float(pair[0]) == float(cell["published"])
            assert pair[1] == f"{float(cell['measured']):.2f}"


def test_it_counts_claims_by_kind():
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    words = "{sentence} claims are sentences of papers, {reading} what we read from their tables, {ours} our own"
    assert words.format(**coverage.claims()) in text
    variant = published.read(MACHINE / "lut-gemm-v3" / "table4").tables({})["embedded"]
    of_perplexity = [c for c in variant.claims if "perplexity" in c.text or "closer" in c.text]
    page = " ".join((ROOT / "docs" / "first-table.md").read_text(encoding="utf-8").split())
    said = {
        "sentence": "one sentence on perplexity, {} of {} instances",
        "reading": "{} of {} of two readings",
    }
    for kind, words in said.items():
        held, decided = zip(*(c.measured for c in of_perplexity if c.kind == kind), strict=True)
        assert words.format(sum(held), sum(decided)) in page


def test_it_says_in_how_many_artifacts_a_real_model_stands():
    variants = read_list(path=ROOT / LIST)
    artifacts = {variant.artifact for variant in variants}
    real = {variant.artifact for variant in variants if variant.name.startswith("real")}
    assert f"A real model stands in {len(real)} of {len(artifacts)} artifacts" in README
