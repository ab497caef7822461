"""Every number typed in stands in the paper's own text, in the paper's order; what is wrong there is on a page."""

import re

import pytest
from tests.base.refusals import refused
from tests.conftest import ROOT

from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.artifact.errata import load_errata, page

DECIMALS = r"OOM|N/A|\d+\.\d+"
NUMBERS = r"(?<=\t)/(?=\t)|\d+(?:\.\d+)?(?!%|\d|\.)"
ICLR, V3, MIXED = "lut-gemm-iclr2024", "lut-gemm-v3", "mixed-2-4-16"
MODELS = r"(?:cuBLAS|LUT-GEMM)-\d+-\S+ \w+ (.*)"
TABLES = [  # the artifact, where its table begins in a paper, its lines, how many
    (f"{V3}/table2", V3, "Table 2: Latency", r"(?:cuBLAS|OPTQ \[18\]|LUT-GEMM)\t.*\t(\d\.\d+)$", 7),
    (f"{V3}/table3", V3, "Table 3: Profiling", r"(?:cuBLAS|LUT-GEMM[^\t]*)\t\d\t\d+\t(.*)", 12),
    (f"{V3}/table4", V3, "Table 4:", r".*\t(?:FP16|Uniform \(RTN\))\t(.*)", 10),
    (f"{V3}/table6", V3, "Table 6:", r"[^\t]*\t\d+\t[^\t]+\t(.*)", 5),
    (f"{ICLR}/table1", ICLR, "Table 1: Latency", r"(?:cuBLAS|LUT-GEMM|OPTQ|AWQ) .*?(\d\.\d+ \(×\d.*)", 8),
    (f"{ICLR}/table2", ICLR, "Table 2: Profiling", r"(?:cuBLAS|LUT-GEMM)-\d-12288-\d+ (.*)", 4),
    (f"{ICLR}/table3", ICLR, "Table 3:", MODELS, 6),
    (f"{ICLR}/table5", ICLR, "Table 5:", r"(?:cuBLAS )?\d+ (?:N/A|-|32|64|128) (.*)", 6),
    (f"{ICLR}/table6", ICLR, "Table 6:", MODELS, 10),
    (f"{ICLR}/table7", ICLR, "Table 7:", MODELS, 12),
    (f"{ICLR}/table8", ICLR, "Table 8:", r"(?:Full fine-tune -|\d+) (\d\d\.\d \d\d\.\d)$", 13),
    (f"{ICLR}/table8", V3, "Table 8:", r".*?(\d\d\.\d\t\d\d\.\d)$", 13),
    (f"{ICLR}/table9", ICLR, "Table 9:", r"(?:cuBLAS|LUT-GEMM) \d+ (\d.*)", 2),
    ("nuqmm/table4", "nuqmm", "TABLE IV", r"(?:cuBLAS|nuQmm[^\t]*)\t\d\t\d+\t(.*)", 18),
    ("nuqmm/table5", "nuqmm", "TABLE V", r".*(?:cuBLAS|nuQmm)(?:</b>)?\t\d\t\S+\t(.*)", 20),
    (f"{MIXED}/table1", MIXED, "Method\t$\\overline{bit}$\tPPL", r"[^\t]+(\t.*)", 27),
    (f"{MIXED}/table3", MIXED, "Model\tMethod\tGPU", r".*\t(\d+/\d+\t.*)", 16),
    (f"{MIXED}/table4", MIXED, "Method\t$\\overline{bit}$\tRatio", r"[^\t]+(\t.*)", 4),
]  # fmt: skip


@pytest.fixture
def printed(shared):
    """The lines that match after the one that begins with `start`, as texts."""

    def matching(paper, start, row, count):
        lines = (shared / "papers" / f"{paper}.txt").read_text().splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith(start)) + 1
        return [match[1] for line in lines[at:] if (match := re.match(row, line))][:count]

    return matching


def numbers(texts, number=DECIMALS):
    words = [re.findall(number, text) for text in texts]
    return [[w if w in ("OOM", "N/A", "/") else float(w) for w in row] for row in words]


def typed(name):
    """Published numbers of an artifact, without repeated readings of a row."""
    published = load_artifact(name).numbers().items()
    return [[*values.values()] for row, values in published if not row.endswith("labelled")]


@pytest.mark.parametrize(("name", "paper", "start", "row", "count"), TABLES)
def test_numbers_are_the_papers(name, paper, start, row, count, printed):
    texts = printed(paper, start, row, count)
    assert numbers(texts, NUMBERS if paper == MIXED else DECIMALS) == typed(name)
    assert len(texts) == count


@pytest.mark.parametrize(("paper", "table"), [(V3, 5), (ICLR, 4)])
def test_opt_175b_latencies_are_the_papers(paper, table, printed):
    """The papers' rows are numbers of GPUs, ours its columns."""
    texts = printed(paper, f"Table {table}:", r"([1248]\s+(?:OOM|42\.4)\s.*)", 4)
    assert [text[0] for text in texts] == ["1", "2", "4", "8"]
    assert [*map(list, zip(*numbers(texts), strict=True))] == typed(f"{paper}/table{table}")


def test_qigen_numbers_are_the_papers(printed):
    (head,) = printed("qigen", "Table", r"(Group size.*)", 1)
    models = re.findall(r"(llama-\d+b) \(([\d.]+)", head)
    wanted = {f"{model}/fp": float(ppl) for model, ppl in models}
    kinds = [f"{model}/b{bits}" for model, _ in models for bits in (4, 3, 2)]
    for text in printed("qigen", "Group size", r"((?:128|64|32|16)\t\d.*)", 4):
        group, *values = text.split("\t")
        wanted |= {f"{k}/g{group}": float(v) for k, v in zip(kinds, values, strict=True)}
    published = load_artifact("qigen/table2").numbers()
    assert {row: values["ppl"] for row, values in published.items()} == wanted
    assert len(wanted) == 39


@pytest.mark.parametrize(("paper", "table", "start", "bits"), [
    (V3, 7, "Table 7:", 16),
    ("nuqmm", 3, "TABLE III", 32),
])  # fmt: skip
def test_memory_and_latency_count_one_scale_a_row(paper, table, start, bits, printed):
    """The metric of these columns: q + bits / m a weight. A size has its dense numbers once, in any of its rows."""
    published = load_artifact(f"{paper}/table{table}").numbers()
    texts = printed(paper, start, r"\d*\t[2-5](\t.*)", len(published))
    once, dense = [], {}
    for (row, values), text in zip(published.items(), texts, strict=True):
        pairs = re.findall(r"([\d.]+) \(x([\d.]+)\)", text)
        wanted = [float(number) for pair in pairs for number in pair]
        assert [values[c] for c in ("memory", "reduction", "latency", "speedup")] == wanted
        plain = re.sub(r"[\d.]+ \(x[\d.]+\)", "", text).split()
        once += [(*map(float, plain),)] if plain else []
        m, q = map(int, re.findall(r"\d+", row))
        dense[values[f"memory_fp{bits}"], values[f"latency_fp{bits}"]] = m
        digits = 0.0501 if bits == 16 else 0.00501
        assert values["memory"] == pytest.approx((q + bits / m) * m * m / 8e6, abs=digits)
        assert values["reduction"] == pytest.approx(bits / (q + bits / m), abs=0.0501)
        assert values[f"memory_fp{bits}"] == pytest.approx(bits * m * m / 8e6, abs=1.1 * digits)
    assert [*dense] == once


ERRATA = {erratum.id: erratum for erratum in load_errata()}


@pytest.mark.parametrize("erratum", ERRATA.values(), ids=ERRATA)
def test_the_check_comes_out_as_the_finding_says(erratum) -> None:
    outcomes = erratum.outcomes()
    assert sum(outcomes) == erratum.holds > 0
    assert len(outcomes) >= erratum.holds


def test_the_committed_page_is_the_generated_one() -> None:
    text = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    assert text == page(), "run python -m lutlab.experiment.artifact.errata"


def test_a_wrong_number_changes_the_outcome() -> None:
    erratum = ERRATA["one-scale-a-group"]
    rows = [[*keys, 55.0] for *keys, _ in erratum.rows]
    assert not any(erratum.model_copy(update={"rows": rows}).outcomes())


def test_a_reference_that_names_nothing_is_refused() -> None:
    erratum = ERRATA["llama-66b"]
    rows = [["x", "lut-gemm-iclr2024/table7:llama-65b/fp16:latency_1gpu", 1.0, 1.0]]  # OOM
    refused("is no published number", erratum.model_copy(update={"rows": rows}).outcomes)


def test_typed_numbers_stand_in_the_papers(shared) -> None:
    """Losses and gains that the 2/4/16-bit paper states, memory of nuQmm's Table III; tables are references."""
    stated = ["8.7% to 2.2%", "6.4% to 1.1%", "22.7% to 5.0%", "5.56% and 5.7%"]
    stated += ["2.4% and 0.4% higher"]
    text = " ".join((shared / "papers" / "mixed-2-4-16.txt").read_text().split())
    assert [change for change in stated if change not in text] == []
    nuqmm = (shared / "papers" / "nuqmm.txt").read_text()
    for _, _, q, memory in ERRATA["nuqmm-one-scale-a-row"].rows:
        assert re.search(rf"\t{q:.0f}\t.*\b{memory:.2f} \(x", nuqmm)
