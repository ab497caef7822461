"""The GPU benchmark from end to end on small shapes, the CPU standing in for the GPU: its numbers mean nothing."""

import json

import pytest
import torch
from tests.kernels import test_lut_gemv

from benchmarks import bench_lut_gemv as bench
from lutlab.errors import LutlabError
from lutlab.kernels import lut_gemv
from lutlab.timing import Contestant

gpu = test_lut_gemv.gpu
KERNELS = ("optq", "r0", "r1", "r5")


def by_bytes(one, kind):
    """A second for 1 GB, as if bandwidth were all."""
    one.run(0)
    return one.bytes * 1e-9


@pytest.fixture
def small(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "DEVICE", "cpu")
    monkeypatch.setattr(bench, "SMALL", (48, 256))
    monkeypatch.setattr(bench, "LARGE", (64, 256))
    monkeypatch.setattr(bench, "FRACTIONS", {((64, 256), 3): (0.88, 0.94)})
    monkeypatch.setattr(bench, "TIMES_CUBLAS", {((64, 256), 3): 4.2})
    monkeypatch.setattr(bench, "BATCHES", (1, 2))
    monkeypatch.setattr(bench, "l2_bytes", lambda: 1)
    monkeypatch.setattr(bench, "GpuTimer", lambda: by_bytes)
    monkeypatch.setattr(lut_gemv, "VARIANTS", {n: lut_gemv.VARIANTS[n] for n in KERNELS})
    monkeypatch.setattr(bench, "environment", lambda: {"gpu": "none"})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a stand-in")
    monkeypatch.setattr(
        bench, "gpu_copier", lambda size: Contestant("copy", 10**6, 1, lambda i: None)
    )
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["bench_lut_gemv.py", *map(str, arguments)])
    bench.main()


def test_goals_and_batch(small, monkeypatch, capsys):
    run(monkeypatch, "--part", "goals", "batch", "--rounds", 4, "--out", small / "out")
    said = capsys.readouterr().out
    assert "64x256, q=3, g=128, 1 row(s) of x; copy" in said
    assert "r0 bcq reaches 1.000 of copy; must 0.88, stretch 0.94: stretch met" in said
    assert "times cuBLAS, must 4.2" in said
    assert "uniform: 2 rows of x take 1.00 of the time of one  goal 1.05: met" in said
    assert "dequantize bcq" in said
    found = json.loads((small / "out" / "lut_gemv_goals.json").read_text())
    (result,) = found["results"]
    kernels = {row["kernel"] for row in result["rows"]}
    assert {"r0 bcq", "r1 bcq", "r5 uniform", "optq uniform", "cuBLAS [N, K]"} <= kernels
    assert all(row["relative_error"] < 3e-3 for row in result["rows"])
    sizes = {row["kernel"]: row["megabytes"] for row in result["rows"]}
    assert sizes["r5 uniform"] < sizes["r1 bcq"] < sizes["cuBLAS [N, K]"] / 4


def test_a_wrong_product_ends_the_run(small):
    x, weight = torch.randn(1, 8).half(), torch.randn(4, 8)
    wrong = bench.Entrant("wrong", 1, 1, lambda i: 1.05 * x @ weight.half().t())
    with pytest.raises(LutlabError, match=r"wrong is wrong by [45]\..e-02"):
        bench.checked(wrong, x, weight)


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch)
    assert ended.value.code == 0
    assert "not run: no CUDA device" in capsys.readouterr().err
