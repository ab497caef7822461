"""The CPU benchmark from end to end on a small shape, alone and beside a peer in a process of its own."""

import json
import sys
import types

import bench_cpu_gemv as bench
import cpu_peers
import pytest

from lutlab.base import registry
from lutlab.peers.contract import Product

SMALL = "--shapes 64x256 --threads 1 --bits 4 --rounds 2 --calls 2 --cold-mb 1"
PEER = f"""#!{sys.executable}
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


@pytest.fixture
def rows(measured, compiled):
    def of_line(line=""):
        (result,) = measured(bench, f"{SMALL} {line}")["results"]
        return {row["kernel"].split(" (")[0]: row for row in result["rows"]}

    return of_line


def test_ours_and_torch(rows):
    own = rows()
    assert own.keys() >= {
        "lutlab mixed 25 %", "lutlab mixed 25 %, 0.5 % outliers", "lutlab bcq q4", "lutlab uniform q4",
        "QIGen q4 g128", "torch fp32",
    }  # fmt: skip
    assert all(len(row["cold_rounds_us"]) == 2 for row in own.values())
    assert own["torch fp32"]["times_torch_fp32"] == 1
    assert max(row["relative_error"] for row in own.values()) < 1e-2
    assert own["lutlab bcq q4"]["relative_error"] < 1e-6


def test_a_peer_answers_from_its_own_process(rows, tmp_path):
    python = tmp_path / "python"
    python.write_text(PEER)
    python.chmod(0o755)
    row = rows(f"--peers onnxruntime --peer-python {python}")["peer [64, 256] 1"]
    assert row["cold_rounds_us"] == pytest.approx([1000, 1000])
    assert (row["activations"], row["bits_per_weight"]) == ("int8", 512 * 8 / (64 * 256))


def test_a_child_times_what_it_has(monkeypatch, capsys):
    """The other side of the same talk, in this process."""
    product = Product("own", 8, 1, lambda i: sum(range(1000)), error=0.5, activations="int8")
    fake = types.SimpleNamespace(cpu_products=lambda *_: [product])
    monkeypatch.setitem(registry._CLASSES["peer"], "fake", fake)
    monkeypatch.setattr("sys.stdin", iter(["go\n", "go\n"]))
    wanted = {"name": "fake", "shape": [4, 4], "m": 1, "threads": 1, "cold_mb": 1, "calls": 2}
    cpu_peers.serve(cpu_peers.argparse.Namespace(**wanted))
    known, *rounds = map(json.loads, capsys.readouterr().out.splitlines())
    assert known == [{"name": "own", "bytes": 8, "copies": 1, "error": 0.5, "activations": "int8"}]
    assert [len(times["cold"]) for (times,) in rounds] == [1, 2]


def test_a_peer_that_does_not_start_ends_the_run(rows):
    with pytest.raises(RuntimeError, match="the peer's process ended"):
        rows("--peers onnxruntime --peer-python false")
