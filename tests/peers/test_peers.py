"""Peers are found by what they can be compared in, and their files are read where lutlab is not installed."""

import subprocess
import sys

import pytest

from lutlab import registry
from lutlab.peers.contract import Peer, able, surroundings

COMPARED = {
    "quantize": ["auto_round", "efficientqat", "gptqmodel", "llmcompressor"],
    "gptq": ["gptqmodel", "llmcompressor"],
    "cpu_products": ["llama_cpp", "onnxruntime", "torch"],
    "gpu_product": ["gemlite", "marlin", "torch"],
}


@pytest.mark.parametrize(("what", "names"), COMPARED.items())
def test_peers_are_found_by_what_they_do(what: str, names: list[str]) -> None:
    found = able(what)
    assert list(found) == names
    assert all(peer.ways for peer in found.values() if what == "quantize")
    assert all(peer.gpu_bits for peer in found.values() if what == "gpu_product")
    with pytest.raises(NotImplementedError):
        getattr(Peer, what)(*[None] * getattr(Peer, what).__code__.co_argcount)


def test_a_peer_says_what_is_missing() -> None:
    missing = {peer.lacking() for peer in registry.classes("peer").values()}
    assert "" in missing  # torch
    assert any(said.endswith("not installed: pip install gptqmodel") for said in missing)


def test_a_bare_python_reads_them(tmp_path) -> None:
    """By -S, without site-packages: nothing beyond the standard library is needed."""
    code = "from lutlab import registry; print(*registry.classes('peer'))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path, env=surroundings(1), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(registry.classes("peer"))
