"""A scale moved from an input into its weights changes nothing, with powers of two not one bit: every architecture."""

import dataclasses

import pytest
import torch
from tests.models.architectures import CONFIGS, DIFFERENT, LLAMA, OPT, make, randomized, token_ids
from transformers import AutoModelForCausalLM, LlamaConfig, OPTConfig

from lutlab.base.errors import LutlabError
from lutlab.base.tensors import CalibStats
from lutlab.compress.calibrate import capture, observe
from lutlab.compress.driver import quantize_model
from lutlab.compress.rescale import rescale_input, source_of
from lutlab.compress.widths import widths
from lutlab.models.families import decoder_blocks, family_of, kinds, linear_layers
from lutlab.quantizers.awq import AWQ
from lutlab.quantizers.rtn import RTN

# What makes the input of a shared input's first layer; an input that is not named cannot be scaled.
NORMS_OF_LLAMA = {
    "self_attn.q_proj": "input_layernorm",
    "mlp.gate_proj": "post_attention_layernorm",
    "mlp.down_proj": "mlp.up_proj",
}
SOURCES = {
    "opt": {
        "self_attn.q_proj": "self_attn_layer_norm",
        "self_attn.out_proj": "self_attn.v_proj",
        "fc1": "final_layer_norm",
        "fc2": "fc1",
    },
    "opt-350m": {"self_attn.out_proj": "self_attn.v_proj", "fc2": "fc1"},
    "llama-1": NORMS_OF_LLAMA | {"self_attn.o_proj": "self_attn.v_proj"},
    "llama-2": NORMS_OF_LLAMA,
    "llama-3": NORMS_OF_LLAMA,
    "mistral": NORMS_OF_LLAMA,
    "qwen2": NORMS_OF_LLAMA | {"self_attn.o_proj": "self_attn.v_proj"},
    "qwen3": NORMS_OF_LLAMA,
    "gpt2": {"attn.c_attn": "ln_1", "mlp.c_fc": "ln_2"},
    "gpt-neo": {
        "attn.attention.q_proj": "ln_1",
        "attn.attention.out_proj": "attn.attention.v_proj",
        "mlp.c_fc": "ln_2",
    },
}
VARIANTS = {
    "opt without biases": OPTConfig(**OPT, word_embed_proj_dim=32, enable_bias=False),
    "opt with plain norms": OPTConfig(
        **OPT, word_embed_proj_dim=32, layer_norm_elementwise_affine=False
    ),
    "opt with gelu": OPTConfig(**OPT, word_embed_proj_dim=32, activation_function="gelu"),
    "llama with biases": LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True),
}
SOURCES["opt without biases"] = SOURCES["opt"]
SOURCES["opt with plain norms"] = SOURCES["opt-350m"]
SOURCES["opt with gelu"] = {k: v for k, v in SOURCES["opt"].items() if k != "fc2"}
SOURCES["llama with biases"] = SOURCES["llama-1"]
EVERY_INPUT = [(name, index) for name in SOURCES for index in range(4)]


def model_of(name):
    if name in CONFIGS:
        return make(name)
    torch.manual_seed(0)
    return randomized(AutoModelForCausalLM.from_config(VARIANTS[name]))


class Given:
    """A search that finds scales from 2^-largest to 2^largest; `exact`: powers of two."""

    def __init__(self, exact=True, largest=3):
        self.exact, self.largest = exact, largest

    def scales(self, weights, widths, stats):
        generator = torch.Generator().manual_seed(3)
        exponent = (2 * torch.rand(weights[0].shape[1], generator=generator) - 1) * self.largest
        return torch.exp2(exponent.round() if self.exact else exponent)


class Forbidden:
    def scales(self, weights, widths, stats):
        raise AssertionError("nothing can carry a scale, and one is searched")


def stats_of(model, shared):
    """What the first block's layers read."""
    return observe(decoder_blocks(model)[0], capture(model, token_ids()), [shared])[shared]


@torch.no_grad()
def rescaled(model, shared, search, width=(3, 16)):
    """Rescale one input of the first block: its statistics before, and those given back."""
    stats = stats_of(model, shared)
    block, of_each = decoder_blocks(model)[0], [width] * len(shared.layers)
    return stats, rescale_input(model.config, block, shared, of_each, search, stats)


def parameters(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@torch.no_grad()
def logits(model):
    return model(token_ids(), use_cache=False).logits


@pytest.mark.parametrize(("name", "index"), EVERY_INPUT)
def test_the_model_and_its_statistics_are_computed_as_before_bit_for_bit(name, index):
    model = model_of(name)
    shared = family_of(model.config).inputs[index]
    source = SOURCES[name].get(shared.layers[0])
    before, expected = parameters(model), logits(model)
    stats, after = rescaled(model, shared, Given() if source else Forbidden())
    prefix = f"{family_of(model.config).blocks}.0."
    modules = [*shared.layers, source] if source else []
    touched = {prefix + module + ".weight" for module in modules}
    touched |= {prefix + source + ".bias"} & set(before) if source else set()
    changed = {n for n, value in parameters(model).items() if not torch.equal(value, before[n])}
    assert changed == touched
    assert torch.equal(logits(model), expected)
    assert (after is stats) == (not source)
    observed = stats_of(model, shared)
    assert torch.equal(after.hessian, observed.hessian)
    assert torch.equal(after.mean_abs, observed.mean_abs)
    assert after.tokens == observed.tokens


@pytest.mark.parametrize("name", SOURCES)
def test_all_inputs_of_a_block_at_once(name):
    model = model_of(name)
    expected = logits(model)
    for shared in family_of(model.config).inputs:
        rescaled(model, shared, Given())
    assert torch.equal(logits(model), expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_any_scale_changes_no_more_than_rounding(name):
    """In float64 with scales that round: as far from the model as float32's norms and softmax let two orders be."""
    model = make(name).double()
    expected = logits(model)
    single = (logits(make(name)) - expected).abs().max()
    for shared in family_of(model.config).inputs:
        rescaled(model, shared, Given(exact=False))
    assert (logits(model) - expected).abs().max() <= 2 * single


@pytest.mark.parametrize(
    ("name", "layer", "wrong"),
    [
        ("opt", "self_attn.q_proj", "final_layer_norm"),
        ("opt", "self_attn.out_proj", "self_attn.q_proj"),
        ("opt-350m", "self_attn.q_proj", "self_attn_layer_norm"),
        ("llama-1", "self_attn.q_proj", "post_attention_layernorm"),
        ("llama-1", "self_attn.o_proj", "self_attn.k_proj"),
        ("llama-1", "mlp.down_proj", "mlp.gate_proj"),
        ("gpt-neo", "attn.attention.out_proj", "attn.attention.k_proj"),
    ],
)
def test_the_wrong_module_would_be_noticed(name, layer, wrong, monkeypatch):
    monkeypatch.setattr(
        "lutlab.compress.rescale.source_of", lambda _, block, s: block.get_submodule(s.scaled_by)
    )
    model = make(name)
    expected = logits(model)
    shared = next(s for s in family_of(model.config).inputs if s.layers[0] == layer)
    rescaled(model, dataclasses.replace(shared, scaled_by=wrong), Given())
    assert not torch.allclose(logits(model), expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(("layer", "left"), [("fc1", {"fc2", "fc1"}), ("fc2", {"fc2"})])
def test_a_layer_that_is_quantized_neither_carries_nor_takes_a_scale(layer, left):
    model = make("opt")
    others = [other for other in kinds(model.config) if not other.endswith(layer)]
    quantize_model(model, RTN(), widths(kinds(model.config), 4, 16, skip=others))
    block = decoder_blocks(model)[0]
    inputs = family_of(model.config).inputs
    without = {s.layers[0] for s in inputs if source_of(model.config, block, s) is None}
    assert without == left


def test_quantizing_twice_is_refused_before_anything_is_scaled():
    model = make("opt")
    quantize_model(model, RTN(), widths(kinds(model.config), 4, 16))
    before = logits(model)
    with pytest.raises(LutlabError, match="is quantized already; load the model again"):
        quantize_model(model, AWQ(), widths(kinds(model.config), 4, 16), token_ids())
    assert torch.equal(logits(model), before)


def test_layers_that_all_stay_in_full_precision_are_left_alone():
    model = make("llama-1")
    before = parameters(model)
    stats, after = rescaled(model, family_of(model.config).inputs[0], Forbidden(), width=None)
    assert after is stats
    assert all(torch.equal(value, before[name]) for name, value in parameters(model).items())


def test_weights_in_half_precision_are_rounded_once():
    model = make("opt").half()
    block, shared = decoder_blocks(model)[0], family_of(model.config).inputs[2]
    weight, norm = block.fc1.weight.detach().clone(), block.final_layer_norm.weight.detach().clone()
    scale = Given(exact=False).scales([weight], None, None)
    stats = CalibStats(torch.eye(32), torch.ones(32), 1)
    with torch.no_grad():
        rescale_input(model.config, block, shared, [(3, 16)], Given(exact=False), stats)
    assert torch.equal(block.fc1.weight, (weight.float() * scale).half())
    assert torch.equal(block.final_layer_norm.weight, (norm.float() / scale).half())


def test_a_weight_beyond_half_precision_is_refused():
    model = make("opt").half()
    shared, stats = family_of(model.config).inputs[2], CalibStats(torch.eye(32), torch.ones(32), 1)
    block, message = decoder_blocks(model)[0], r"final_layer_norm out of torch\.float16's range"
    with torch.no_grad(), pytest.raises(LutlabError, match=message):
        rescale_input(model.config, block, shared, [(3, 16)], Given(largest=40), stats)


def test_an_error_of_the_search_names_the_layers():
    model = make("opt")
    model.model.decoder.layers[0].fc2.weight.data[3, 4] = float("nan")
    with pytest.raises(LutlabError, match=r"^fc2: 1 of 1536 weights are inf or nan"):
        rescaled(model, family_of(model.config).inputs[3], AWQ())


@pytest.mark.parametrize(
    ("name", "inputs"), [*((name, "full") for name in DIFFERENT), ("opt", "quantized")]
)
def test_a_model_quantized_by_awq_is_close_where_bits_are_many(name, inputs):
    """At 8 bits a mistake in a fold would be the largest error by far: round-to-nearest makes no such mistake."""
    expected, rounded, model = logits(make(name)), make(name), make(name)
    of_each = widths(kinds(model.config), 8, 16)
    quantize_model(rounded, RTN("awq"), of_each)
    quantize_model(model, AWQ(inputs=inputs), of_each, token_ids(8, 32))
    assert len(list(linear_layers(model))) == len(of_each)
    ours, theirs = ((logits(m) - expected).square().mean() for m in (model, rounded))
    assert ours <= 2 * theirs


def test_awq_takes_a_layer_at_a_time_and_widths_of_each():
    model = make("llama-1")
    expected = logits(model)
    mixed = widths(kinds(model.config), 8, 16, skip=["*.q_proj", "*.0.mlp.down_proj"])
    stats = quantize_model(
        model, AWQ(inputs="quantized", true_sequential=True), mixed, token_ids(8, 32)
    )
    assert {layer.name: layer.q for layer in stats} == {
        name: width[0] if width else 16 for name, width in mixed.items()
    }
    assert (logits(model) - expected).norm() < 0.05 * expected.norm()
