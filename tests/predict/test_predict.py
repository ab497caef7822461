"""Predictions: bytes, bandwidth and cache move them the right way, and OPT-175B's sizes are those of arithmetic."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.base.refusals import refused

from lutlab import predict
from lutlab.base.specs import ModelSpec
from lutlab.models.shape import linear_shapes, shape_of
from lutlab.quantizers.contract import make_method

A100 = predict.device("A100-80GB")
SHAPES = st.sampled_from(["opt-6.7b", "opt-30b", "opt-175b", "llama-7b", "llama-65b"])
WIDTHS = st.tuples(st.integers(1, 8), st.sampled_from([32, 64, 128, -1]))


@given(SHAPES, WIDTHS, st.sampled_from([1, 2, 4, 8]), st.sampled_from(["lut-gemm", "lutlab"]))
def test_latency_rises_with_bytes_and_falls_with_bandwidth(shape, width, gpus, engine):
    def milliseconds(q, g, **more):
        return predict.latency(shape, q, g, gpus=gpus, engine=engine, stored=predict.PAPER, **more)

    q, g = width
    own = milliseconds(q, g)
    assert own.ms_per_token == pytest.approx(sum(own.parts.values()))
    faster = dataclasses.replace(A100, bandwidth=1.5 * A100.bandwidth)
    assert milliseconds(q, g, gpu=faster).ms_per_token < own.ms_per_token
    assert milliseconds(q, g, context=2048).ms_per_token > own.ms_per_token
    if q < 8:
        assert milliseconds(q + 1, g).ms_per_token > own.ms_per_token
    if g == 64:
        assert milliseconds(q, 32).ms_per_token > own.ms_per_token
    # the memory's peak is a bound that no prediction goes below
    assert own.parts["weights"] > 1e3 * own.memory.parts["weights"] / gpus / A100.bandwidth


@given(SHAPES, WIDTHS, st.integers(0, 2047), st.integers(1, 31))
def test_memory_rises_with_context_and_batch(shape, width, context, batch):
    less, more, most = (
        predict.memory(shape, *width, context=context + longer, batch=batch + wider).total
        for longer, wider in ((0, 0), (1, 0), (1, 1))
    )
    assert less < more < most
    assert predict.memory(shape, *width, gpus=4).each == predict.memory(shape, *width).total / 4


@pytest.mark.parametrize(
    ("g", "paper", "bcq"),
    [  # GB with a cache of 2048 tokens, q = 1 to 4: one scale and offset a group, and BCQ with its q scales
        (-1, (34.0, 55.8, 77.5, 99.3), (34.0, 55.8, 77.5, 99.3)),
        (128, (39.4, 61.1, 82.9, 104.6), (39.4, 63.8, 88.3, 112.7)),
        (64, (44.8, None, None, 110.1), (44.8, 72.0, 99.2, 126.3)),
        (32, (55.7, None, None, 120.9), (55.7, 88.3, 120.9, 153.5)),
    ],
)
def test_opt_175b_takes_what_arithmetic_says(g, paper, bcq):
    with_offset = make_method("bcq", offset=True)
    for q, (one_scale, several) in enumerate(zip(paper, bcq, strict=True), 1):
        total = predict.memory("opt-175b", q, g).total / 1e9
        assert one_scale is None or total == pytest.approx(one_scale, abs=0.2)
        total = predict.memory("opt-175b", q, g, stored=with_offset).total / 1e9
        assert total == pytest.approx(several, abs=0.2)


def test_the_papers_ooms_and_numbers_of_gpus_and_errors_where_they_were_compared():
    """LUT-GEMM v3 Table 5: FP16 needs 8 GPUs, 4 bits two, 3 bits one."""
    assert [predict.gpus("opt-175b", *q) for q in ((), (4,), (3,))] == [8, 2, 1]
    assert predict.gpus("opt-175b", 4, gpu="H200") == 1
    assert not predict.latency("opt-66b").fits
    assert predict.latency("opt-66b", gpus=2).fits
    assert predict.gpus("llama-65b", batch=4096) is None  # no number of its 64 heads' GPUs
    assert predict.latency("opt-30b").errors
    assert predict.latency("opt-30b", gpu="H200").errors is None
    assert predict.latency("opt-30b", 3, 128, gpu="H200", engine="lutlab").errors is None


def test_a_cpu_is_as_fast_as_its_measured_bandwidth():
    """LLaMA-7B at 4 bits: 3.4 GB of weights at a share of the bandwidth, and 32 layers besides."""
    here = {"gpu": predict.cpu(bandwidth=25e9, memory=32e9), "engine": "lutlab-cpu"}
    own = predict.latency("llama-7b", 4, 128, **here)
    bandwidth = predict.ENGINES["lutlab-cpu"].rates.packed * 25e9
    assert own.parts["weights"] == pytest.approx(1e3 * own.memory.parts["weights"] / bandwidth)
    assert own.memory.parts["head"] == 2 * 32000 * 4096  # of 16 bits
    assert own.errors is None
    refused("no link", predict.latency, "llama-7b", gpus=2, **here)


@pytest.mark.parametrize(("name", "billions", "layers", "hidden"), [
    # nuQmm Table I
    ("gpt-3-175b", 175.0, 96, 12288), ("mt-nlg-530b", 530.0, 105, 20480),
    # as their authors count them
    ("gpt-j-6b", 6.053, 28, 4096),
    ("llama-3-8b", 8.03, 32, 4096), ("mistral-7b", 7.24, 32, 4096), ("qwen2.5-7b", 7.62, 28, 3584),
])  # fmt: skip
def test_shapes_have_the_weights_that_papers_print(name, billions, layers, hidden):
    own = predict.decoder(name)
    assert (own.layers, own.hidden) == (layers, hidden)
    total = own.weights + own.head + own.embedded
    assert total == pytest.approx(1e9 * billions, rel=3e-3)


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 64}


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "opt", **SIZES, "ffn_dim": 48, "num_attention_heads": 2, "word_embed_proj_dim": 32},
        {"model_type": "qwen3", **SIZES, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 16, "tie_word_embeddings": True},
        {"model_type": "llama", **SIZES, "intermediate_size": 48, "num_attention_heads": 4},
        {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
    ],
    ids=lambda config: config["model_type"],
)  # fmt: skip
def test_sizes_are_those_of_the_model_that_transformers_builds(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 260}))
    spec = ModelSpec("tiny", "synthetic", str(tmp_path))
    own, shape = predict.decoder(str(tmp_path)), shape_of(spec)
    assert own.weights == shape.linear_parameters
    assert (own.layers, own.hidden) == (shape.layers, shape.hidden)
    assert own.vocabulary == shape.vocabulary
    keys = [rows for name, (rows, _) in linear_shapes(spec).items() if name.endswith("k_proj")]
    if keys:
        assert own.layers * own.cached == 2 * sum(keys)
    rest = shape.parameters - own.weights - own.head - own.embedded
    assert 0 < rest < 60 * own.hidden  # norms and biases


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu": "A100-80"}, "did you mean 'A100-80GB'?.*known: .*H200"),
        ({"engine": "lutgem"}, "did you mean 'lut-gemm'?"),
        ({"gpus": 0}, "gpus=0: give a whole number of at least 1"),
        ({"gpus": 57}, "56 heads"),
        ({"batch": 0}, "batch=0"),
        ({"batch": 2}, "at most 1 row"),
        ({"context": -1}, "context=-1"),
        ({"context": 2049}, "at most 2048 positions"),
        ({"q": 9}, "q=9"),
        ({"q": True}, "q=True"),
        ({"q": float("nan")}, "q=nan"),
        ({"q": 3, "g": 4}, "g=4 is not a group size"),
        ({"shape": "opt-31b"}, "did you mean 'opt-30b'?"),
        ({"q": 3, "stored": "rnt"}, "did you mean 'rtn'?"),
    ],
)
def test_mistakes_say_what_to_do(options, message):
    refused(message, predict.latency, **({"shape": "opt-30b"} | options))


def test_damaged_configs_are_named(tmp_path):
    for text in ("{", '{"model_type": "bert"}', '{"model_type": "opt", "hidden_size": "x"}', "[1]"):
        predict.decoder.cache_clear()
        (tmp_path / "config.json").write_text(text)
        refused(r"config\.json", predict.decoder, str(tmp_path))
