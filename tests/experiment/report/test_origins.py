"""Where numbers come from is said by their records, not by the process that renders them."""

import pytest
from tests.experiment.report import example

from lutlab.experiment.report import origins

ABOUT = {
    "git_commit": "a1b2c3d4e5f6a7b8", "git_dirty": False, "sources": "00ff", "cpu": "A CPU", "gpu": "A GPU",
    "threads": 2, "isa": "avx2", "versions": {"torch": "9.1", "transformers": "8.2", "lutlab": "0.1.0"},
}  # fmt: skip


def record(facts=(), run=(), **about):
    own = {"device": "cpu", "dtype": "float32"} | dict(run)
    return example.record({}, run=own, facts=dict(facts), provenance=ABOUT | about)


def test_one_line_where_all_agree():
    origin = "commit a1b2c3d4e5f6, A CPU, 2 threads, avx2, torch 9.1, transformers 8.2, float32 on cpu"  # fmt: skip
    assert origins.lines([record()] * 3) == (f"all 3 cells: {origin}",)
    assert origins.lines([record()]) == (f"1 cell: {origin}",)
    assert origins.lines([]) == ()


def test_counts_where_they_differ():
    other = record(git_commit="d4e5f6" * 3, threads=1)
    assert origins.lines([other, *[record()] * 5]) == (
        "all 6 cells: A CPU, avx2, torch 9.1, transformers 8.2, float32 on cpu",
        "5 cells: commit a1b2c3d4e5f6, 2 threads",
        "1 cell: commit d4e5f6d4e5f6, 1 thread",
    )


@pytest.mark.parametrize(("made", "origin"), [
    (record(git_dirty=True), "commit a1b2c3d4e5f6 and changed files (sources 00ff)"),
    (record(git_commit=None, git_dirty=None), "commit unknown, lutlab 0.1.0 (sources 00ff)"),
    (record(facts={"threads": 7}), "A CPU, 7 threads"),
    (record(run={"device": "cuda:1", "dtype": "float16"}), "A GPU, 2 threads"),
    (record(run={"dtype": "bfloat16"}), "bfloat16 on cpu"),
    (example.record({}), "commit unknown, lutlab unknown"),
])  # fmt: skip
def test_a_line_says_what_its_record_says(made, origin):
    (line,) = origins.lines([made])
    assert origin in line


def test_every_fact_is_counted_where_records_differ():
    records = [record(measured_at=day) for day in "ba"] + [record(gpu=None, measured_at="c")]
    counted = {"records": "3", "gpu": "A GPU (2), None (1)", "versions.torch": "9.1"}
    assert origins.facts(records).items() >= (counted | {"measured_at": "a to c"}).items()
