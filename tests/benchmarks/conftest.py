"""Benchmarks run in this process, and the CPU in the GPU's place: every contestant takes a second for 1 GB."""

import json
import shlex

import gpu_contestants
import pytest
import torch
from tests.kernels.gpu import test_lut_gemv

from lutlab.kernels.codegen import compiler
from lutlab.measure.timing import Contestant

gpu = test_lut_gemv.gpu


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(monkeypatch, capsys):
    """`run(bench, line)`: a benchmark's command with its arguments; returns what it printed."""

    def command(bench, line):
        monkeypatch.setattr("sys.argv", ["bench", *shlex.split(line)])
        bench.main()
        return capsys.readouterr().out

    return command


@pytest.fixture
def measured(run, tmp_path):
    """`measured(bench, line)`: runs a benchmark's command, and reads the JSON that it wrote."""

    def command(bench, line):
        run(bench, f"{line} --out {tmp_path / 'out.json'}")
        return json.loads((tmp_path / "out.json").read_text())

    return command


@pytest.fixture
def compiled():
    try:
        compiler.find()
    except compiler.NoCompiler as error:
        pytest.skip(str(error))


@pytest.fixture
def stand_in(gpu, monkeypatch):
    """Lets a benchmark run without a GPU."""

    def memory(name):
        return Contestant(name, 10**6, 1, lambda i: None)

    def on_cpu(bench, **names):
        stand_ins = {
            "DEVICE": "cpu", "clocks_of": lambda device: {}, "l2_bytes": lambda: 1, "GpuTimer": lambda: by_bytes,
            "gpu_copier": lambda size: memory("copy"), "reader": lambda size, copies: memory("read"),
        }  # fmt: skip
        for name, value in stand_ins.items():
            for module in (bench, gpu_contestants):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, value)
        for name, value in names.items():
            monkeypatch.setattr(bench, name, value)

    return on_cpu


def by_bytes(contestant, kind):
    """Seconds of a contestant, as if bandwidth were all."""
    contestant.run(0)
    return contestant.bytes * 1e-9
