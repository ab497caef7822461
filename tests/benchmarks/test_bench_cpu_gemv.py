"""The CPU benchmark from end to end on a small shape, alone and beside a peer in a process of its own."""

import json
import shlex
import sys
import types

import bench_cpu_gemv as bench
import cpu_peers
import pytest
import torch

from lutlab.base import registry
from lutlab.kernels.codegen import compiler
from lutlab.peers.contract import Product

SMALL = shlex.split("--shapes 64x256 --threads 1 --bits 4 --rounds 2 --calls 2 --cold-mb 1")
PEER = """#!{python}
import json, sys

_, script, wanted = sys.argv
wanted = json.loads(wanted)
assert script.endswith("cpu_peers.py") and wanted["name"] == "onnxruntime", sys.argv
name = "peer {{}} {{}}".format(wanted["shape"], wanted["m"])
print(json.dumps([dict(name=name, bytes=512, copies=2, error=0.0, activations="int8")]), flush=True)
rounds = dict(cold=[], resident=[])
for _ in sys.stdin:
    for kind in rounds:
        rounds[kind].append(1e-3)
    print(json.dumps([rounds]), flush=True)
"""


@pytest.fixture(autouse=True)
def _threads_as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(monkeypatch, tmp_path):
    try:
        compiler.find()
    except compiler.NoCompiler as error:
        pytest.skip(str(error))

    def result(*arguments):
        out = tmp_path / "out.json"
        monkeypatch.setattr(
            "sys.argv", ["bench_cpu_gemv.py", *SMALL, "--out", str(out), *arguments]
        )
        bench.main()
        (found,) = json.loads(out.read_text())["results"]
        return {row["kernel"].split(" (")[0]: row for row in found["rows"]}

    return result


def test_ours_and_torch(run):
    rows = run()
    assert {"lutlab mixed 25 %", "lutlab mixed 25 %, 0.5 % outliers"} <= set(rows)
    assert {"lutlab bcq q4", "lutlab uniform q4", "QIGen q4 g128", "torch fp32"} <= set(rows)
    assert all(len(row["cold_rounds_us"]) == 2 for row in rows.values())
    assert rows["torch fp32"]["times_torch_fp32"] == 1
    assert max(row["relative_error"] for row in rows.values()) < 1e-2
    assert rows["lutlab bcq q4"]["relative_error"] < 1e-6


def test_a_peer_answers_from_its_own_process(run, tmp_path):
    python = tmp_path / "python"
    python.write_text(PEER.format(python=sys.executable))
    python.chmod(0o755)
    row = run("--peers", "onnxruntime", "--peer-python", str(python))["peer [64, 256] 1"]
    assert row["cold_rounds_us"] == pytest.approx([1000, 1000])
    assert (row["activations"], row["bits_per_weight"]) == ("int8", 512 * 8 / (64 * 256))


def test_a_child_times_what_it_has(monkeypatch, capsys):
    """The other side of the same talk, in this process."""
    one = Product("one", 8, 1, lambda i: sum(range(1000)), error=0.5, activations="int8")
    fake = types.SimpleNamespace(cpu_products=lambda *_: [one])
    monkeypatch.setitem(registry._CLASSES["peer"], "fake", fake)
    monkeypatch.setattr("sys.stdin", iter(["go\n", "go\n"]))
    wanted = {"name": "fake", "shape": [4, 4], "m": 1, "threads": 1, "cold_mb": 1, "calls": 2}
    cpu_peers.serve(cpu_peers.argparse.Namespace(**wanted))
    known, *rounds = map(json.loads, capsys.readouterr().out.splitlines())
    assert known == [{"name": "one", "bytes": 8, "copies": 1, "error": 0.5, "activations": "int8"}]
    assert [len(found["cold"]) for (found,) in rounds] == [1, 2]


def test_a_peer_that_does_not_start_ends_the_run(run):
    with pytest.raises(RuntimeError, match="the peer's process ended"):
        run("--peers", "onnxruntime", "--peer-python", "false")
