"""A new user's path: a sweep of three methods, its numbers in Python, in a browser, in the offline W&B files."""

import pytest
from tests.experiment.records.browser import one, opened

import lutlab
from lutlab.experiment.records import wandb_files

METHODS = ("rtn", "bcq", "gptq")
SWEEP = [
    f"method={','.join(METHODS)}", "q=3", "g=32", "name=first", "evaluate=[ppl:lambada-joined]", "data.limit=2",
    "calibration.samples=2",
]  # fmt: skip


@pytest.fixture
def numbers(command):
    """Row -> perplexity of the sweep, full precision beside."""
    outcome = command(*SWEEP)
    assert outcome.code == 0, outcome.err
    assert "sweep/first" in outcome.out
    found = lutlab.results(command.results)
    ppl = found[found.metric == "ppl"]
    assert set(ppl.method) == {*METHODS, "none"}
    assert (ppl[ppl.method != "none"].difference > 0).all()
    return dict(zip(ppl.row, ppl.measured, strict=True))


@pytest.mark.slow
def test_the_same_comparison_everywhere(command, numbers, tmp_path):
    runs = [run for run in wandb_files.read(command.results / "wandb") if run["config"].get("row")]
    key = "passages-joined-first2/ppl"
    assert {run["config"]["row"]: run["summary"][key] for run in runs} == numbers

    assert command("mode=dashboard").code == 0
    page = command.results / "dashboard.html"
    with opened(page.resolve(), tmp_path / "chromium") as browser:
        rows = browser.find_elements("css selector", "#table tbody tr")
        assert len(rows) == len(numbers)
        for row in numbers:
            one(browser, f"[aria-label='compare sweep/first {row}']").click()
        one(browser, "#tab-compare").click()
        compared = one(browser, "#comparison").text
        for value in numbers.values():
            assert f"{value:.4g}" in compared
