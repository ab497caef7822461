"""Every finding about the papers is checked on their numbers; the page is what the checks give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.conftest import ROOT

from lutlab.base.errors import LutlabError
from lutlab.experiment.artifact.errata import load_errata, page

ERRATA = {erratum.id: erratum for erratum in load_errata()}


@pytest.mark.parametrize("name", ERRATA)
def test_the_check_comes_out_as_the_finding_says(name: str) -> None:
    erratum = ERRATA[name]
    outcomes = erratum.outcomes()
    assert sum(outcomes) == erratum.holds > 0
    assert len(outcomes) >= erratum.holds


def test_the_committed_page_is_the_generated_one() -> None:
    assert (ROOT / "docs" / "errata.md").read_text(encoding="utf-8") == page(), (
        "run python -m lutlab.experiment.artifact.errata"
    )


def test_a_wrong_number_changes_the_outcome() -> None:
    erratum = ERRATA["one-scale-a-group"]
    rows = [[of, q, g, 55.0] for of, q, g, _ in erratum.rows]
    assert not any(erratum.model_copy(update={"rows": rows}).outcomes())


def test_a_reference_that_names_nothing_is_refused() -> None:
    erratum = ERRATA["llama-66b"]
    rows = [["x", "lut-gemm-iclr2024/table7:llama-65b/fp16:latency_1gpu", 1.0, 1.0]]  # OOM
    with pytest.raises(LutlabError, match="is no published number"):
        erratum.model_copy(update={"rows": rows}).outcomes()


def test_typed_numbers_stand_in_the_papers(shared: Path) -> None:
    """Losses and gains that the 2/4/16-bit paper states, memory of nuQmm's Table III; tables are references."""
    mixed = (shared / "papers" / "mixed-2-4-16.txt").read_text()
    text = " ".join(mixed.split())
    for stated in (
        "8.7% to 2.2%",
        "6.4% to 1.1%",
        "22.7% to 5.0%",
        "5.56% and 5.7%",
        "2.4% and 0.4% higher",
    ):
        assert stated in text
    nuqmm = (shared / "papers" / "nuqmm.txt").read_text()
    for _, _, q, memory in ERRATA["nuqmm-one-scale-a-row"].rows:
        assert re.search(rf"\t{q:.0f}\t.*\b{memory:.2f} \(x", nuqmm)
