"""Noise is not reported, anything beyond it is."""

from __future__ import annotations

import pytest

from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.report.published import Published
from lutlab.experiment.store.record import Record
from tools import changes

SAMPLES = (1.0, 0.9, 1.1, 1.2, 0.8)  # quartiles 0.9 and 1.1: a number may be 1.11 times another


def artifact(
    name: str, column: str, values: dict[str, float], samples: tuple[float, ...] = SAMPLES
) -> Published:
    cells = [
        {"row": row, "column": column, "measured": str(value), "cell_id": row}
        for row, value in values.items()
    ] + [{"row": "none", "column": column, "measured": "", "cell_id": ""}]
    records = {
        row: Record(row, "done", {}, {}, {}, len(samples), samples, {}, {}, 0.0) for row in values
    }
    return Published(name, {"embedded": cells}, records)


def accuracy(value: float) -> Published:
    return artifact("lut-gemm-v3/table4", "wiki2", {"opt-30b/fp16": value})


def speed(value: float, samples: tuple[float, ...] = SAMPLES) -> Published:
    columns = load_artifact("nuqmm/table3").columns
    column = next(key for key, spec in columns.items() if spec.evaluator == "kernel_latency")
    return artifact("nuqmm/table3", column, {"a-row": value}, samples)


@pytest.mark.parametrize(
    ("after", "differs"),
    [(10.0, False), (10.000009, False), (10.00002, True), (9.9999, True)],
)
def test_accuracies(after: float, differs: bool) -> None:
    found = changes.compare(accuracy(10.0), accuracy(after))
    assert bool(found.changes) == differs
    assert (found.numbers, found.compared) == (1, 1)


@pytest.mark.parametrize(
    ("after", "samples", "differs"),
    [
        (11.0, SAMPLES, False),
        (9.1, SAMPLES, False),
        (11.2, SAMPLES, True),
        (8.9, SAMPLES, True),
        (11.2, (0.5, 1.0, 1.5), False),  # within the quartiles of the later one
        (11.2, (), True),
    ],
)
def test_speeds(after: float, samples: tuple[float, ...], differs: bool) -> None:
    found = changes.compare(speed(10.0), speed(after, samples))
    assert bool(found.changes) == differs


def test_new_and_gone_numbers_are_listed_and_counted() -> None:
    before = artifact("lut-gemm-v3/table4", "wiki2", {"opt-30b/fp16": 10.0, "opt-30b/q4_g32": 11.0})
    after = artifact("lut-gemm-v3/table4", "wiki2", {"opt-30b/fp16": 12.5, "opt-66b/fp16": 9.0})
    found = changes.compare(before, after)
    assert [(c.place[1], c.before, c.after) for c in found.changes] == [
        ("opt-30b/fp16", 10.0, 12.5),
        ("opt-30b/q4_g32", 11.0, None),
        ("opt-66b/fp16", None, 9.0),
    ]
    text = changes.render([found, changes.compare(None, accuracy(1.0))], "commit abc")
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()]
    assert ["lut-gemm-v3/table4", "2", "1", "1", "2"] in cells
    assert ["lut-gemm-v3/table4", "1", "0", "0", "1"] in cells
    assert ["embedded", "opt-30b/fp16", "wiki2", "10", "12.5", "+25 %"] in cells
    assert ["embedded", "opt-66b/fp16", "wiki2", "-", "9", ""] in cells
    assert "commit abc" in text
