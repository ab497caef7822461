"""The comparison with public quantizers, from end to end on a peer of our own; the peers themselves are not here."""

import argparse
import json
import types
from typing import ClassVar

import accuracy_peers
import bench_accuracy_peers as bench
import pytest
import torch
from peers import efficientqat
from safetensors.torch import load_file

import lutlab
from lutlab.base import registry
from lutlab.peers.contract import QuantizesModels

FIRST = "model.decoder.layers.0."
NORM = "model.decoder.final_layer_norm.bias"


def quantized(folder, options, q, g, ids):
    """Signs of fc1 and fc2, but for two layers; and another norm."""
    assert q == 2, "only two bits"
    dense = load_file(folder + "/model.safetensors")
    dense["lm_head.weight"] = dense["model.decoder.embed_tokens.weight"]
    for name, value in dense.items():
        if ".fc" in name and value.dim() == 2 and name != FIRST + "fc1.weight":
            dense[name] = value.sign()
    dense[FIRST + "fc2.weight"] = torch.randn(dense[FIRST + "fc2.weight"].shape)
    dense[NORM] = dense[NORM] + options["by"]
    return dense


@pytest.fixture
def peer(monkeypatch, tmp_path):
    """A driver in this process, in the place of GPTQModel's; how often it quantized is counted."""
    counted = []

    def counting(*given):
        counted.append(given[2])
        return quantized(*given)

    class Own(QuantizesModels):
        modules, install = (), "none"
        ways: ClassVar = {"best": {"by": 2}, "other": {}}
        gradient = True
        quantize = staticmethod(counting)
        version = staticmethod(lambda: "7.1")

    monkeypatch.setitem(registry._CLASSES["peer"], "gptqmodel", Own)
    monkeypatch.setitem(bench.PEERS, "gptqmodel", Own)

    def run(command, **_):
        assert command[1].endswith("accuracy_peers.py")
        accuracy_peers.serve(json.loads(command[2]))
        return types.SimpleNamespace(returncode=0)

    monkeypatch.setattr(accuracy_peers.subprocess, "run", run)
    return counted


def test_a_peers_rows(peer, tmp_path, monkeypatch):
    """What ended well is not run again; its failure is a row; what it did to other tensors than ours is said."""
    texts = [tmp_path / name for name in ("calibration.txt", "held_out.txt")]
    for path in texts:
        path.write_text("a list of names and their values " * 40)
    given = ["--work", str(tmp_path / "work"), "--models", "opt-embedded-s", "--q", "2", "3"]
    given += ["--methods", "rtn", "gptq:no_such=1", "--samples", "2", "--seqlen", "64"]
    given += ["--peer", "gptqmodel=python", "--ways", "best", "--threads", "1"]
    args = bench.parsed([*given, "--texts", *map(str, texts)])
    monkeypatch.setattr(accuracy_peers.Material, "perplexity", lambda *_: 40.0)
    result = {"models": [bench.measure("opt-embedded-s", args)]}
    rows = {(r["implementation"], r["method"], r["q"]): r for r in result["models"][0]["rows"]}
    best, failed = rows["gptqmodel", "best", 2], rows["gptqmodel", "best", 3]
    assert (best["version"], best["gradient"], best["options"]) == ("7.1", True, {"by": 2})
    assert best["bits_per_weight"] == rows["lutlab", "rtn", 2]["bits_per_weight"]
    assert best["too_many_values"] == [FIRST + "fc2.weight"]
    assert best["beside"] == [NORM]
    assert FIRST + "fc1.weight" in best["not_quantized"]
    assert failed["not_run"] == "AssertionError: only two bits"
    assert "no_such" in rows["lutlab", "gptq:no_such=1", 2]["not_run"]
    assert "1 other tensors changed" in bench.table(result)
    bench.measure("opt-embedded-s", args)
    assert peer == [2, 3, 3]


def test_methods_and_peers_as_typed():
    typed = bench.own("gptq:act_order=true,variant=awq,tuning.steps=3")
    assert (typed.method, typed.options) == ("gptq", {"act_order": True, "variant": "awq"})
    assert typed.tuning == {"steps": 3}
    assert bench.peer("auto_round=/env/python") == ("auto_round", "/env/python")
    for parse, wrong in ((bench.own, "gptq:act_order"), (bench.peer, "gptqmodel")):
        with pytest.raises(argparse.ArgumentTypeError, match="expected"):
            parse(wrong)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_unpacked_gives_the_codes_back(bits):
    """Of both ways to pack, with a last word that is not full."""
    codes = torch.randint(2**bits, (50, 50), generator=torch.Generator().manual_seed(0))
    each = 32 // bits
    padded = torch.nn.functional.pad(codes, (0, 0, 0, -50 % each)).view(-1, each, 50)
    words = (padded << (torch.arange(each) * bits)[:, None]).sum(1).to(torch.int32)
    found = efficientqat.unpacked(words, bits, 2**bits - 1, 50, 50, dim=0)
    assert torch.equal(found, codes.float())
    found = efficientqat.unpacked(words.t(), bits, 2**bits - 1, 50, 50, dim=1)
    assert torch.equal(found, codes.t().float())


def test_levels_of_a_group():
    packed = lutlab.quantize_tensor(torch.randn(4, 200), method="rtn", q=2, g=128)
    assert (
        accuracy_peers.levels(packed.dequantize(), 128)
        <= 4
        < accuracy_peers.levels(torch.randn(4, 200), 128)
    )
    assert accuracy_peers.levels(torch.ones(1, 8), 8) == 1
