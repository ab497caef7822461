"""Models drawn as they are stored: every family and method, the same numbers from a seed, in their packed size."""

import math
import sys

import pytest
import torch
from tests import warm
from tests.command_line import ROOT
from tests.models.architectures import CONFIGS, token_ids
from tests.quantizers.weights import assert_same
from tests.quantizers.weights import drawn as random
from transformers import LlamaConfig

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelRun, ModelSpec
from lutlab.compress.drawn import Bits, drawn
from lutlab.compress.sizes import empty, stored_bits
from lutlab.compress.synthetic import load_packed, synthetic
from lutlab.formats.dense import PackedDense
from lutlab.models.families import linear_layers, weight_of
from lutlab.models.fits import TooLargeError
from lutlab.modules import QuantLinear
from lutlab.quantizers.contract import make_method

# every format, each of its optional buffers and paddings
CASES = (
    ("rtn", 3, 16, {}), ("awq", 8, -1, {"scale_dtype": "fp32"}), ("gptq", 1, 8, {"act_order": True}),
    ("bcq", 3, 16, {}), ("bcq", 2, -1, {"offset": True, "alpha_dtype": "fp32"}), ("gptq_bcq", 4, 8, {}),
    ("hessian_bcq", 3, 16, {"alpha_bits": 5}), ("gptq", 3, 16, {"scale_bits": 5, "act_order": True}),
    ("mixed_2_4_16", 2.5, 16, {"outliers": 0.005}),  # memory-aligned blocks
    ("mixed_2_4_16", 2.2, 8, {"outliers": 0.05, "wide_scale": "group"}),  # streams
    ("group_widths", 2.8, 8, {}), ("none", 16, -1, {}),
)  # fmt: skip
DEVIATION = 0.02


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_computes(name):
    method, q, g, options = CASES[list(CONFIGS).index(name) % len(CASES)]
    model = synthetic(CONFIGS[name](), method, q, g, **options)
    with torch.no_grad():
        logits = model(token_ids())[0]
    assert torch.isfinite(logits).all()
    assert 0.001 < logits.std() < 2
    kinds = {isinstance(layer, QuantLinear) for _, layer in linear_layers(model)}
    assert kinds == {method != "none"}
    assert not any(p.is_meta or p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(("method", "q", "g", "options"), CASES)
def test_a_weight_is_one_of_its_format_and_has_the_deviation(method, q, g, options):
    """Packed again it is the same to the last bit, padding included, and as large as the method's own."""
    made = make_method(method, **options)
    layout = empty(made, q, g, 90, 200)  # no multiple of a word, a group, a block
    packed = drawn(layout, DEVIATION, Bits(0, "layer"))
    assert packed.layout() == layout.layout()
    assert packed.bits_stored == stored_bits(made, q, g, 90, 200)
    assert_same(type(packed).pack(packed.unpack()).buffers, packed.buffers)
    weight = packed.dequantize()
    outliers = math.sqrt(1 + 12 * options.get("outliers", 0))
    assert weight.square().mean().sqrt() == pytest.approx(DEVIATION * outliers, rel=0.1)
    assert abs(weight.mean()) < DEVIATION / 10
    if isinstance(packed, PackedDense):
        return
    layer, x = QuantLinear(packed, None), random(2, 200)
    torch.testing.assert_close(layer(x), x @ weight.T, rtol=1e-4, atol=1e-4)
    for key, buffer in layer.state_dict().items():  # recovered from the kernel's own layout
        assert torch.equal(buffer, packed.buffers[key]), key


def test_numbers_follow_from_the_seed_and_the_name_alone():
    config = CONFIGS["llama-2"]()
    first, threads = synthetic(config, "bcq", 3, 16).state_dict(), torch.get_num_threads()
    torch.manual_seed(1)
    torch.set_num_threads(2)
    try:
        assert_same(synthetic(config, "bcq", 3, 16).state_dict(), first)
    finally:
        torch.set_num_threads(threads)
    other = synthetic(config, "bcq", 3, 16, seed=1).state_dict()
    assert not all(map(torch.equal, other.values(), first.values()))
    cut = synthetic(config, "bcq", 3, 16, layers=1).state_dict()
    assert_same(cut, {name: first[name] for name in cut})
    assert config.num_hidden_layers == 2  # the caller's own is left alone
    names = [Bits(0, name).integers(torch.int64, 4).tolist() for name in ("a", "b")]
    assert names[0] != names[1]


def test_a_weight_that_was_drawn_before_is_the_same_for_ever():
    """By numpy's word, SFC64 keeps its stream; records of speeds and their checks rest on it."""
    numbers = Bits(0, "model.layers.0.mlp.up_proj").integers(torch.int16, 4).tolist()
    assert numbers == [-3823, 4892, -10994, -12968]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_head_and_embeddings_are_what_float16_holds(dtype):
    model = synthetic(CONFIGS["llama-1"](), "rtn", 4, 16, dtype=dtype, skip=["*.1.*"])
    head = model.lm_head.weight
    assert head.dtype == model.model.embed_tokens.weight.dtype == getattr(torch, dtype)
    assert head.float().std() == pytest.approx(DEVIATION, rel=0.05)
    if dtype == "float32":
        kept = weight_of(model.get_submodule("model.layers.1.mlp.up_proj"))
        assert all(torch.equal(w, w.half().float()) for w in (head, kept))


def test_it_is_saved_and_loaded_again(tmp_path):
    model = synthetic("opt-embedded-s", "bcq", 2, 32, layers=1)
    lutlab.save(model, tmp_path)
    assert_same(lutlab.load(tmp_path).state_dict(), model.state_dict())


def test_sizes_are_those_of_a_quantized_model():
    model = ModelSpec("s", "synthetic", "opt-embedded-s", layers=1, packed=True)
    loaded, layers = load_packed(ModelRun(model, "rtn", 3, 32, skip=("*.fc2",)))
    assert loaded.tokenizer is not None
    for layer in layers:
        rows, columns = layer.out_features, layer.in_features
        expected = (3, 32, "uniform", stored_bits(make_method("rtn"), 3, 32, rows, columns))
        if layer.name.endswith("fc2"):
            expected = (16, -1, "dense", 16 * rows * columns)
        assert (layer.q, layer.g, layer.format, layer.bits_stored) == expected
        assert math.isnan(layer.squared_error)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"config": "opt-174b"}, "no model in folder"), ({"config": 7}, "a config of transformers, a model's name"),
    ({"method": "stored"}, "name another method"), ({"q": 9}, "q=9"),
    ({"dtype": "int8"}, "give auto, or one of float32"), ({"layers": 99}, r"model\.layers=99 of a model of"),
    ({"outliers": 0.1}, "outliers"),
])  # fmt: skip
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(LutlabError, match=message):
        synthetic(**{"config": "opt-embedded-s", "method": "bcq", "layers": 1} | arguments)


def test_a_model_that_does_not_fit_is_refused_before_anything_is_drawn(monkeypatch):
    monkeypatch.setattr("lutlab.models.fits.available", lambda device: 24 * 10**9)
    monkeypatch.setattr("lutlab.compress.synthetic.drawn", None)
    message = r"needs 77.2 GB \(weights 73.4, embeddings 2.6, scratch 1.2\), and cpu has 24.0"
    with pytest.raises(TooLargeError, match=message):
        synthetic("opt-175b", "bcq", 3, 128)


# ---- memory ----

MEASURE = """
import sys
from argparse import Namespace
sys.path.insert(0, "benchmarks")
from bench_synthetic_memory import measure
for folder in sys.argv[1:]:  # the first loads the kernel
    sizes = measure(Namespace(model=folder, method="bcq", q=3, g=128, layers=None, cache=0))
print(sizes["growth_over_held"], sizes["weights_gb"] + sizes["others_gb"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_is_made_in_the_memory_that_it_runs_in(tmp_path):
    """Within 1.35; of LLaMA-7B, where a layer's temporaries weigh less, 1.1 (benchmarks/bench_synthetic_memory.py)."""
    for name, width, inner, layers, words in (
        ("small", 64, 64, 1, 8),
        ("large", 1024, 2816, 12, 4000),
    ):
        sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
        config = LlamaConfig(**sizes, num_attention_heads=8, vocab_size=words)
        config.save_pretrained(tmp_path / name)
    done = warm.run(MEASURE, tmp_path / "small", tmp_path / "large", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    growth, held_gb = map(float, done.stdout.split()[-2:])
    assert held_gb > 0.08
    assert growth < 1.35
