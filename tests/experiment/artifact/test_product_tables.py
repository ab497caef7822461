"""The kernel tables: every number typed in stands in the paper's text, and sizes follow the formulas named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.experiment.artifact.test_artifact import as_printed, printed, typed

from lutlab.base import registry
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.measure.products import ABSENT, KERNELS

ARTIFACTS = [
    *(f"lut-gemm-v3/{name}" for name in ("table2", "table3", "table7", "fig8", "fig9")),
    *(f"lut-gemm-iclr2024/{name}" for name in ("table1", "table2", "fig4a", "fig4b")),
    *(f"nuqmm/{name}" for name in ("table3", "table4", "table5", "fig8", "fig9", "fig10")),
]


@pytest.mark.parametrize(
    ("name", "start", "row", "count"),
    [
        (
            "lut-gemm-iclr2024/table1",
            "Table 1: Latency",
            r"(?:cuBLAS|LUT-GEMM|OPTQ|AWQ) .*?(\d\.\d+ \(×\d.*)",
            8,
        ),
        (
            "lut-gemm-iclr2024/table2",
            "Table 2: Profiling",
            r"(?:cuBLAS|LUT-GEMM)-\d-12288-\d+ (.*)",
            4,
        ),
        (
            "lut-gemm-v3/table2",
            "Table 2: Latency",
            r"(?:cuBLAS|OPTQ \[18\]|LUT-GEMM)\t.*\t(\d\.\d+)$",
            7,
        ),
        (
            "lut-gemm-v3/table3",
            "Table 3: Profiling",
            r"(?:cuBLAS|LUT-GEMM[^\t]*)\t\d\t\d+\t(.*)",
            12,
        ),
        ("nuqmm/table4", "TABLE IV", r"(?:cuBLAS|nuQmm[^\t]*)\t\d\t\d+\t(.*)", 18),
        ("nuqmm/table5", "TABLE V", r".*(?:cuBLAS|nuQmm)(?:</b>)?\t\d\t\S+\t(.*)", 20),
    ],
)
def test_numbers_are_the_papers(name: str, start: str, row: str, count: int, shared: Path) -> None:
    found = printed(shared, name.partition("/")[0], start, row, count)
    assert len(found) == count
    assert as_printed(found) == typed(name)


@pytest.mark.parametrize(
    ("name", "start", "bits"),
    [("lut-gemm-v3/table7", "Table 7:", 16), ("nuqmm/table3", "TABLE III", 32)],
)
def test_memory_and_latency_are_the_papers(name: str, start: str, bits: int, shared: Path) -> None:
    """The dense numbers of a size are printed once, in the middle or at the beginning of its rows."""
    lines = (shared / "papers" / f"{name.partition('/')[0]}.txt").read_text().splitlines()
    lines = lines[next(i for i, line in enumerate(lines) if line.startswith(start)) :]
    rows = [line for line in lines if re.match(r"\d*\t[2-5]\t", line)]
    numbers = load_artifact(name).numbers()
    rows = rows[: len(numbers)]
    for values, line in zip(numbers.values(), rows, strict=True):
        pairs = re.findall(r"([\d.]+) \(x([\d.]+)\)", line)
        wanted = [float(number) for pair in pairs for number in pair]
        assert [values[c] for c in ("memory", "reduction", "latency", "speedup")] == wanted
    dense = [re.sub(r"[\d.]+ \(x[\d.]+\)", "", line).split("\t")[2:] for line in rows]
    once = [[float(number) for number in row if number] for row in dense]
    columns = (f"memory_fp{bits}", f"latency_fp{bits}")
    typed_once = dict.fromkeys(tuple(v[c] for c in columns) for v in numbers.values())
    assert [tuple(pair) for pair in once if pair] == list(typed_once)


@pytest.mark.parametrize(("name", "width"), [("lut-gemm-v3/table7", 16), ("nuqmm/table3", 32)])
def test_printed_sizes_count_one_scale_a_row(name: str, width: int) -> None:
    """The metric that these columns show: q + width / m bits a weight."""
    digits = 0.0501 if width == 16 else 0.00501
    for row, values in load_artifact(name).numbers().items():
        m, q = (int(number) for number in re.findall(r"\d+", row))
        assert abs((q + width / m) * m * m / 8e6 - values["memory"]) < digits
        assert abs(width / (q + width / m) - values["reduction"]) < 0.0501
        assert abs(width * m * m / 8e6 - values[f"memory_fp{width}"]) < 1.1 * digits


@pytest.mark.parametrize("name", ARTIFACTS)
def test_rows_are_products_that_somebody_can_run_or_says_why_not(name: str) -> None:
    artifact = load_artifact(name)
    for scale, part in (("embedded", 4), ("small", 2), ("paper", 1)):
        for row, whole in zip(artifact.rows(scale), artifact.rows("paper"), strict=True):
            chosen = dict(override.split("=", 1) for override in row.overrides)
            asked = dict(override.split("=", 1) for override in whole.overrides)
            assert chosen["model"] == "product"
            kernel = chosen.get("kernel", "auto")
            assert kernel in (*KERNELS, *ABSENT) or re.fullmatch(r"tensor_parallel_[248]", kernel)
            sizes = re.findall(r"\d+", chosen["model.id"])
            assert [part * int(size) for size in sizes] == [
                int(size) for size in re.findall(r"\d+", asked["model.id"])
            ]
    assert {c.evaluator for c in artifact.columns.values()} <= set(registry.classes("evaluator"))


@pytest.mark.parametrize("name", ARTIFACTS)
def test_times_and_energies_of_other_machines_are_not_compared(name: str) -> None:
    absolute = ("_us", "_w", "energy_mj", "_utilization")
    for column in load_artifact(name).columns.values():
        if column.published:
            assert column.absolute == column.metric.endswith(absolute), column.title
