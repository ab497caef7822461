"""Quantization-aware fine-tuning on random models: what is stored was trained, at the widths of the analysis."""

import pytest
import torch
from tests.command_line import CommandLine
from tests.models.architectures import make
from tests.quantizers.weights import assert_same, drawn
from tests.tuning.tuned import stored, tuned, windows

from lutlab.experiment.store.store import Store
from lutlab.formats import pack
from lutlab.modules import QuantLinear
from lutlab.quantizers.contract import make_method
from lutlab.tuning.losses import keep_no_activations, loss
from lutlab.tuning.weights import RoundedLinear


@pytest.mark.parametrize(("name", "method"), [("opt", "mixed_2_4_16"), ("gpt2", "group_widths")])
def test_what_is_stored_is_what_was_trained(name, method):
    for layer, other in stored(name, method, 3, 0.05, steps=6):
        assert_same(layer.packed.widths, other.packed.widths)  # those of the analysis
        assert not torch.equal(layer.packed.codes, other.packed.codes)


def test_the_seed_decides():
    options = {"steps": 2, "loss": "distribution"}
    first, again, other = (
        tuned("llama-2", "mixed_2_4_16", 3, seed=seed, **options) for seed in (0, 0, 1)
    )
    assert first[2] == again[2]
    assert first[2]["held_out"][0] == other[2]["held_out"][0]
    assert first[2]["held_out"][1:] != other[2]["held_out"][1:]
    for name, layer in first[0].items():
        assert_same(layer.dequantize(), again[0][name].dequantize())


def test_a_rounded_layer_multiplies_by_what_it_stores():
    weight, x, method = drawn(24, 40), drawn(5, 40), make_method("mixed_2_4_16", outliers=0.02)
    widths = torch.tensor([2, 4, 2], dtype=torch.uint8)
    layer = RoundedLinear(pack(method.round_to(weight, widths, 16)), torch.randn(24), method)
    with torch.no_grad():
        layer.weight.copy_(drawn(24, 40, seed=1))
    packed = layer.rounded()
    assert torch.equal(packed.dequantize(), layer.decoded())
    assert torch.equal(packed.widths, widths)
    y = layer(x)
    torch.testing.assert_close(y, QuantLinear(packed, layer.bias)(x), rtol=1e-5, atol=1e-5)
    y.sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(24, 40))


def test_blocks_that_are_computed_again_have_the_same_gradients():
    plain, again = make("llama-2"), make("llama-2")
    keep_no_activations(again)
    for model in (plain, again):
        loss(model, make("llama-1"), "distribution", windows(2)).backward()
    assert_same([p.grad for p in again.parameters()], [p.grad for p in plain.parameters()])


@pytest.mark.slow
def test_a_row_is_tuned_from_the_command_line(command: CommandLine):
    row = ["method=mixed_2_4_16", "q=2.5", "g=16", "calibration.text=pydocs-train", "calibration.samples=2",
           "calibration.seqlen=32", "evaluate=[weight_error]", "logger=none", "tuning.steps=1"]  # fmt: skip
    outcome = command(*row, "tuning.batch=2")
    assert outcome.code == 0, outcome.err
    assert "tuning.steps=1, tuning.batch=2" in outcome.out
    (record,) = command.records().values()
    assert record["provenance"]["identity"]["run"]["tuning"] == {"steps": 1, "batch": 2}
    assert [step for step, _ in record["facts"]["tuning"]["held_out"]] == [0, 1]
    kept = {path: path.read_bytes() for path in command.results.glob("quantized/*/*")}
    firsts = [path for path in kept if "0000" in path.name]  # tuned blocks, and those before
    for first in firsts:
        first.write_bytes(kept[first][:-1] + bytes([kept[first][-1] ^ 1]))
    Store(command.results).path(record["cell_id"]).unlink()
    again = command(*row, "tuning.batch=2")
    assert again.err.count(f"{first.name} is damaged") == len(firsts) == 2
    assert f"{len(kept) // 2 - 1} blocks from" in again.err, "all blocks are of one tuning"
    assert {path: path.read_bytes() for path in kept} == kept
    assert next(iter(command.records().values()))["values"] == record["values"]
    refused = command(*row, "stream=true")
    assert (refused.code, "stream=true" in refused.err) == (2, True)
