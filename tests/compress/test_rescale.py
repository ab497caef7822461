"""A scale moved from an input into its weights changes nothing, with powers of two not one bit: every architecture."""

import pytest
import torch
from tests.compress.passes import quantized
from tests.models.architectures import CONFIGS, DIFFERENT, LLAMA, OPT, make, randomized, token_ids
from tests.quantizers.weights import assert_same
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
VALUES = {"self_attn.o_proj": "self_attn.v_proj"}
LLAMA_NORMS = {
    "self_attn.q_proj": "input_layernorm", "mlp.gate_proj": "post_attention_layernorm", "mlp.down_proj": "mlp.up_proj",
}  # fmt: skip
OPT_NORMS = {"self_attn.q_proj": "self_attn_layer_norm", "fc1": "final_layer_norm"}
OPT_VALUES = {"self_attn.out_proj": "self_attn.v_proj"}
SOURCES = {
    "opt": OPT_NORMS | OPT_VALUES | {"fc2": "fc1"},
    "opt-350m": OPT_VALUES | {"fc2": "fc1"},
    "llama-1": LLAMA_NORMS | VALUES,
    **dict.fromkeys(("llama-2", "llama-3", "mistral", "qwen3"), LLAMA_NORMS),
    "qwen2": LLAMA_NORMS | VALUES,
    "gpt2": {"attn.c_attn": "ln_1", "mlp.c_fc": "ln_2"},
    "gpt-neo": {
        "attn.attention.q_proj": "ln_1", "attn.attention.out_proj": "attn.attention.v_proj", "mlp.c_fc": "ln_2",
    },
    "opt without biases": OPT_NORMS | OPT_VALUES | {"fc2": "fc1"},
    "opt with plain norms": OPT_VALUES | {"fc2": "fc1"},
    "opt with gelu": OPT_NORMS | OPT_VALUES,
    "llama with biases": LLAMA_NORMS | VALUES,
}  # fmt: skip
OWN = OPT | {"word_embed_proj_dim": 32}
VARIANTS = {
    "opt without biases": OPTConfig(**OWN, enable_bias=False),
    "opt with plain norms": OPTConfig(**OWN, layer_norm_elementwise_affine=False),
    "opt with gelu": OPTConfig(**OWN, activation_function="gelu"),
    "llama with biases": LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True),
}


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


def inputs_of(model):
    return family_of(model.config).inputs


@torch.no_grad()
def stats_of(model, shared):
    """What the first block's layers read."""
    return observe(decoder_blocks(model)[0], capture(model, token_ids()), [shared])[shared]


@torch.no_grad()
def rescaled(model, shared, search, width=(3, 16), stats=None):
    """Rescale one input of the first block: its statistics before, and those given back."""
    stats = stats or stats_of(model, shared)
    block, of_each = decoder_blocks(model)[0], [width] * len(shared.layers)
    return stats, rescale_input(model.config, block, shared, of_each, search, stats)


@torch.no_grad()
def logits(model):
    return model(token_ids(), use_cache=False).logits


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("name", SOURCES)
def test_the_model_and_its_statistics_are_computed_as_before_bit_for_bit(name, index):
    model, before = model_of(name), dict(model_of(name).named_parameters())
    shared, expected = inputs_of(model)[index], logits(model)
    source = SOURCES[name].get(shared.layers[0])
    stats, after = rescaled(model, shared, Given() if source else Forbidden())
    modules = [*(f"{layer}.weight" for layer in shared.layers), f"{source}.weight", f"{source}.bias"]  # fmt: skip
    touched = {f"{family_of(model.config).blocks}.0.{name}" for name in modules if source}
    changed = {n for n, value in model.named_parameters() if not torch.equal(value, before[n])}
    assert changed == touched & before.keys()
    assert torch.equal(logits(model), expected)
    assert (after is stats) == (not source)
    assert_same(vars(after), vars(stats_of(model, shared)))


@pytest.mark.parametrize("name", [*CONFIGS, *VARIANTS])
def test_any_scale_of_all_inputs_changes_no_more_than_rounding(name):
    """In float64 with scales that round: as far from the model as float32's norms and softmax let two orders be."""
    model = model_of(name).double()
    expected = logits(model)
    single = (logits(model_of(name)) - expected).abs().max()
    for shared in inputs_of(model):
        rescaled(model, shared, Given(exact=False))
    assert (logits(model) - expected).abs().max() <= 2 * single


@pytest.mark.parametrize(("layer", "left"), [("fc1", {"fc2", "fc1"}), ("fc2", {"fc2"})])
def test_a_layer_that_is_quantized_neither_carries_nor_takes_a_scale(layer, left):
    model = make("opt")
    others = [other for other in kinds(model.config) if not other.endswith(layer)]
    quantize_model(model, RTN(), widths(kinds(model.config), 4, 16, skip=others))
    sources = {s.layers[0]: source_of(model.config, decoder_blocks(model)[0], s) for s in inputs_of(model)}  # fmt: skip
    assert {name for name, source in sources.items() if source is None} == left


def test_layers_that_all_stay_in_full_precision_are_left_alone():
    model = make("llama-1")
    stats, after = rescaled(model, inputs_of(model)[0], Forbidden(), width=None)
    assert after is stats
    assert_same(model.state_dict(), make("llama-1").state_dict())


PLAIN = CalibStats(torch.eye(32), torch.ones(32), 1)


def test_weights_in_half_precision_are_rounded_once():
    model = make("opt").half()
    block, search = decoder_blocks(model)[0], Given(exact=False)
    weight, norm = block.fc1.weight.detach().clone(), block.final_layer_norm.weight.detach().clone()
    scale = search.scales([weight], None, None)
    rescaled(model, inputs_of(model)[2], search, stats=PLAIN)
    assert torch.equal(block.fc1.weight, (weight.float() * scale).half())
    assert torch.equal(block.final_layer_norm.weight, (norm.float() / scale).half())


def test_a_weight_beyond_half_precision_is_refused():
    model = make("opt").half()
    with pytest.raises(LutlabError, match=r"final_layer_norm out of torch\.float16's range"):
        rescaled(model, inputs_of(model)[2], Given(largest=40), stats=PLAIN)


def test_an_error_of_the_search_names_the_layers():
    model = make("opt")
    model.model.decoder.layers[0].fc2.weight.data[3, 4] = float("nan")
    with pytest.raises(LutlabError, match=r"^fc2: 1 of 1536 weights are inf or nan"):
        rescaled(model, inputs_of(model)[3], AWQ())


@pytest.mark.parametrize(
    ("name", "inputs"), [*((name, "full") for name in DIFFERENT), ("opt", "quantized")]
)
def test_a_model_quantized_by_awq_is_close_where_bits_are_many(name, inputs):
    """At 8 bits a mistake in a fold would be the largest error by far: round-to-nearest makes no such mistake."""
    rounded, _ = quantized(name, RTN("awq"), q=8)
    model, layers = quantized(name, AWQ(inputs=inputs), token_ids(8, 32), q=8)
    assert len(list(linear_layers(model))) == len(layers)
    ours, theirs = ((logits(m) - logits(make(name))).square().mean() for m in (model, rounded))
    assert ours <= 2 * theirs


def test_awq_takes_a_layer_at_a_time_and_widths_of_each():
    model = make("llama-1")
    expected = logits(model)
    mixed = widths(kinds(model.config), 8, 16, skip=["*.q_proj", "*.0.mlp.down_proj"])
    method = AWQ(inputs="quantized", true_sequential=True)
    stats = quantize_model(model, method, mixed, token_ids(8, 32))
    bits = {name: width[0] if width else 16 for name, width in mixed.items()}
    assert {layer.name: layer.q for layer in stats} == bits
    assert (logits(model) - expected).norm() < 0.05 * expected.norm()
