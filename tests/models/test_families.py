"""Every linear layer of every architecture is quantized or kept on purpose, and its weight is [N, K]."""

import copy

import pytest
import torch
from tests.models.architectures import CONFIGS, config, make, token_ids, uniform
from torch import nn
from torch.nn import functional
from transformers import BloomConfig
from transformers.pytorch_utils import Conv1D

from lutlab.compress.driver import quantize_model
from lutlab.errors import LutlabError
from lutlab.formats import pack
from lutlab.models.families import (
    FAMILIES,
    evaluation_seqlen,
    family_of,
    linear_layers,
    weight_of,
)
from lutlab.quantizers.bcq import BCQ
from lutlab.quantizers.rtn import RTN

Q, G = 3, 16


def all_linears(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, (nn.Linear, Conv1D))}


def test_every_family_is_tried():
    assert {config(name).model_type for name in CONFIGS} == set(FAMILIES)


@pytest.mark.parametrize("name", CONFIGS)
def test_no_linear_layer_is_forgotten(name):
    model = make(name)
    family = family_of(model.config)
    quantized = [layer for layer, _ in linear_layers(model)]
    kept = set(family.kept) & set(all_linears(model))
    assert len(quantized) == len(set(quantized)) == 2 * len(family.linears)
    assert set(quantized) | kept == set(all_linears(model))
    assert not set(quantized) & kept


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kept_layer_exists_in_some_model(family):
    models = [make(name) for name in CONFIGS if config(name).model_type == family]
    found = set().union(*map(all_linears, models))
    assert set(FAMILIES[family].kept) <= found


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_come_in_the_order_of_the_forward_pass(name):
    model = make(name)
    called = []
    for layer, module in linear_layers(model):
        module.register_forward_hook(lambda *_, layer=layer: called.append(layer))
    model(token_ids(), use_cache=False)
    assert called == [layer for layer, _ in linear_layers(model)]


@pytest.mark.parametrize("name", CONFIGS)
def test_weight_is_out_by_in_features(name):
    model = make(name)
    inputs = {}
    for layer, module in linear_layers(model):
        hook = lambda _, x, y, layer=layer: inputs.update({layer: (x[0], y)})  # noqa: E731
        module.register_forward_hook(hook)
    model(token_ids(), use_cache=False)
    for layer, module in linear_layers(model):
        x, y = inputs[layer]
        weight = weight_of(module)
        assert weight.shape == (y.shape[-1], x.shape[-1]), layer
        assert not weight.requires_grad
        assert torch.allclose(functional.linear(x, weight, module.bias), y, atol=1e-5), layer


@pytest.mark.parametrize(
    ("name", "method"), [*((name, RTN()) for name in CONFIGS), ("gpt2", BCQ())]
)
def test_forward_is_that_of_a_model_made_by_hand(name, method):
    """Bit for bit the logits of a model whose linear layers hold the dequantized weights."""
    quantized = make(name)
    by_hand = copy.deepcopy(quantized)
    unquantized = quantized(token_ids()).logits
    for layer, module in list(linear_layers(by_hand)):
        weight = pack(method.quantize(weight_of(module), Q, G)).dequantize()
        dense = nn.Linear(weight.shape[1], weight.shape[0], bias=module.bias is not None)
        dense.weight, dense.bias = nn.Parameter(weight), module.bias
        by_hand.set_submodule(layer, dense)
    quantize_model(quantized, method, uniform(quantized, Q, G))
    logits = quantized(token_ids()).logits
    assert torch.equal(logits, by_hand(token_ids()).logits)
    assert not torch.allclose(logits, unquantized, atol=1e-2)


@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_else_is_touched(name):
    """Embeddings, norms, biases, projections and head keep their bits, and a tied head stays tied."""
    model = make(name)
    replaced = {f"{layer}.weight" for layer, _ in linear_layers(model)}
    before = {n: t.clone() for n, t in model.state_dict().items() if n not in replaced}
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    quantize_model(model, RTN(), uniform(model, Q, G))
    after = model.state_dict()
    assert all(torch.equal(after[n], tensor) for n, tensor in before.items())
    assert tied == (model.get_output_embeddings().weight is model.get_input_embeddings().weight)
    assert tied == model.config.tie_word_embeddings


@pytest.mark.parametrize("q", [1, 2, 4, 8])
def test_groups_of_gpt2_are_runs_of_input_channels(q):
    """Conv1D stores [K, N]: groups of 8 equal input channels survive RTN exactly; groups along N would not."""
    model = make("gpt2")
    draw = torch.Generator().manual_seed(q)
    wanted = {}
    for layer, module in linear_layers(model):
        inputs, outputs = module.weight.shape  # Conv1D
        # plus or minus 2^e (2^q - 1): RTN's scale is 2^e, so such a group is on its grid
        exponent = torch.randint(-6, 0, (outputs, inputs // 8), generator=draw)
        sign = torch.randint(0, 2, exponent.shape, generator=draw) * 2 - 1
        value = (sign * 2.0**exponent * (2**q - 1)).repeat_interleave(8, dim=1)  # [N, K]
        module.weight.data = value.T.contiguous()
        wanted[layer] = value
    stats = quantize_model(model, RTN(), uniform(model, q, 8))
    assert [layer.squared_error for layer in stats] == [0.0] * len(stats)
    for layer, module in linear_layers(model):
        assert torch.equal(module.packed.dequantize(), wanted[layer])
        across = pack(RTN().quantize(wanted[layer].T, q, 8)).dequantize().T
        assert not torch.equal(across, wanted[layer])


@pytest.mark.parametrize(
    ("name", "field", "context", "expected"),
    [
        ("opt", "max_position_embeddings", 2048, 2048),
        ("opt", "max_position_embeddings", 512, 512),
        ("llama-1", "max_position_embeddings", 2048, 2048),
        ("llama-3", "max_position_embeddings", 8192, 2048),
        ("gpt2", "n_positions", 1024, 1024),
        ("gpt2", "n_positions", 2048, 1024),
        ("gpt-neo", "max_position_embeddings", 2048, 2048),
    ],
)
def test_window_is_the_context_up_to_the_papers(name, field, context, expected):
    changed = config(name)
    setattr(changed, field, context)
    assert evaluation_seqlen(changed) == expected


def test_unknown_architecture_is_an_error_with_the_known_ones():
    with pytest.raises(LutlabError, match=r"'bloom'.*known: gpt2, gpt_neo, llama, opt; add"):
        family_of(BloomConfig())
