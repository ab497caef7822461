"""The CPU in the GPU's place under a benchmark: every contestant takes a second for 1 GB, no number counts."""

import gpu_contestants

from lutlab.measure.timing import Contestant


def by_bytes(one, kind):
    """Seconds of a contestant, as if bandwidth were all."""
    one.run(0)
    return one.bytes * 1e-9


def memory(name):
    return Contestant(name, 10**6, 1, lambda i: None)


def stand_in(bench, monkeypatch):
    """Lets the benchmark `bench` run without a GPU."""
    monkeypatch.setattr(gpu_contestants, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_contestants, "clocks_of", lambda device: {})
    for module in (bench, gpu_contestants):
        monkeypatch.setattr(module, "l2_bytes", lambda: 1)
    monkeypatch.setattr(bench, "GpuTimer", lambda: by_bytes)
    monkeypatch.setattr(bench, "gpu_copier", lambda size: memory("copy"))
    monkeypatch.setattr(bench, "reader", lambda size, copies: memory("read"))
