"""docs/coverage.md names every table and figure of the papers, and says of each what is true today."""

import re

import pytest
from tests.conftest import ROOT

from tools import coverage


def test_the_page_is_of_todays_artifacts_and_records(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    assert (ROOT / coverage.PAGE).read_text() == coverage.page(), "python -m tools.coverage"


def test_what_stands_elsewhere_is_there() -> None:
    text = (ROOT / "experiments" / "coverage.yaml").read_text()
    named = {path for path in re.findall(r"`([\w/.-]+)`", text) if "/" in path}
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_an_item_that_nobody_names_is_found(monkeypatch) -> None:
    about = {"qigen": {"tables": 4, "figures": 4, "Table 1": "a", "Figure 1": "b", "Figure 2": "c"}}
    monkeypatch.setattr(coverage, "read_yaml", lambda _: about)
    with pytest.raises(ValueError, match=r"nothing is said of \['Table 4'\]"):
        coverage.items("qigen")
    about["qigen"] |= {"tables": 2, "Figure 9": "d"}
    with pytest.raises(ValueError, match=r"qigen has no \['Figure 9', 'Table 3'\]"):
        coverage.items("qigen")
