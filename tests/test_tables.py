"""Every experiment file is valid, composes through Hydra, and its claims hold on the paper's own numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lutlab import compare, registry
from lutlab.claims import judge
from lutlab.config import EXPERIMENTS, artifacts
from lutlab.data.protocols import PROTOCOLS
from lutlab.errors import LutlabError
from lutlab.tables import Artifact, load_artifact

LONG_NAMES = [name for name in artifacts() if "/" in name]


@pytest.mark.parametrize("name", LONG_NAMES)
def test_artifact_is_complete(name: str) -> None:
    artifact = load_artifact(name)
    assert artifact.name == name
    bibliography = (EXPERIMENTS / "references.bib").read_text()
    assert f"{{{artifact.citation}," in bibliography
    for column in artifact.columns.values():
        assert column.text is None or column.text in PROTOCOLS
    assert {len(artifact.rows(scale)) for scale in ("embedded", "small", "paper")} == {10}


@pytest.mark.parametrize("name", LONG_NAMES)
def test_claims_hold_on_the_published_numbers(name: str) -> None:
    artifact = load_artifact(name)
    numbers = {
        model: {
            row: {k: compare._number(v) for k, v in values.items()} for row, values in rows.items()
        }
        for model, rows in artifact.published.items()
    }
    for claim in artifact.claims:
        holding, decidable = judge(claim, numbers, numbers).published
        assert holding == decidable > 0, claim.text


def test_table4_numbers_are_the_papers(shared: Path) -> None:
    """Every number typed in stands in the paper's own text, in the paper's order."""
    text = (shared / "papers" / "lut-gemm-v3.txt").read_text()
    rows = [line.split("\t") for line in text.splitlines() if "\t" in line]
    printed = [row for row in rows if len(row) == 11 and row[3] in ("FP16", "Uniform (RTN)")]
    assert len(printed) == 10
    artifact = load_artifact("table4")
    typed = [values for configs in artifact.published.values() for values in configs.values()]
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
    typed = load_artifact("lut-gemm-iclr2024/table6").published
    numbers = [[str(v) for v in row.values()] for rows in typed.values() for row in rows.values()]
    as_floats = [[w if w == "OOM" else str(float(w)) for w in row] for row in printed]
    assert as_floats == numbers


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


def test_evaluators_are_known_or_announced() -> None:
    known = set(registry.classes("evaluator"))
    wanted = {c.evaluator for name in LONG_NAMES for c in load_artifact(name).columns.values()}
    assert wanted - known <= {"latency"}  # comes with the GPU kernels; its cells say so
