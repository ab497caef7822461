"""The C step against transformers on the dequantized model: logits to the rounding of float32, and greedy tokens."""

import ctypes
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.base.refusals import refused
from tests.generate.rows import check, prompts
from tests.models.architectures import CAUSAL, CONFIGS, make, randomized, token_ids
from transformers import GlmConfig, LlamaConfig, LlamaForCausalLM
from transformers.pytorch_utils import Conv1D

import lutlab
from lutlab.generate import engine
from lutlab.generate.cpu import CpuStep
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.cpu import step
from lutlab.models.families import linear_layers, model_class, weight_of
from lutlab.modules import QuantLinear

ROUNDED = 3e-6  # of the norm of a row's logits
WIDTHS = {
    "rtn": {"q": 4, "g": 16}, "bcq": {"q": 3, "g": 16}, "mixed_2_4_16": {"q": 2.5, "g": 16},
    "gptq_bcq": {"q": 2, "g": 16, "alpha_bits": 4}, "gptq": {"q": 4, "g": 16, "scale_bits": 4},
}  # fmt: skip


def quantized(name, method, **more):
    """A model, and the same with its weights dequantized: plain layers of transformers."""
    model, dense = make(name), make(name)
    if method in WIDTHS:
        lutlab.quantize(model, method, **WIDTHS[method], **more)
    with torch.no_grad():
        for (_, layer), (_, plain) in zip(linear_layers(model), linear_layers(dense), strict=True):
            quantized = isinstance(layer, QuantLinear)
            weight = layer.packed.dequantize() if quantized else weight_of(layer)
            plain.weight.copy_(weight.T if isinstance(plain, Conv1D) else weight)
    return model, dense


def error(logits, expected):
    return ((logits - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()


def rounded(logits, expected, tolerance=ROUNDED):
    assert error(logits, expected) <= tolerance


@pytest.mark.parametrize(
    ("name", "method", "more"),
    [
        *((name, method, {}) for name in CAUSAL for method in ("rtn", "bcq")),
        ("opt-350m", "none", {}),
        ("gpt2", "none", {}),
        ("llama-2", "mixed_2_4_16", {"calibration": token_ids(8, 32)}),
        ("llama-2", "gptq_bcq", {"calibration": token_ids(8, 32)}),
        ("llama-2", "rtn", {"skip": ["*.k_proj", "*.up_proj"]}),  # launches that are not one
        ("qwen3", "rtn", {"layers": {"*.v_proj": (4, 8)}}),
    ],
)
def test_every_family_gives_the_dequantized_models_logits(name, method, more):
    model, dense = quantized(name, method, **more)
    check(CpuStep(model, 2, 32), dense, prompts(13, 5), 12, rounded)


def test_a_prompt_in_chunks_is_read_as_a_whole():
    model, dense = quantized("mistral", "bcq")
    # 144 tokens in chunks of 64: chunks begin inside of rows
    check(CpuStep(model, 3, 64), dense, prompts(64, 30, 50), 0, rounded)


def test_threads_change_no_bit_and_half_a_cache_little():
    model, _ = quantized("llama-2", "rtn")
    alone, pair = (CpuStep(model, 2, 32, threads=threads) for threads in (1, 2))
    pair._c.thread_bytes = 64  # so little that every part of a step gets two
    assert (alone.facts()["threads"], pair.facts()["threads"]) == (1, 2)
    expected = alone.prefill(prompts(13, 5))
    assert torch.equal(pair.prefill(prompts(13, 5)), expected)
    ids = expected.argmax(-1)
    assert torch.equal(pair.step(ids), alone.step(ids))
    for cache, tolerance in (("float16", 2e-3), ("bfloat16", 2e-2)):
        half = CpuStep(model, 2, 32, cache)
        assert half.facts()["cache"] == cache
        assert half.facts()["cache_bytes"] * 2 == alone.facts()["cache_bytes"]
        assert ROUNDED < error(half.prefill(prompts(13, 5)), expected) <= tolerance


def test_layers_of_one_input_are_one_launch_and_nothing_is_copied():
    model, _ = quantized("llama-1", "rtn")
    launches = CpuStep(model, 1, 8)._held.placed.values()
    assert sorted(map(len, launches)) == sorted([3, 1, 2, 1] * 2 + [1])
    parts = (part.weight for launch in launches for part in launch)
    rows = [weight.rows for weight in parts if not isinstance(weight, torch.Tensor)]
    layers = [layer.ready(1, torch.float32).rows for _, layer in linear_layers(model)]
    assert {x.stream.data_ptr() for x in rows} == {x.stream.data_ptr() for x in layers}


@pytest.mark.parametrize(
    ("dtype", "smallest"), [("float32", 0.1), ("bfloat16", 2.0**-40), ("float16", 2.0**-24)]
)
def test_dense_weights_are_read_in_the_narrowest_exact_dtype(dtype, smallest):
    model = make("opt")
    with torch.no_grad():
        head = model.lm_head.weight
        head.copy_(head.to(torch.bfloat16))
        head[0, 0] = smallest
    own = CpuStep(model, 1, 8)
    assert own.facts()["head"] == dtype
    check(own, model, prompts(4), 1, rounded)


def test_a_model_of_16_bits_is_read_where_it_lies():
    model = make("qwen2").to(torch.bfloat16)
    own = CpuStep(model, 1, 8)
    assert (own.facts()["head"], own.facts()["cache"]) == ("bfloat16", "bfloat16")
    assert own._held.head.weight.data_ptr() == model.lm_head.weight.data_ptr()
    check(own, model, prompts(6), 0, partial(rounded, tolerance=2e-2))


@given(
    heads=st.sampled_from([(1, 1), (3, 1), (6, 3), (4, 4), (5, 5)]),
    size=st.sampled_from([2, 6, 8, 20, 32, 66]),
    width=st.sampled_from([2, 4, 13]),  # a norm of one number is its sign, which rounding turns
    inner=st.sampled_from([8, 33, 72]),
    neighbours=st.booleans(),
    cache=st.sampled_from(["float32", "float16"]),
    length=st.integers(1, 40),
)
@settings(max_examples=12)
def test_any_sizes(heads, size, width, inner, neighbours, cache, length):
    torch.manual_seed(0)
    kind = GlmConfig if neighbours else LlamaConfig
    config = kind(
        vocab_size=37, hidden_size=heads[0] * width, intermediate_size=inner, num_hidden_layers=1, head_dim=size,
        num_attention_heads=heads[0], num_key_value_heads=heads[1], max_position_embeddings=64,
        pad_token_id=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = randomized(model_class(config).from_config(config))
    ids = torch.randint(37, (2, 48))
    texts = [ids[0, :length], ids[1, : max(1, length // 2)]]
    within = partial(rounded, tolerance=ROUNDED if cache == "float32" else 1e-2)
    check(CpuStep(model, 2, 48, cache), model, texts, 3, within)


def test_products_that_overflow_are_what_the_modules_give_and_an_error_on_the_way_is_raised(
    monkeypatch,
):
    model = make("opt")
    block = model.model.decoder.layers[0]
    with torch.no_grad():  # fc1 sums codes times 6e37, which a float32 holds only once it is scaled
        block.final_layer_norm.weight.mul_(6e37)
        block.fc1.weight.mul_(1e-8)
        block.fc2.weight.mul_(1e-30)
    lutlab.quantize(model, "rtn", q=4, g=16)
    own = CpuStep(model, 1, 24)
    for length in (1, 16):
        check(own, model, prompts(length), 3, rounded)
    assert any("dequantize for rows that overflow" in name for name in own.facts()["kernel"])
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight[5, 3] = torch.nan
    assert own.prefill([torch.tensor([4, 5])]).isnan().all()
    assert own.prefill([torch.tensor([4, 6])]).isnan().nonzero().tolist() == [[0, 5]]  # tied head
    monkeypatch.setattr("lutlab.generate.cpu_model.mend", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        own.prefill([torch.tensor([4, 5])])


def test_what_it_does_not_take_is_named():
    assert engine(make("opt")).facts()["engine"] == "cpu_step"
    model = make("llama-2")
    model.config.hidden_act = "mish"
    assert "activation mish" in CpuStep.obstacle(model, "")
    assert "float64" in CpuStep.obstacle(make("opt").double(), "")
    config = CONFIGS["llama-1"]()
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 32}
    config.rope_parameters = config.rope_parameters | dynamic
    message = "change once a text is longer than 32"
    refused(message, CpuStep, LlamaForCausalLM(config), 1, 8)
    model = make("opt")
    with torch.no_grad():
        model.model.decoder.layers[0].self_attn.v_proj.bias.fill_(1e6)
    message = "larger than cache=float16 can hold"
    refused(message, CpuStep(model, 1, 8, "float16").prefill, prompts(2))


def test_a_step_taken_apart_and_its_bytes():
    model, _ = quantized("mistral", "rtn")
    own = CpuStep(model, 1, 16)
    seconds = own.breakdown(12)
    assert set(seconds) == {"matmul", "attention", "other"}
    assert min(seconds.values()) > 0
    assert not ctypes.cast(own._c.seconds, ctypes.c_void_p).value
    layers = [layer.ready(1, torch.float32) for _, layer in linear_layers(model)]
    assert own.bytes_read(12) == {
        # Layers, keys and values, heads, a window of 8 tokens, heads of 8 in whole vectors: of 16 with AVX-512.
        "cache": 2 * 2 * 2 * 8 * max(8, step.lanes(detect())) * 4,
        "head": model.lm_head.weight.nbytes,
        "weights": sum(layer.bytes_read(1, torch.float32) for layer in layers),
    }
    refused("context=16", own.breakdown, 16)
