"""The benchmark of whole models from end to end on a tiny one, the CPU in the GPU's place: its seconds mean nothing."""

import json

import bench_gpu_engine as bench
import pytest
import torch
from tests.base.refusals import refused
from tests.models.architectures import make

import lutlab
from lutlab.base import sources
from lutlab.generate.graph import GraphStep

KERNELS = {"lut_gemv_bit_planes": 2e-6, "fmha": 1e-6}
KINDS = {"matmul": 2e-6, "attention": 1e-6}


@pytest.fixture
def drawn(stand_in, monkeypatch):
    calls = []

    def synthetic(name, method, q, g, device, **options):
        model = make("opt")
        assert (sources.folder("conf") / "shapes" / name).is_dir()
        calls.append((name, method, q, g, options))
        return model if method == "none" else lutlab.quantize(model, "rtn", q=max(q, 2), g=8)

    stand_in(
        bench,
        LENGTH=32,
        timer=lambda step, kind: step.run(0) or step.bytes * 1e-9,
        gpu_parts=lambda run, calls: (run() and None) or (KINDS, KERNELS),
    )
    monkeypatch.setattr(lutlab, "synthetic", synthetic)
    monkeypatch.setattr(GraphStep, "obstacle", lambda model, cache: "")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 10**9)
    return calls


def test_rows_and_goals(drawn, run, monkeypatch, tmp_path):
    names = ("opt-30b", "opt-175b-q3")
    monkeypatch.setattr(bench, "PARTS", {name: bench.PARTS[name] for name in names})
    text = run(bench, f"--rounds 2 --out {tmp_path}")
    assert drawn == [
        ("opt-30b", "none", 16, -1, {}),
        ("opt-30b", "bcq", 3, 128, {"offset": True}),
        ("opt-175b", "bcq", 3, -1, {"offset": True}),
    ]
    rows = json.loads((tmp_path / "gpu_engine_opt-30b.json").read_text())["results"]
    assert [row["model"] for row in rows] == ["opt-30b float16", "opt-30b q3"]
    assert [row["of_bound"] for row in rows] == pytest.approx([1, 1])  # as the stream
    dense, ours = (sum(row["bytes"].values()) for row in rows)
    assert rows[1]["times_dense"] == pytest.approx(dense / ours)
    parts = rows[1]["breakdown_ms"]
    assert parts["matmul"] == pytest.approx(2e-3)
    assert sum(parts.values()) == pytest.approx(rows[1]["ms"])
    assert "1.000 of the bound; must 0.6, stretch 0.7: stretch met" in text
    assert "1.000 of the bound; must 0.75, stretch 0.82: stretch met" in text
    assert " of the paper's time; must 0.43, stretch 0.37: stretch met" in text
    assert text.count("times as fast as float16; must 2.6, stretch 3.2: ") == 1


def test_wrong_logits_are_not_timed(drawn, run, monkeypatch):
    step = GraphStep.step
    monkeypatch.setattr(GraphStep, "step", lambda self, ids: step(self, ids) * 1.1)
    refused("logits are wrong by 1", run, bench, "--rounds 2")


def test_a_goal_that_is_missed_is_said_so():
    assert bench.said("of the bound", 0.59, 0.6, 0.7).endswith("MISSED")
    missed = "0.440 of the paper's time; must 0.43, stretch 0.37: MISSED"
    assert bench.said("of the paper's time", -0.44, -0.43, -0.37) == missed
