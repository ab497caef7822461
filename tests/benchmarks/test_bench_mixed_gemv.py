"""The benchmark of 2/4/16-bit weights from end to end on small shapes, the CPU in the GPU's place: no number counts."""

import json

import bench_mixed_gemv as bench
import pytest
from tests.benchmarks.cpu_for_gpu import stand_in
from tests.kernels.gpu import test_lut_gemv

from lutlab.formats.mixed import PackedMixed

gpu = test_lut_gemv.gpu
SHAPE = (48, 320)


@pytest.fixture
def small(gpu, monkeypatch, tmp_path):
    stand_in(bench, monkeypatch)
    monkeypatch.setattr(PackedMixed, "kernels", {"cuda": ("mixed_gemv_gpu",)})
    monkeypatch.setattr(bench, "SHAPES", (SHAPE,))
    for goal, must in (("FRACTION", 0.66), ("TIMES", 4.2), ("MICROSECONDS", 10.0)):
        monkeypatch.setattr(bench, goal, {SHAPE: must})
    return tmp_path


@pytest.mark.slow
def test_shapes_with_their_goals(small, monkeypatch, capsys):
    arguments = ["--part", "shapes", "--rounds", "2", "--out", str(small)]
    monkeypatch.setattr("sys.argv", ["bench_mixed_gemv.py", *arguments])
    bench.main()
    said = capsys.readouterr().out
    assert "mixed_async 0.2 % fused reaches 1.000 of copy; must 0.66: met" in said
    assert "times as fast as cuBLAS; must 4.2: " in said
    assert "asynchrony makes the product 1.00 times as fast" in said
    (result,) = json.loads((small / "mixed_gemv_shapes.json").read_text())["results"]
    sizes = {row["kernel"]: row["megabytes"] for row in result["rows"]}
    assert sizes["mixed_sync 0 %"] < sizes["mixed_async 0.2 % fused"] < sizes["cuBLAS [N, K]"] / 2


@pytest.mark.slow
def test_widths_beside_what_their_bytes_predict(small, monkeypatch, capsys):
    monkeypatch.setattr(bench, "LARGE", (16, 768))
    few = ("2 bits", "4 bits", "2, 3, 4 bits")
    monkeypatch.setattr(bench, "WIDTHS", {name: bench.WIDTHS[name] for name in few})
    (result,) = bench.widths(1)
    said = capsys.readouterr().out
    assert (
        "2, 3, 4 bits take 1.000 of what their bytes predict between 2 and 4 bits; at most" in said
    )
    assert len(result["rows"]) == 3


def test_the_cost_of_outliers_is_told(small, monkeypatch, capsys):
    """Bytes alone, cuSPARSE's half products being no part of a CPU's torch."""
    ways = []

    def told(shape, ratio, x, asked):
        ways.append((ratio, [how for _, how in asked]))
        return [
            bench.Entrant(
                f"mixed_async {100 * ratio:g} %" + (f" {how}" if ratio else ""),
                100 + round(1000 * ratio) * (1 + at),
                1,
                lambda i: None,
                kind="mixed",
            )
            for at, (_, how) in enumerate(asked)
        ]

    monkeypatch.setattr(bench, "entrants", told)
    (_,) = bench.outliers(1)
    said = capsys.readouterr().out
    assert ways[2] == (0.002, ["fused", "cusparse"])
    assert "0.5% of outliers cost 5.0% fused; at most 5%: " in said
    assert "1.5% of outliers cost 15.0% fused, 30.0% by cuSPARSE" in said
