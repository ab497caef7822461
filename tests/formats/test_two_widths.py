"""One file outside of the package adds a format: it quantizes, packs, has a size, is saved, loaded and multiplied."""

import importlib
import sys

import pytest
import torch
from tests.models.architectures import make, token_ids, uniform
from tests.quantizers.weights import assert_same, drawn
from tests.tiny_models import RUN

import lutlab
from lutlab import formats
from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.specs import Subject
from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import BlockStore
from lutlab.evaluators.model_size import ModelSize
from lutlab.kernels import ran
from lutlab.models.families import linear_layers, weight_of
from lutlab.modules import QuantLinear


@pytest.fixture
def toy():
    """Imported as a user's module; other tests are not to meet it in the registry."""
    yield importlib.import_module("tests.toy_two_widths")
    del sys.modules["tests.toy_two_widths"]
    for group in ("format", "method"):
        del registry._CLASSES[group]["two_widths"]


def packed_weight():
    return lutlab.quantize_tensor(drawn(6, 64), method="two_widths", q=4, g=-1)


def test_it_packs_and_has_a_size(toy):
    packed = packed_weight()
    assert type(packed) is toy.PackedTwoWidths
    assert packed.bits_per_weight == (4 + 2) / 2 + 4 * 32 / 64
    assert packed.bcq_bits is None
    assert (packed.dequantize() - drawn(6, 64)).abs().max() < 1.0
    assert_same(formats.pack(packed.unpack()).buffers, packed.buffers)


def test_a_layer_multiplies_by_it_and_says_how(toy):
    layer, x = QuantLinear(packed_weight(), None), drawn(3, 64, seed=1)
    ran.take()
    assert torch.equal(layer(x), x @ layer.packed.dequantize().T)
    (name,) = ran.take()
    assert name == layer.describe(3, torch.float32)
    assert name == "dequantize once, torch matmul (no kernel: PackedTwoWidths names none for cpu)"


@pytest.mark.parametrize("name", ["opt", "gpt2"])
def test_a_model_is_quantized_kept_saved_and_loaded(toy, name, tmp_path):
    model, kept = make(name), BlockStore(tmp_path / "id")
    stats = quantize_model(model, toy.TwoWidths(), uniform(model, 4, -1), kept=kept)
    layers = dict(linear_layers(model))
    for layer in stats:
        stored = layers[layer.name].packed
        assert (layer.format, layer.bits_bcq) == ("two_widths", None)
        bits = sum(8 * b.nbytes for b in stored.buffers.values())
        assert layer.bits_stored == stored.bits_stored == bits
    size = ModelSize().measure(Subject(None, None, stats, None, 16, RUN))
    weights = sum(weight_of(module).numel() for _, module in linear_layers(make(name)))
    assert size.values["bits_per_weight"] == sum(s.bits_stored for s in stats) / weights
    assert size.facts["layout"] == ["two_widths"]
    assert "bits_per_weight_bcq" not in size.values
    expected = model(token_ids()).logits
    lutlab.save(model, tmp_path / "saved")
    assert torch.equal(lutlab.load(tmp_path / "saved")(token_ids()).logits, expected)
    fresh = make(name)
    assert quantize_model(fresh, toy.TwoWidths(), uniform(fresh, 4, -1), kept=kept) == stats
    assert torch.equal(fresh(token_ids()).logits, expected)
    assert model.half()(token_ids()).logits.isfinite().all()


def test_a_budget_counts_the_formats_own_bits(toy):
    options = {"candidates": [(2, -1), (4, -1)], "calibration": token_ids(4, 16)}
    model = lutlab.quantize(make("opt"), "two_widths", budget=7.0, **options)
    packed = [module.packed for _, module in linear_layers(model)]
    weights = sum(weight.shape[0] * weight.shape[1] for weight in packed)
    assert sum(weight.bits_stored for weight in packed) <= 7.0 * weights


def test_exports_of_uniform_codes_refuse_it(toy, tmp_path):
    model = make("llama-2")
    quantize_model(model, toy.TwoWidths(), uniform(model, 4, -1))
    with pytest.raises(LutlabError, match=r"its codes are not uniform .those of format two_widths"):
        lutlab.export_gptq(model, tmp_path / "out")


def test_what_no_format_packs_is_refused_and_those_that_are_there_are_named(toy):
    with pytest.raises(LutlabError, match=r"no formats pack a dict, .*UniformTensor \(uniform\)"):
        formats.pack({})
    with pytest.raises(LutlabError, match="unknown format"):
        QuantLinear.from_layout({"format": "three_widths", "bias_dtype": None})
