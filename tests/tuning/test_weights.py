"""Quantization-aware fine-tuning on random models: what is stored was trained, at the widths of the analysis."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.command_line import CommandLine
from tests.models.architectures import make, uniform

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import Tuning
from lutlab.compress.driver import quantize_model
from lutlab.experiment.store.store import Store
from lutlab.formats import pack
from lutlab.models.families import linear_layers
from lutlab.modules import QuantLinear
from lutlab.quantizers.contract import make_method
from lutlab.tuning.losses import HELD_OUT, keep_no_activations, loss
from lutlab.tuning.stages import tune
from lutlab.tuning.weights import RoundedLinear


def windows(samples: int = 9, length: int = 16) -> torch.Tensor:
    """Of eight tokens, so that there is something to learn."""
    return torch.randint(1, 9, (samples, length), generator=torch.Generator().manual_seed(2))


def chosen_widths(model) -> dict:
    """All of one width, but for one layer in full precision."""
    found = uniform(model, 3, 8)
    return found | {next(iter(found)): None}


def tuned(name: str, method: str = "mixed_2_4_16", **options) -> tuple:
    model, options = make(name), {"learning_rate": 3e-3, "batch": 4, "loss": "labels"} | options
    before = copy.deepcopy(model.state_dict())
    found = tune(model, make_method(method), chosen_widths(model), windows(), Tuning(**options))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    return found


@pytest.mark.parametrize(("name", "method"), [("opt", "mixed_2_4_16"), ("gpt2", "group_widths")])
def test_what_is_stored_is_what_was_trained(name, method):
    packed, _, facts = tuned(name, method, steps=6)
    losses = dict(facts["held_out"])
    kept = losses[facts["kept_step"]]
    assert kept == min(losses.values()) < losses[0] - 0.05
    model, plain = make(name), make(name)
    quantizer, chosen, ids = make_method(method), chosen_widths(model), windows()
    layers = quantize_model(model, quantizer, chosen, ids, packed=packed)
    untuned = quantize_model(plain, quantizer, chosen, ids)
    held = ids[::HELD_OUT]
    with torch.no_grad():
        assert model(held, labels=held).loss.item() == pytest.approx(kept, rel=1e-5)
        assert plain(held, labels=held).loss.item() == pytest.approx(losses[0], rel=1e-5)
    assert [one.bits_stored for one in layers] == [one.bits_stored for one in untuned]
    for (path, one), (_, other) in zip(linear_layers(model), linear_layers(plain), strict=True):
        if chosen[path] is None:
            assert torch.equal(one.weight, other.weight)
        else:  # the widths are those of the analysis
            assert torch.equal(one.packed.widths, other.packed.widths)
            assert not torch.equal(one.packed.codes, other.packed.codes)


def test_the_seed_decides():
    first, again, other = (
        tuned("llama-2", steps=2, loss="distribution", seed=s) for s in (0, 0, 1)
    )
    assert first[2] == again[2]
    assert first[2]["held_out"][0] == other[2]["held_out"][0]
    assert first[2]["held_out"][1:] != other[2]["held_out"][1:]
    for name, layer in first[0].items():
        assert torch.equal(layer.dequantize(), again[0][name].dequantize())


def test_a_rounded_layer_multiplies_by_what_it_stores():
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, 40, generator=generator) for n in (24, 5))
    method = make_method("mixed_2_4_16", outliers=0.02)
    widths = torch.tensor([2, 4, 2], dtype=torch.uint8)
    layer = RoundedLinear(pack(method.round_to(weight, widths, 16)), torch.randn(24), method)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(24, 40, generator=generator))
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
    for one, other in zip(plain.parameters(), again.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize(("options", "said"), [
    ({"steps": 0}, "tuning.steps=0"), ({"steps": 1, "batch": True}, "tuning.batch=True"),
    ({"steps": 1, "learning_rate": 0}, "learning_rate=0"), ({"steps": 1, "loss": "label"}, "labels"),
])  # fmt: skip
def test_values_out_of_range_are_refused(options, said):
    with pytest.raises(LutlabError, match=said):
        Tuning(**options)


def test_what_cannot_be_tuned_is_refused():
    once = lutlab.Tuning(steps=1)
    with pytest.raises(LutlabError, match="mixed_2_4_16"):
        lutlab.quantize(make("opt"), method="gptq", q=3, calibration=windows(), tuning=once)
    with pytest.raises(LutlabError, match="at least 2"):
        lutlab.quantize(
            make("opt"), method="mixed_2_4_16", q=3, g=8, calibration=windows(1), tuning=once
        )
    with pytest.raises(LutlabError, match="masked_lm"):
        lutlab.quantize(
            make("bert"), method="mixed_2_4_16", q=3, g=8, calibration=windows(2), tuning=once
        )
    broken = make("llama-2")
    broken.lm_head.weight.data[0, 0] = torch.nan
    with pytest.raises(LutlabError, match="loss is nan before the first step"):
        lutlab.quantize(
            broken, method="mixed_2_4_16", q=3, g=8, calibration=windows(2), tuning=once
        )


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
    firsts = [
        path for path in kept if "0000" in path.name
    ]  # of the tuned blocks, and of those before
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
