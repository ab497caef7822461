"""Where numbers come from is said by their records, not by the process that renders them."""

from __future__ import annotations

import pytest

from lutlab.experiment.report import origins
from lutlab.experiment.store.record import Record

ABOUT = {
    "git_commit": "a1b2c3d4e5f6a7b8",
    "git_dirty": False,
    "sources": "00ff",
    "cpu": "A CPU",
    "gpu": "A GPU",
    "threads": 2,
    "isa": "avx2",
    "versions": {"torch": "9.1", "transformers": "8.2", "lutlab": "0.1.0"},
}


def record(facts=(), run=(), **about) -> Record:
    own = {"device": "cpu", "dtype": "float32"} | dict(run)
    return Record("x", "done", own, {}, {}, 1, (), dict(facts), ABOUT | about, 0.0)


def test_one_line_where_all_agree() -> None:
    told = (
        "commit a1b2c3d4e5f6, A CPU, 2 threads, avx2, torch 9.1, transformers 8.2, float32 on cpu"
    )
    assert origins.lines([record()] * 3) == (f"all 3 cells: {told}",)
    assert origins.lines([record()]) == (f"1 cell: {told}",)
    assert origins.lines([]) == ()


def test_counts_where_they_differ() -> None:
    other = record(git_commit="d4e5f6" * 3, threads=1)
    shared = "A CPU, avx2, torch 9.1, transformers 8.2, float32 on cpu"
    assert origins.lines([other, *[record()] * 5]) == (
        f"all 6 cells: {shared}",
        "5 cells: commit a1b2c3d4e5f6, 2 threads",
        "1 cell: commit d4e5f6d4e5f6, 1 thread",
    )


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (record(git_dirty=True), "commit a1b2c3d4e5f6 and changed files (sources 00ff)"),
        (record(git_commit=None, git_dirty=None), "commit unknown, lutlab 0.1.0 (sources 00ff)"),
        (record(facts={"threads": 7}), "A CPU, 7 threads"),
        (record(run={"device": "cuda:1", "dtype": "float16"}), "A GPU, 2 threads"),
        (record(run={"dtype": "bfloat16"}), "bfloat16 on cpu"),
        (Record("x", "done", {}, {}, {}, 1, (), {}, {}, 0.0), "commit unknown, lutlab unknown"),
    ],
)
def test_a_line_says_what_its_record_says(made: Record, said: str) -> None:
    (line,) = origins.lines([made])
    assert said in line


def test_every_fact_is_counted_where_records_differ() -> None:
    found = origins.facts(
        [record(measured_at="b"), record(measured_at="a"), record(gpu=None, measured_at="c")]
    )
    assert found["records"] == "3"
    assert found["gpu"] == "A GPU (2), None (1)"
    assert found["versions.torch"] == "9.1"
    assert found["measured_at"] == "a to c"
