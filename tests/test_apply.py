"""The driver: statistics of every layer, and what it refuses."""

import pytest
import torch
from tests.models.architectures import make, token_ids, uniform

from lutlab import registry
from lutlab.apply import quantize_model
from lutlab.errors import LutlabError
from lutlab.formats import pack
from lutlab.models.families import linear_layers, weight_of
from lutlab.modules import QuantLinear

ARCHITECTURES = ["opt", "gpt2"]


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("method", ["rtn", "bcq"])
def test_statistics_are_those_of_the_layers(name, method):
    model = make(name)
    quantizer = registry.lookup("method", method)()
    before = {layer: weight_of(module).clone() for layer, module in linear_layers(model)}
    stats = quantize_model(model, quantizer, uniform(model, 3, 16))
    assert [layer.name for layer in stats] == list(before)
    for layer, module in zip(stats, dict(linear_layers(model)).values(), strict=True):
        weight = before[layer.name].double()
        packed = pack(quantizer.quantize(weight, 3, 16))
        error = (weight - packed.dequantize()).norm().item() ** 2
        assert isinstance(module, QuantLinear)
        assert (layer.out_features, layer.in_features) == tuple(weight.shape)
        assert layer.squared_error == pytest.approx(error, rel=1e-9)
        assert layer.squared_norm == pytest.approx(weight.norm().item() ** 2, rel=1e-9)
        assert layer.bits_stored == packed.bits_stored == module.packed.bits_stored
        assert 0 < layer.squared_error < layer.squared_norm


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_none_rounds_weights_to_half_precision(name):
    model = make(name)
    before = {layer: weight_of(module).clone() for layer, module in linear_layers(model)}
    stats = quantize_model(model, registry.lookup("method", "none")(), uniform(model, 16, -1))
    for layer, (path, module) in zip(stats, linear_layers(model), strict=True):
        assert torch.equal(weight_of(module), before[path].half().float())
        assert module.weight.dtype == torch.float32
        error = (before[path].half().double() - before[path].double()).square().sum().item()
        assert 0 < layer.squared_error == pytest.approx(error)
        assert layer.bits_stored == 16 * before[path].numel()


def test_a_model_in_half_precision_is_quantized_from_its_own_weights():
    model, rounded = make("opt").half(), make("opt").half().float()
    quantizer = registry.lookup("method", "rtn")()
    assert quantize_model(model, quantizer, uniform(model, 4, 16)) == quantize_model(
        rounded, quantizer, uniform(rounded, 4, 16)
    )
    logits = model(token_ids()).logits
    assert logits.dtype == torch.float16
    assert torch.allclose(logits.float(), rounded(token_ids()).logits, atol=0.2, rtol=0.05)


def test_quantizing_twice_is_refused():
    model = make("opt")
    quantizer = registry.lookup("method", "rtn")()
    quantize_model(model, quantizer, uniform(model, 4, 16))
    logits = model(token_ids()).logits
    message = r"^model\.decoder\.layers\.0\.self_attn\.q_proj is quantized already; load the model"
    with pytest.raises(LutlabError, match=message):
        quantize_model(model, quantizer, uniform(model, 4, 16))
    assert torch.equal(model(token_ids()).logits, logits)


@pytest.mark.parametrize("method", ["none", "rtn", "bcq"])
def test_an_error_names_the_layer(method):
    model = make("opt")
    model.model.decoder.layers[1].fc2.weight.data[3, 4] = float("nan")
    with pytest.raises(LutlabError, match=r"^model\.decoder\.layers\.1\.fc2: 1 of 1536 weights"):
        quantize_model(model, registry.lookup("method", method)(), uniform(model, 4, 16))
