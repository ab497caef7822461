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

FC1, FC2 = (f"model.decoder.layers.0.{name}.weight" for name in ("fc1", "fc2"))
NORM = "model.decoder.final_layer_norm.bias"
LINE = (
    "--models opt-embedded-s --q 2 3 --methods rtn gptq:no_such=1 --samples 2 --seqlen 64 --peer gptqmodel=python "
    "--ways best --threads 1"
)


@pytest.fixture
def widths(monkeypatch):
    """A driver in this process, in the place of GPTQModel's: the widths that it was asked for."""
    calls = []

    def quantized(folder, options, q, g, ids):
        """Signs of fc1 and fc2, but for two layers; and another norm."""
        calls.append(q)
        assert q == 2, "only two bits"
        dense = load_file(folder + "/model.safetensors")
        dense["lm_head.weight"] = dense["model.decoder.embed_tokens.weight"]
        for name, value in dense.items():
            if ".fc" in name and value.dim() == 2 and name != FC1:
                dense[name] = value.sign()
        dense[FC2] = torch.randn(dense[FC2].shape)
        dense[NORM] = dense[NORM] + options["by"]
        return dense

    class Own(QuantizesModels):
        modules, install = (), "none"
        ways: ClassVar = {"best": {"by": 2}, "other": {}}
        gradient = True
        quantize = staticmethod(quantized)
        version = staticmethod(lambda: "7.1")

    def run(command, **_):
        assert command[1].endswith("accuracy_peers.py")
        accuracy_peers.serve(json.loads(command[2]))
        return types.SimpleNamespace(returncode=0)

    monkeypatch.setitem(registry._CLASSES["peer"], "gptqmodel", Own)
    monkeypatch.setitem(bench.PEERS, "gptqmodel", Own)
    monkeypatch.setattr(accuracy_peers.subprocess, "run", run)
    return calls


def test_a_peers_rows(widths, tmp_path, monkeypatch):
    """What ended well is not run again; its failure is a row; what it did to other tensors than ours is said."""
    texts = [tmp_path / name for name in ("calibration.txt", "held_out.txt")]
    for path in texts:
        path.write_text("a list of names and their values " * 40)
    line = [*LINE.split(), "--work", str(tmp_path / "work"), "--texts", *map(str, texts)]
    args = bench.parsed(line)
    monkeypatch.setattr(accuracy_peers.Material, "perplexity", lambda *_: 40.0)
    model = bench.measure("opt-embedded-s", args)
    rows = {(r["implementation"], r["method"], r["q"]): r for r in model["rows"]}
    best, failed = rows["gptqmodel", "best", 2], rows["gptqmodel", "best", 3]
    assert (best["version"], best["gradient"], best["options"]) == ("7.1", True, {"by": 2})
    assert best["bits_per_weight"] == rows["lutlab", "rtn", 2]["bits_per_weight"]
    assert (best["too_many_values"], best["beside"]) == ([FC2], [NORM])
    assert FC1 in best["not_quantized"]
    assert failed["not_run"] == "AssertionError: only two bits"
    assert "no_such" in rows["lutlab", "gptq:no_such=1", 2]["not_run"]
    assert "1 other tensors changed" in bench.table({"models": [model]})
    bench.measure("opt-embedded-s", args)
    assert widths == [2, 3, 3]


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
    for packed, dim, expected in ((words, 0, codes.float()), (words.t(), 1, codes.t().float())):
        unpacked = efficientqat.unpacked(packed, bits, 2**bits - 1, 50, 50, dim=dim)
        assert torch.equal(unpacked, expected)


def test_levels_of_a_group():
    weight = torch.randn(4, 200)
    packed = lutlab.quantize_tensor(weight, method="rtn", q=2, g=128)
    assert accuracy_peers.levels(packed.dequantize(), 128) <= 4 < accuracy_peers.levels(weight, 128)
    assert accuracy_peers.levels(torch.ones(1, 8), 8) == 1
