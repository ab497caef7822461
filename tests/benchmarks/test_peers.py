"""Peers are found by what they can be compared in; a benchmark's JSON says of which code, where and when it was."""

import json
import re
import subprocess
import sys
from unittest import mock

import origin
import pytest
from peers import able
from tests.conftest import ROOT

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.experiment.store import provenance
from lutlab.peers import contract
from lutlab.peers.contract import Product, checked

COMPARED = {
    contract.QuantizesModels: ["auto_round", "efficientqat", "gptqmodel", "llmcompressor"],
    contract.RunsGPTQ: ["gptqmodel", "llmcompressor"],
    contract.MultipliesOnCPU: ["llama_cpp", "onnxruntime", "torch"],
    contract.MultipliesOnGPU: ["gemlite", "marlin", "torch"],
}


@pytest.mark.parametrize(("kind", "names"), COMPARED.items())
def test_peers_are_found_by_what_they_do(kind: type, names: list[str]) -> None:
    peers = able(kind)
    assert list(peers) == names
    declared = {*vars(kind), *kind.__annotations__} - {*vars(contract.Peer), "__annotations__"}
    for peer in peers.values():
        assert [n for n in declared if not n.startswith("_") and n not in vars(peer)] == []


@pytest.mark.parametrize("error", [0.06, float("nan")])
def test_a_wrong_product_is_refused(error: float) -> None:
    with pytest.raises(LutlabError, match=r"dot is .* from the product in float64"):
        checked(Product("dot", 1, 1, lambda i: None, error=error), 0.05)


def test_a_peer_says_what_is_missing() -> None:
    missing = {peer.lacking() for peer in registry.classes("peer").values()}
    assert "" in missing  # torch
    assert any(text.endswith("not installed: pip install gptqmodel") for text in missing)


def test_a_bare_python_reads_them() -> None:
    """By -S, without site-packages: nothing beyond the standard library is needed."""
    code = "import peers; from lutlab.base import registry; print(*registry.classes('peer'))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=ROOT / "benchmarks", env=contract.surroundings(1), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(registry.classes("peer"))


KNOWN = {"cpu", "cores", "threads", "load_average", "date", "versions", "git_commit", "git_dirty"}


def test_numbers_have_their_origin(tmp_path):
    path = tmp_path / "new folder" / "numbers.json"
    origin.write(path, {"results": [1.5]})
    written = json.loads(path.read_text())
    assert written.keys() == {"origin", "results"}
    own = written["origin"]
    assert own.keys() >= KNOWN
    assert own["cpu"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", own["date"])
    assert own["versions"]["torch"]
    assert (own["git_commit"] is None) == (provenance.repository() is None)


def test_a_changed_benchmark_is_dirty(monkeypatch):
    state = mock.Mock(return_value={})
    monkeypatch.setattr(provenance, "git_state", state)
    origin.origin()
    assert state.call_args.args[1] == ("src", "kernels", "experiments", "conf", "benchmarks")


def test_every_benchmark_writes_its_numbers_through_it():
    """gpu_report.py's own JSON says how its steps ended, and has no numbers."""
    texts = {p.name: p.read_text() for p in (ROOT / "benchmarks").glob("*.py")}
    writers = {name for name, text in texts.items() if re.search(r"write_text\(\s*json", text)}
    assert writers == {"origin.py", "gpu_report.py"}
    assert sum("origin.write(" in text for text in texts.values()) > 15
