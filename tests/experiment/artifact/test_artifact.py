"""Every experiment file is valid, composes through Hydra, and its claims hold on the paper's own numbers."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import yaml
from tests.experiment.row.composing import settings

from lutlab.base import registry, sources
from lutlab.base.errors import LutlabError
from lutlab.data.protocols import PROTOCOLS
from lutlab.experiment.artifact.artifact import Artifact, load_artifact
from lutlab.experiment.artifact.catalog import EXPERIMENTS, artifacts
from lutlab.experiment.artifact.claims import judge
from lutlab.experiment.artifact.rows import OURS, REAL
from lutlab.experiment.report import compare
from lutlab.experiment.row.run import run_of

LONG_NAMES = [name for name in artifacts() if "/" in name]


@pytest.mark.parametrize("name", LONG_NAMES)
def test_artifact_is_complete(name: str) -> None:
    artifact = load_artifact(name)
    assert artifact.name == name
    bibliography = (EXPERIMENTS / "references.bib").read_text()
    cited = {c.cited for c in artifact.columns.values() if c.cited}
    assert all(f"{{{key}," in bibliography for key in (artifact.citation, *cited))
    for column in artifact.columns.values():
        assert column.text is None or column.text in PROTOCOLS
    paper = {row.key for row in artifact.rows("paper")}
    for scale in ("embedded", "small"):
        keys = {row.key for row in artifact.rows(scale)}
        assert keys <= paper
        assert keys == paper or artifact.absent(scale)
        assert keys == paper or not artifact.published, (
            "a published number has a row at every scale"
        )


@pytest.mark.parametrize("name", LONG_NAMES)
def test_claims_hold_on_the_published_numbers(name: str) -> None:
    artifact = load_artifact(name)
    numbers = {
        row: {k: compare._number(v) for k, v in values.items()}
        for row, values in artifact.numbers().items()
    }
    blank = {row.key: dict.fromkeys(artifact.columns) for row in artifact.rows("paper")}
    everything = {row: blank[row] | numbers.get(row, {}) for row in blank}
    for claim in artifact.claims:
        holding, decidable = judge(claim, everything, everything, artifact.curve("paper")).published
        assert holding == decidable, claim.text
        ours = claim.where == "ours"  # about rows and columns that the paper does not print
        assert decidable or not artifact.published or ours, claim.text
        assert claim.holds or claim.fronts


@pytest.mark.slow
def test_rows_compose() -> None:
    """A row of each method with each set of keys is a configuration; every model of every scale is a preset."""
    presets = {path.stem for path in (sources.folder("conf") / "model").glob("*.yaml")}
    methods = registry.classes("method")
    chosen = {}
    for name, scale in itertools.product(LONG_NAMES, ("embedded", "small", "real", "paper")):
        for row in load_artifact(name).rows(scale):
            named = dict(o.split("=") for o in row.overrides)
            if scale == "real" and not row.not_run:
                assert named["model"] == REAL, name
                assert "model.id" not in named, name
            assert named["model"] in presets, name
            if scale == "embedded" and named["method"] in methods:
                chosen[(named["method"], *named)] = name, row
    for name, row in chosen.values():
        assert run_of(settings(*row.overrides)).q, name


def test_table4_numbers_are_the_papers(shared: Path) -> None:
    """Every number typed in stands in the paper's own text, in the paper's order."""
    text = (shared / "papers" / "lut-gemm-v3.txt").read_text()
    rows = [line.split("\t") for line in text.splitlines() if "\t" in line]
    printed = [row for row in rows if len(row) == 11 and row[3] in ("FP16", "Uniform (RTN)")]
    assert len(printed) == 10
    artifact = load_artifact("table4")
    typed = list(artifact.numbers().values())
    for row, values in zip(printed, typed, strict=True):
        wanted = [*row[4:7], *row[8:11]]
        assert [str(v) for v in values.values()] == [
            w if w == "OOM" else str(float(w)) for w in wanted
        ]


def test_iclr_table6_is_the_same_table(shared: Path) -> None:
    lines = (shared / "papers" / "lut-gemm-iclr2024.txt").read_text().splitlines()
    lines = lines[next(i for i, line in enumerate(lines) if line.startswith("Table 6:")) :]
    printed = [line.split()[2:] for line in lines if line.startswith(("cuBLAS-16", "LUT-GEMM-"))]
    printed = printed[:10]
    typed = load_artifact("lut-gemm-iclr2024/table6").numbers()
    numbers = [[str(v) for v in row.values()] for row in typed.values()]
    as_floats = [[w if w == "OOM" else str(float(w)) for w in row] for row in printed]
    assert as_floats == numbers


def printed(shared: Path, paper: str, start: str, row: str, count: int) -> list[list[str]]:
    """The numbers of the first `count` lines that match `row` after the line that begins with `start`."""
    lines = (shared / "papers" / f"{paper}.txt").read_text().splitlines()
    lines = lines[next(i for i, line in enumerate(lines) if line.startswith(start)) :]
    matching = [match[1] for line in lines if (match := re.match(row, line))]
    return [re.findall(r"OOM|\d+\.\d+", text) for text in matching[:count]]


def typed(name: str, *columns: str) -> list[list[str]]:
    """Published numbers of an artifact as the papers print them, without repeated readings of a row."""
    artifact = load_artifact(name)
    return [
        [str(v) for k, v in values.items() if not columns or k in columns]
        for row, values in artifact.numbers().items()
        if not row.endswith("labelled")
    ]


def as_printed(rows: list[list[str]]) -> list[list[str]]:
    return [[w if w == "OOM" else str(float(w)) for w in row] for row in rows]


def test_iclr_llama_numbers_are_the_papers(shared: Path) -> None:
    row = r"(?:cuBLAS|LUT-GEMM)-\d+-\S+ \w+ (.*)"
    paper = "lut-gemm-iclr2024"
    table3, table7 = f"{paper}/table3", f"{paper}/table7"
    assert as_printed(printed(shared, paper, "Table 7:", row, 12)) == typed(table7)
    assert as_printed(printed(shared, paper, "Table 3:", row, 6)) == typed(table3)


def test_table_8_is_that_of_both_versions(shared: Path) -> None:
    v3 = printed(shared, "lut-gemm-v3", "Table 8:", r".*?(\d\d\.\d\t\d\d\.\d)$", 13)
    row = r"(?:Full fine-tune -|\d+) (\d\d\.\d \d\d\.\d)$"
    iclr = printed(shared, "lut-gemm-iclr2024", "Table 8:", row, 13)
    assert as_printed(v3) == as_printed(iclr) == typed("lut-gemm-iclr2024/table8")


def test_opt_175b_numbers_are_the_papers(shared: Path) -> None:
    lines = (shared / "papers" / "lut-gemm-v3.txt").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Table 6:"))
    rows = [line.split("\t")[3:] for line in lines[at + 3 : at + 8]]
    v3 = [re.findall(r"OOM|\d+\.\d+", " ".join(row)) for row in rows]
    assert as_printed(v3) == typed("table6")
    row = r"(?:cuBLAS )?\d+ (?:N/A|-|32|64|128) (.*)"
    found = printed(shared, "lut-gemm-iclr2024", "Table 5:", row, 6)
    assert as_printed(found) == typed("lut-gemm-iclr2024/table5")
    row = r"(?:cuBLAS|LUT-GEMM) \d+ (\d.*)"
    found = printed(shared, "lut-gemm-iclr2024", "Table 9:", row, 2)
    assert as_printed(found) == typed("lut-gemm-iclr2024/table9")


@pytest.mark.parametrize(
    ("paper", "table", "name"),
    [("lut-gemm-v3", "Table 5:", "table5"), ("lut-gemm-iclr2024", "Table 4:", "table4")],
)
def test_opt_175b_latencies_are_the_papers(shared: Path, paper: str, table: str, name: str) -> None:
    """The papers' rows are numbers of GPUs, ours its columns."""
    lines = (shared / "papers" / f"{paper}.txt").read_text().splitlines()
    lines = lines[next(i for i, line in enumerate(lines) if line.startswith(table)) :]
    rows = [line.split() for line in lines if re.match(r"[1248]\s+(OOM|42\.4)\s", line)][:4]
    assert [row[0] for row in rows] == ["1", "2", "4", "8"]
    printed = [[w if w in ("OOM", "N/A") else str(float(w)) for w in row[1:]] for row in rows]
    typed = [
        [str(v) for v in row.values()]
        for row in load_artifact(f"{paper}/{name}").numbers().values()
    ]
    assert [list(column) for column in zip(*printed, strict=True)] == typed


def test_qigen_numbers_are_the_papers(shared: Path) -> None:
    lines = (shared / "papers" / "qigen.txt").read_text().splitlines()
    rows = [line.split("\t") for line in lines if re.match(r"(128|64|32|16)\t\d", line)]
    wanted = {
        f"llama-{model}/b{bits}/g{row[0]}": float(row[1 + 3 * i + j])
        for row in rows
        for i, model in enumerate(("7b", "13b", "30b"))
        for j, bits in enumerate((4, 3, 2))
    }
    head = next(line for line in lines if line.startswith("Group size"))
    for model, value in re.findall(r"llama-(\d+b) \(([\d.]+)\)", head):
        wanted[f"llama-{model}/fp"] = float(value)
    numbers = load_artifact("qigen/table2").numbers()
    assert {row: values["ppl"] for row, values in numbers.items()} == wanted
    assert len(wanted) == 39


def test_mixed_numbers_are_the_papers(shared: Path) -> None:
    """Tables 1, 3 and 4 of the 2/4/16-bit paper, in its order."""
    lines = (shared / "papers" / "mixed-2-4-16.txt").read_text().splitlines()
    tables = {}
    for name, start, row in (
        ("table1", "Method\t$\\overline{bit}$\tPPL", r"[^\t]+(\t.*)"),
        ("table3", "Model\tMethod\tGPU", r".*\t(\d+/\d+\t.*)"),
        ("table4", "Method\t$\\overline{bit}$\tRatio", r"[^\t]+(\t.*)"),
    ):
        at = next(i for i, line in enumerate(lines) if line.startswith(start)) + 1
        printed = itertools.takewhile(str.strip, lines[at:])
        numbers = r"(?<=\t)/(?=\t)|\d+(?:\.\d+)?(?!%|\d|\.)"
        tables[name] = [re.findall(numbers, re.match(row, line)[1]) for line in printed]
    assert [len(rows) for rows in tables.values()] == [27, 16, 4]
    for name, rows in tables.items():
        typed = [
            [str(v) for v in r.values()]
            for r in load_artifact(f"mixed-2-4-16/{name}").numbers().values()
        ]
        floats = [["/" if v == "/" else f"{float(v):g}" for v in row] for row in rows]
        assert floats == [["/" if v == "/" else f"{float(v):g}" for v in row] for row in typed]


def test_a_row_that_runs_something_else_says_so() -> None:
    rows = {row.key: row.labels for row in load_artifact("fig14").rows("embedded")}
    labels = rows["gpt-neo-1.3b/mixed/q3_g128/q5_g2048"]
    assert labels["Attention"] == "q3 g128"
    assert labels[OURS] == "att:g=16 ffn:g=-1"
    assert all(OURS not in row.labels for row in load_artifact("fig14").rows("paper"))


def test_mixed_precision_is_every_pair() -> None:
    rows = load_artifact("fig14").rows("paper")
    mixed = [row for row in rows if "/mixed/" in row.key]
    assert len(mixed) == len({tuple(row.overrides) for row in mixed}) == 144
    assert sum("/uniform/" in row.key for row in rows) == 12


def test_a_model_nobody_can_have_is_a_stand_in_at_every_scale() -> None:
    assert not any(row.public for row in load_artifact("table6").rows("paper"))
    assert all(row.public for row in load_artifact("table4").rows("paper"))


def test_an_entry_without_overrides_at_a_scale_has_no_row_there() -> None:
    artifact = load_artifact("fig10")
    assert artifact.absent("embedded") == ["OPT-30B"]
    assert not any(row.first == "opt-30b" for row in artifact.rows("embedded"))
    assert [row.first for row in artifact.rows("paper")] == [
        *["opt-6.7b"] * 7,
        *["opt-13b"] * 7,
        *["opt-30b"] * 7,
    ], "rows of a model stand together, across blocks"


def test_at_scale_real_a_model_keeps_the_rows_of_its_claims() -> None:
    artifact = load_artifact("mixed-2-4-16/table1")
    run = [row.key for row in artifact.rows("real") if not row.not_run]
    assert run == [f"llama-2-7b/{method}" for method in ("fp16", "gptq", "ours", "ours_02")]
    others = {row.first for row in artifact.rows("real") if row.not_run}
    assert {"llama-1-7b", "llama-2-7b", "chatglm3-6b"} <= others, "what is cited stays"
    assert load_artifact("nuqmm/table3").rows("real") == [], "a product is no model"


def test_kept_entries_keep_their_numbers() -> None:
    whole, part = load_artifact("lut-gemm-iclr2024/table5"), load_artifact("table6")
    assert "opt-175b/q4" not in part.numbers()
    assert part.numbers().items() <= whole.numbers().items()


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(LutlabError, match="did you mean 'table4'"):
        load_artifact("tabel4")


def test_a_missing_number_is_refused() -> None:
    data = yaml.safe_load(artifacts()["table4"].read_text())
    del data["published"]["opt-30b"]["fp16"]["ptb"]
    with pytest.raises(ValueError, match="1 cells of the table have no published value"):
        Artifact(name="x", **data)


def test_a_number_outside_the_table_is_refused() -> None:
    data = yaml.safe_load(artifacts()["table4"].read_text())
    data["published"]["opt-30b"]["q5_g32"] = {"ptb": 1.0}
    with pytest.raises(ValueError, match="is not a cell"):
        Artifact(name="x", **data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"figure": {"x": "size", "y": "ppl", "series": []}}, "figure draws 'size'"),
        ({"figure": None}, "a claim about fronts needs a figure"),
        ({"axes": [{"a": {"labels": {}, "overrides": []}}]}, "either axes or blocks"),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_refused(change: dict, message: str) -> None:
    data = yaml.safe_load(artifacts()["fig12"].read_text()) | change
    del data["shared"]
    with pytest.raises(ValueError, match=message):
        Artifact(name="x", **data)


def test_evaluators_are_known() -> None:
    known = set(registry.classes("evaluator"))
    wanted = {c.evaluator for name in LONG_NAMES for c in load_artifact(name).columns.values()}
    assert wanted <= known
