"""The C step against transformers on the dequantized model: logits to the rounding of float32, and greedy tokens."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.architectures import CAUSAL, CONFIGS, make, randomized, token_ids
from transformers import GlmConfig, LlamaConfig, LlamaForCausalLM
from transformers.pytorch_utils import Conv1D

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.generate import engine
from lutlab.generate.cpu import CpuStep
from lutlab.generate.eager import Eager
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.cpu import step
from lutlab.models.families import linear_layers, model_class, weight_of
from lutlab.modules import QuantLinear

ROUNDED = 3e-6  # of the norm of a row's logits
METHODS = {
    "none": {},
    "rtn": {"q": 4, "g": 16},
    "bcq": {"q": 3, "g": 16},
    "mixed_2_4_16": {"q": 2.5, "g": 16},
}


def quantized(name: str, method: str, **more):
    """A model, and the same with its weights dequantized: plain layers of transformers."""
    model, dense = make(name), make(name)
    if method != "none":
        lutlab.quantize(model, method, **METHODS[method], **more)
    with torch.no_grad():
        for (_, layer), (_, plain) in zip(linear_layers(model), linear_layers(dense), strict=True):
            quant = isinstance(layer, QuantLinear)
            weight = layer.packed.dequantize() if quant else weight_of(layer)
            plain.weight.copy_(weight.T if isinstance(plain, Conv1D) else weight)
    return model, dense


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()


def check(own: CpuStep, other: Eager, prompts, steps: int, tolerance: float = ROUNDED) -> None:
    """Greedy tokens of both, and logits on the way."""
    found, expected = own.prefill(prompts), other.prefill(prompts)
    for _ in range(steps):
        assert error(found, expected) <= tolerance
        chosen = expected.argmax(-1)
        assert torch.equal(found.argmax(-1), chosen)
        found, expected = own.step(chosen), other.step(chosen)
    assert error(found, expected) <= tolerance
    assert own.positions == other.positions


@pytest.mark.parametrize("method", ["rtn", "bcq"])
@pytest.mark.parametrize("name", CAUSAL)
def test_every_family_gives_the_dequantized_models_logits(name, method):
    model, dense = quantized(name, method)
    prompts = [token_ids(length=13)[0], token_ids(length=5)[1]]
    check(CpuStep(model, 2, 32), Eager(dense, 2, 32, ""), prompts, 12)


@pytest.mark.parametrize(
    ("name", "method", "more"),
    [
        ("opt-350m", "none", {}),
        ("gpt2", "none", {}),
        ("llama-2", "mixed_2_4_16", {"calibration": token_ids(8, 32)}),
        ("llama-2", "rtn", {"skip": ["*.k_proj", "*.up_proj"]}),  # launches that are not one
        ("qwen3", "rtn", {"layers": {"*.v_proj": (4, 8)}}),
    ],
)
def test_dense_mixed_and_partly_quantized_models(name, method, more):
    model, dense = quantized(name, method, **more)
    check(CpuStep(model, 1, 24), Eager(dense, 1, 24, ""), [token_ids()[0]], 4)


def test_a_prompt_in_chunks_is_its_tokens_one_by_one():
    model, _ = quantized("mistral", "bcq")
    own, prompt = CpuStep(model, 3, 64), token_ids(3, 64)
    lengths = (64, 30, 50)  # 144 tokens in chunks of 64: chunks begin inside of rows
    whole = own.prefill([row[:length] for row, length in zip(prompt, lengths, strict=True)])
    assert own.positions == [64, 30, 50]
    own.prefill([row[:10] for row in prompt])
    for at in range(10, 64):
        logits = own.step(prompt[:, at])
        for row, length in enumerate(lengths):
            if at == length - 1:
                assert error(logits[row], whole[row]) <= ROUNDED


def test_rewound_and_filled_caches():
    model, _ = quantized("gpt-neo", "rtn")
    own, ids = CpuStep(model, 2, 16), token_ids(2, 16)
    own.prefill(list(ids[:, :8]))
    first = [own.step(ids[:, at]) for at in range(8, 16)]
    with pytest.raises(LutlabError, match="the cache is full"):
        own.step(ids[:, 0])
    own.rewind(12)
    assert all(torch.equal(own.step(ids[:, at]), first[at - 8]) for at in range(12, 16))


def test_threads_change_no_bit_and_half_a_cache_little():
    model, _ = quantized("llama-2", "rtn")
    prompts = [token_ids(length=13)[0], token_ids(length=5)[1]]
    alone, pair = (CpuStep(model, 2, 32, threads=threads) for threads in (1, 2))
    pair._c.thread_bytes = 64  # so little that every part of a step gets two
    assert (alone.facts()["threads"], pair.facts()["threads"]) == (1, 2)
    expected = alone.prefill(prompts)
    assert torch.equal(pair.prefill(prompts), expected)
    ids = expected.argmax(-1)
    assert torch.equal(pair.step(ids), alone.step(ids))
    for cache, tolerance in (("float16", 2e-3), ("bfloat16", 2e-2)):
        half = CpuStep(model, 2, 32, cache)
        assert half.facts()["cache"] == cache
        assert half.facts()["cache_bytes"] * 2 == alone.facts()["cache_bytes"]
        assert ROUNDED < error(half.prefill(prompts), expected) <= tolerance


def test_layers_of_one_input_are_one_launch_and_nothing_is_copied():
    model, _ = quantized("llama-1", "rtn")
    own = CpuStep(model, 1, 8)
    launches = [len(launch) for launch in own._held.placed.values()]
    assert sorted(launches) == sorted([3, 1, 2, 1] * 2 + [1])
    streams = {
        part.weight.rows.stream.data_ptr()
        for many in own._held.placed.values()
        for part in many
        if not isinstance(part.weight, torch.Tensor)
    }
    assert streams == {
        layer.ready(1, torch.float32).rows.stream.data_ptr() for _, layer in linear_layers(model)
    }


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
    check(own, Eager(model, 1, 8, ""), [token_ids(length=4)[0]], 1)


def test_a_model_of_16_bits_is_read_where_it_lies():
    model = make("qwen2").to(torch.bfloat16)
    own = CpuStep(model, 1, 8)
    assert (own.facts()["head"], own.facts()["cache"]) == ("bfloat16", "bfloat16")
    assert own._held.head.weight.data_ptr() == model.lm_head.weight.data_ptr()
    prompts = [token_ids(length=6)[0]]
    assert error(own.prefill(prompts), Eager(model, 1, 8, "").prefill(prompts)) <= 2e-2


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
    own, other = CpuStep(model, 2, 48, cache), Eager(model, 2, 48, "")
    ids = torch.randint(37, (2, 48))
    prompts = [ids[0, :length], ids[1, : max(1, length // 2)]]
    tolerance = ROUNDED if cache == "float32" else 1e-2
    assert error(own.prefill(prompts), other.prefill(prompts)) <= tolerance
    for at in range(3):
        assert error(own.step(ids[:, at]), other.step(ids[:, at])) <= tolerance


def test_products_that_overflow_are_what_the_modules_give():
    model = make("opt")
    block = model.model.decoder.layers[0]
    with torch.no_grad():  # fc1 sums codes times 6e37, which a float32 holds only once it is scaled
        block.final_layer_norm.weight.mul_(6e37)
        block.fc1.weight.mul_(1e-8)
        block.fc2.weight.mul_(1e-30)
    lutlab.quantize(model, "rtn", q=4, g=16)
    own, prompts = CpuStep(model, 1, 24), [token_ids()[0]]
    check(own, Eager(model, 1, 24, ""), prompts, 3)
    assert any("dequantize for rows that overflow" in name for name in own.facts()["kernel"])
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight[5, 3] = torch.nan
    found = own.prefill([torch.tensor([4, 5])])
    assert found.isnan().all()
    assert own.prefill([torch.tensor([4, 6])]).isnan().nonzero().tolist() == [[0, 5]]  # tied head


def test_an_error_on_the_way_back_is_raised(monkeypatch):
    model, _ = quantized("opt", "rtn")
    own = CpuStep(model, 1, 8)
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight.fill_(torch.nan)
    monkeypatch.setattr("lutlab.generate.cpu_model.mend", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        own.prefill([token_ids(length=2)[0]])


def test_what_it_does_not_take_is_named():
    assert engine(make("opt")).facts()["engine"] == "cpu_step"
    model = make("llama-2")
    model.config.hidden_act = "mish"
    assert "activation mish" in CpuStep.obstacle(model, "")
    assert "float64" in CpuStep.obstacle(make("opt").double(), "")
    config = CONFIGS["llama-1"]()
    config.rope_parameters = config.rope_parameters | {
        "rope_type": "dynamic",
        "factor": 2.0,
        "original_max_position_embeddings": 32,
    }
    with pytest.raises(LutlabError, match="change once a text is longer than 32"):
        CpuStep(LlamaForCausalLM(config), 1, 8)
    model = make("opt")
    with torch.no_grad():
        model.model.decoder.layers[0].self_attn.v_proj.bias.fill_(1e6)
    with pytest.raises(LutlabError, match="larger than cache=float16 can hold"):
        CpuStep(model, 1, 8, "float16").prefill([token_ids(length=2)[0]])


def test_a_step_taken_apart_and_its_bytes():
    model, _ = quantized("mistral", "rtn")
    own = CpuStep(model, 1, 16)
    seconds = own.breakdown(12)
    assert set(seconds) == {"matmul", "attention", "other"}
    assert all(part > 0 for part in seconds.values())
    assert not ctypes.cast(own._c.seconds, ctypes.c_void_p).value
    read = own.bytes_read(12)
    # Layers, keys and values, heads, a window of 8 tokens, heads of 8 in whole vectors: of 16 with AVX-512.
    assert read["cache"] == 2 * 2 * 2 * 8 * max(8, step.lanes(detect())) * 4
    assert read["head"] == model.lm_head.weight.nbytes
    streams = [
        layer.ready(1, torch.float32).bytes_read(1, torch.float32)
        for _, layer in linear_layers(model)
    ]
    assert read["weights"] == sum(streams)
    with pytest.raises(LutlabError, match="context=16"):
        own.breakdown(16)
