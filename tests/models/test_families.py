"""Every linear layer of every architecture is quantized or kept on purpose, and its weight is [N, K]."""

import copy
import dataclasses

import pytest
import torch
import transformers
from tests.base.refusals import refused
from tests.models.architectures import CONFIGS, LLAMA, config, make, randomized, token_ids, uniform
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, DynamicCache, PhiConfig
from transformers.pytorch_utils import Conv1D

from lutlab.base import registry
from lutlab.compress.driver import quantize_model
from lutlab.compress.rescale import source_of
from lutlab.formats import pack
from lutlab.models import families
from lutlab.models.contract import Family, SharedInput, declare
from lutlab.models.families import decoder_blocks, family_of, linear_layers, weight_of
from lutlab.quantizers.awq import AWQ
from lutlab.quantizers.bcq import BCQ
from lutlab.quantizers.rtn import RTN

Q, G = 3, 16


def all_linears(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, (nn.Linear, Conv1D))}


@torch.no_grad()
def traced(model, part):
    """Path of each module of a part -> what it read and what it put out, in the order of a forward pass."""
    tensors = {}

    def watch(path, module):
        def keep(_, x, kwargs, y):
            read = x[0] if x else kwargs.get("hidden_states")
            tensors[path] = (read, y[0] if isinstance(y, tuple) else y)

        module.register_forward_hook(keep, with_kwargs=True)

    for path, module in part.named_modules():
        watch(path, module)
    model(token_ids(), use_cache=False)
    return tensors


def misread(model):
    """Violations of what a family says about who reads which tensor of the first block, as sentences."""
    block, wrong = decoder_blocks(model)[0], []
    leaves = {path for path, module in block.named_modules() if path and not [*module.children()]}
    tensors = {path: pair for path, pair in traced(model, block).items() if path in leaves}
    for shared in family_of(model.config).inputs:
        read = tensors[shared.layers[0]][0]
        readers = {path for path, (x, _) in tensors.items() if x is read}
        source = source_of(model.config, block, shared)
        if not readers >= set(shared.layers):
            wrong.append(f"{shared.layers} read several inputs")
        if source is not None and source.weight.ndim == 1:
            if tensors[shared.scaled_by][1] is not read:
                wrong.append(f"{shared.scaled_by} does not make the input of {shared.layers[0]}")
            if readers != set(shared.layers):
                wrong.append(f"{shared.scaled_by} feeds {sorted(readers - set(shared.layers))} too")
    return wrong


def test_every_family_is_tried_with_every_model_type():
    assert {config(name).model_type for name in CONFIGS} == set(registry.classes("family"))


@pytest.mark.parametrize("name", CONFIGS)
def test_no_linear_layer_is_forgotten(name):
    model = make(name)
    family = family_of(model.config)
    quantized = [layer for layer, _ in linear_layers(model)]
    kept = set(family.kept) & set(all_linears(model))
    assert len(quantized) == len(set(quantized)) == 2 * len(family.linears)
    assert set(quantized) | kept == set(all_linears(model))
    assert not set(quantized) & kept


@pytest.mark.parametrize("family", dict.fromkeys(registry.classes("family").values()))
def test_every_kept_layer_exists_in_some_model(family):
    names = [name for name in CONFIGS if config(name).model_type in family.model_types]
    models = [make(name) for name in names]
    if "score" in family.kept:
        models.append(transformers.AutoModelForSequenceClassification.from_config(config(names[0])))
    assert set(family.kept) <= set().union(*map(all_linears, models))


@pytest.mark.parametrize("name", CONFIGS)
def test_config_fields_that_a_family_names_exist(name):
    family = family_of(config(name))
    named = [field for shared in family.inputs for field, _ in shared.scaled_where]
    named += [f for s in family.inputs for _, where in s.adds_to for f, _ in where]
    named += [family.seqlen, *(field for field, _ in family.where)]
    assert all(hasattr(config(name), field) for field in named)


@pytest.mark.parametrize("name", CONFIGS)
def test_shared_inputs_are_shared_and_what_carries_a_scale_feeds_nothing_else(name):
    assert misread(make(name)) == []


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_add_to_the_stream_that_a_family_names(name):
    """What the named module reads and the layer puts out is in sum what something reads, or the block puts out."""
    model = make(name)
    tensors = traced(model, decoder_blocks(model)[0])
    inputs = family_of(model.config).inputs
    streams = [(shared, families.stream_of(model.config, shared)) for shared in inputs]
    streams = [(shared, path) for shared, path in streams if path is not None]
    assert [shared.kind for shared, _ in streams] == ["attention", "feed_forward"]
    for shared, path in streams:
        (layer,) = shared.layers
        total = (tensors[path][0].flatten(0, -2) + tensors[layer][1].flatten(0, -2)).flatten()
        after = [read for read, _ in tensors.values() if read is not None] + [tensors[""][1]]
        assert any(torch.equal(x.flatten(), total) for x in after), layer


@pytest.mark.parametrize("name", CONFIGS)
def test_weight_is_out_by_in_features_and_layers_come_in_the_order_of_the_forward_pass(name):
    model = make(name)
    layers = dict(linear_layers(model))
    tensors = {path: pair for path, pair in traced(model, model).items() if path in layers}
    assert list(tensors) == list(layers)
    for layer, (x, y) in tensors.items():
        weight = weight_of(layers[layer])
        assert weight.shape == (y.shape[-1], x.shape[-1]), layer
        assert not weight.requires_grad
        assert torch.allclose(functional.linear(x, weight, layers[layer].bias), y, atol=1e-5), layer


@pytest.mark.parametrize(("name", "method"), [("gpt2", BCQ()), *((n, RTN()) for n in CONFIGS)])
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
    quantize_model(model, RTN(), uniform(model, Q, G))
    after = model.state_dict()
    assert all(torch.equal(after[n], tensor) for n, tensor in before.items())
    head = model.get_output_embeddings()
    if head is not None:  # a classifier has none
        tied = head.weight is model.get_input_embeddings().weight
        assert tied == model.config.tie_word_embeddings


@pytest.mark.parametrize("q", [1, 2, 4, 8])
def test_groups_of_gpt2_are_runs_of_input_channels(q):
    """Conv1D stores [K, N]: groups of 8 equal input channels survive RTN exactly; groups along N would not."""
    model = make("gpt2")
    draw = torch.Generator().manual_seed(q)
    weights = {}
    for layer, module in linear_layers(model):
        inputs, outputs = module.weight.shape  # Conv1D
        # plus or minus 2^e (2^q - 1): RTN's scale is 2^e, so such a group is on its grid
        exponent = torch.randint(-6, 0, (outputs, inputs // 8), generator=draw)
        sign = torch.randint(0, 2, exponent.shape, generator=draw) * 2 - 1
        weights[layer] = (sign * 2.0**exponent * (2**q - 1)).repeat_interleave(8, dim=1)  # [N, K]
        module.weight.data = weights[layer].T.contiguous()
    stats = quantize_model(model, RTN(), uniform(model, q, 8))
    assert {layer.squared_error for layer in stats} == {0.0}
    for layer, weight in weights.items():
        assert torch.equal(model.get_submodule(layer).packed.dequantize(), weight)
        across = pack(RTN().quantize(weight.T, q, 8)).dequantize().T
        assert not torch.equal(across, weight)


@pytest.mark.parametrize(("name", "field", "context", "expected"), [
    *(("opt", "max_position_embeddings", context, context) for context in (512, 2048)),
    *((name, "max_position_embeddings", 2048, 2048) for name in ("llama-1", "gpt-neo")),
    ("llama-3", "max_position_embeddings", 8192, 2048),
    *(("gpt2", "n_positions", context, 1024) for context in (1024, 2048)),
])  # fmt: skip
def test_window_is_the_context_up_to_the_papers(name, field, context, expected):
    changed = config(name)
    setattr(changed, field, context)
    assert families.evaluation_seqlen(changed) == expected


@pytest.mark.parametrize("forward", [
    lambda self, input_ids, cache=None, use_cache=None: (input_ids, cache, use_cache),
    lambda self, input_ids, past_key_values=None, use_cache=None: (input_ids, past_key_values, use_cache),
], ids=["of today", "of yesterday"])  # fmt: skip
def test_a_cache_goes_to_a_forward_under_the_name_in_its_signature(forward):
    model, cache = type("Model", (nn.Module,), {"forward": forward}), DynamicCache()
    passed = families.forward_with_cache(model(), cache, input_ids="ids")
    assert passed == ("ids", cache, True)


def test_what_no_family_describes_is_refused_with_the_known_ones():
    known = "known: bert, glm, gpt2, gpt_neo, llama, mistral, opt, qwen2, qwen3"
    refused(rf"'bloom': .*{known}; .*docs/architecture\.md", family_of, transformers.BloomConfig())
    sliding = config("qwen2")  # in some blocks only
    sliding.use_sliding_window = True
    refused(r"'qwen2' with \{'use_sliding_window': True\} is not", family_of, sliding)


# One norm feeds attention and feed-forward alike: it carries no scale.
PHI = Family(model_types=("phi",), blocks="model.layers", kept=("lm_head",), inputs=(
    SharedInput("attention", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    SharedInput("attention", ("self_attn.dense",), "self_attn.v_proj"),
    SharedInput("feed_forward", ("mlp.fc1",)),
    SharedInput("feed_forward", ("mlp.fc2",)),  # GELU
))  # fmt: skip


@pytest.fixture
def declared(monkeypatch):
    """`declare`, undone after the test."""
    monkeypatch.setitem(registry._CLASSES, "family", dict(registry.classes("family")))
    return declare


def phi():
    torch.manual_seed(0)
    return randomized(AutoModelForCausalLM.from_config(PhiConfig(**LLAMA)))


def scaled_by_its_norm(*indices):
    """PHI's inputs, some of which say that the norm they share carries their scale."""
    scaled = [dataclasses.replace(x, scaled_by="input_layernorm") for x in PHI.inputs]
    return tuple((scaled if i in indices else PHI.inputs)[i] for i in range(len(scaled)))


def test_a_family_from_outside_the_package_needs_no_more_than_its_declaration(declared):
    refused("no family of models 'phi'", family_of, PhiConfig(**LLAMA))
    declared(PHI)
    model = phi()
    assert families.family_named("phi") is PHI
    assert {name for name, _ in linear_layers(model)} | {"lm_head"} == set(all_linears(model))
    assert misread(model) == []
    expected = model(token_ids()).logits
    quantize_model(model, AWQ(), uniform(model, 8, 16), token_ids(8, 32))
    assert (model(token_ids()).logits - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize(("index", "other"), [(0, "mlp.fc1"), (2, "self_attn.q_proj")])
def test_a_norm_that_feeds_other_layers_too_would_be_noticed(declared, index, other):
    declared(dataclasses.replace(PHI, inputs=scaled_by_its_norm(index)))
    (sentence,) = misread(phi())
    assert sentence.startswith("input_layernorm feeds")
    assert other in sentence


@pytest.mark.parametrize(("change", "message"), [
    ({"task": "translation"}, "task 'translation' is none of causal_lm"),
    ({"inputs": (SharedInput("mixer", ("a",)),)}, "kind 'mixer' is none of attention"),
    ({"inputs": (SharedInput("attention", ("a", "b", "a")),)}, "a is named twice"),
    ({"inputs": scaled_by_its_norm(0, 2)}, "input_layernorm makes the input of two groups"),
])  # fmt: skip
def test_a_declaration_that_contradicts_itself_is_refused(change, message):
    with pytest.raises(ValueError, match=f"family phi: {message}"):
        dataclasses.replace(PHI, **change)


def test_a_model_type_has_one_family(declared):
    with pytest.raises(ValueError, match="family 'llama' is registered twice"):
        declared(dataclasses.replace(PHI, model_types=("llama",)))
