"""The benchmark of whole models from end to end on a tiny one, the CPU in the GPU's place: its seconds mean nothing."""

import json

import bench_gpu_engine as bench
import pytest
import torch
from tests.benchmarks.cpu_for_gpu import stand_in
from tests.kernels.gpu import test_lut_gemv
from tests.models.architectures import make

import lutlab
from lutlab.base import sources
from lutlab.base.errors import LutlabError
from lutlab.generate.graph import GraphStep

gpu = test_lut_gemv.gpu


@pytest.fixture
def small(gpu, monkeypatch, tmp_path):
    asked = []

    def synthetic(name, method, q, g, device, **options):
        model = make("opt")
        assert (sources.folder("conf") / "shapes" / name).is_dir()
        asked.append((name, method, q, g, options))
        return model if method == "none" else lutlab.quantize(model, "rtn", q=max(q, 2), g=8)

    stand_in(bench, monkeypatch)
    monkeypatch.setattr(lutlab, "synthetic", synthetic)
    monkeypatch.setattr(GraphStep, "obstacle", lambda model, cache: "")
    monkeypatch.setattr(bench, "LENGTH", 32)
    monkeypatch.setattr(bench, "timer", lambda one, kind: one.run(0) or one.bytes * 1e-9)
    kernels = {"lut_gemv_bit_planes": 2e-6, "fmha": 1e-6}
    kinds = {"matmul": 2e-6, "attention": 1e-6}
    monkeypatch.setattr(bench, "gpu_parts", lambda run, calls: (run() and None) or (kinds, kernels))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 10**9)
    monkeypatch.setattr(
        "sys.argv", ["bench_gpu_engine.py", "--rounds", "2", "--out", str(tmp_path)]
    )
    return asked, tmp_path


def test_rows_and_goals(small, monkeypatch, capsys):
    asked, folder = small
    names = ("opt-30b", "opt-175b-q3")
    monkeypatch.setattr(bench, "PARTS", {name: bench.PARTS[name] for name in names})
    bench.main()
    assert asked == [
        ("opt-30b", "none", 16, -1, {}),
        ("opt-30b", "bcq", 3, 128, {"offset": True}),
        ("opt-175b", "bcq", 3, -1, {"offset": True}),
    ]
    rows = json.loads((folder / "gpu_engine_opt-30b.json").read_text())["results"]
    assert [row["model"] for row in rows] == ["opt-30b float16", "opt-30b q3"]
    dense, ours = rows
    for row in rows:  # a second for 1 GB, as the stream
        assert row["of_bound"] == pytest.approx(1)
    assert ours["times_dense"] == pytest.approx(
        sum(dense["bytes"].values()) / sum(ours["bytes"].values())
    )
    assert ours["breakdown_ms"]["matmul"] == pytest.approx(2e-3)
    assert sum(ours["breakdown_ms"].values()) == pytest.approx(ours["ms"])
    said = capsys.readouterr().out
    assert "1.000 of the bound; must 0.6, stretch 0.7: stretch met" in said
    assert "1.000 of the bound; must 0.75, stretch 0.82: stretch met" in said
    assert " of the paper's time; must 0.43, stretch 0.37: stretch met" in said
    assert said.count("times as fast as float16; must 2.6, stretch 3.2: ") == 1


def test_wrong_logits_are_not_timed(small, monkeypatch):
    step = GraphStep.step
    monkeypatch.setattr(GraphStep, "step", lambda self, ids: step(self, ids) * 1.1)
    with pytest.raises(LutlabError, match="logits are wrong by 1"):
        bench.main()


def test_a_goal_that_is_missed_is_said_so():
    assert bench.said("of the bound", 0.59, 0.6, 0.7).endswith("MISSED")
    assert bench.said("of the paper's time", -0.44, -0.43, -0.37) == (
        "0.440 of the paper's time; must 0.43, stretch 0.37: MISSED"
    )
