"""The race of kernels by rows of x from end to end, the CPU standing in for the GPU: its seconds mean nothing."""

import json

import bench_gpu_choice as bench
import gpu_contestants
import pytest
import torch
from tests.kernels.gpu import test_lut_gemv

from lutlab.kernels.gpu import choice, variants
from lutlab.kernels.gpu.lut_gemv.variant import H200, Case

gpu = test_lut_gemv.gpu
F16 = torch.float16


@pytest.fixture
def small(gpu, monkeypatch, tmp_path):
    for module in (bench, gpu_contestants):
        monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(bench, "products", lambda: iter([((48, 256), 3, 128, False, F16)]))
    monkeypatch.setattr(bench, "ROWS", (1, 3))
    monkeypatch.setattr(bench, "clocks_of", lambda device: {})
    monkeypatch.setattr(gpu_contestants, "l2_bytes", lambda: 1)
    some = [variants.variant(name) for name in ("bit_planes", "lane_tables", "paper")]
    monkeypatch.setattr(variants, "preferred", lambda: some)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a stand-in")
    monkeypatch.setattr(choice, "cache_folder", lambda: tmp_path)  # of races; kernels stay built
    return tmp_path


@pytest.mark.slow
def test_who_won_is_chosen_afterwards(small, monkeypatch):
    speed = {"bit_planes": 2.0, "lane_tables": 1.0, "paper": 9.0, "dequantize ": 1.5}

    def timer(one, kind):
        one.run(0)
        return speed[one.name]

    monkeypatch.setattr(bench, "GpuTimer", lambda: timer)
    monkeypatch.setattr("sys.argv", ["bench_gpu_choice.py", "--rounds", "2", "--out", str(small)])
    bench.main()
    (race,) = json.loads((small / "gpu_choice.json").read_text())["races"]
    assert race["seconds"]["1"] == {
        "dense": 1.5,
        "bit_planes": 2.0,
        "lane_tables": 1.0,
        "paper": 9.0,
    }
    assert race["seconds"]["3"] == {"dense": 1.5, "bit_planes": 2.0, "lane_tables": 1.0}, (
        "paper fell behind"
    )
    case = Case(1, 48, 256, 3, 128, F16, F16, F16)
    assert choice.choose(case, H200, "a stand-in") == ("lane_tables", choice.RACE)


def test_products_differ(small, monkeypatch):
    monkeypatch.undo()
    found = list(bench.products())
    assert len(found) == len(set(found)) == 28
