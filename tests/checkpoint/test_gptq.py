"""The GPTQ layout, read by an independent decoder, and by transformers where GPTQModel is installed."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file
from tests.models.architectures import make, randomized, token_ids
from tests.tiny_models import byte_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.checkpoint.foreign.gptq import export_gptq
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.formats import pack
from lutlab.models.families import linear_layers
from lutlab.modules import QuantLinear

CONFIG = LlamaConfig(
    vocab_size=260, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=64,
)  # fmt: skip


def plain():
    """A LLaMA whose sizes fill whole words at every q; k_proj and v_proj are smaller than q_proj."""
    torch.manual_seed(0)
    return randomized(LlamaForCausalLM(CONFIG))


def model(q=4, g=16):
    return lutlab.quantize(plain(), method="rtn", q=q, g=g)


def reorder(model):
    """As act_order leaves it: columns of the planes are channels in another order."""
    for name, layer in quantized_layers(model).items():
        order = torch.randperm(layer.in_features, generator=torch.Generator().manual_seed(1)).int()
        packed = dataclasses.replace(layer.packed, order=order)
        model.set_submodule(name, QuantLinear(packed, layer.bias))
    return model


def stream(words, q, count):
    """Values of q bits out of the words of one stream, as Python's integers."""
    number = sum((word % 2**32) << (32 * i) for i, word in enumerate(words))
    return [(number >> (i * q)) % 2**q for i in range(count)]


def decoded(tensors, name, q):
    """W [N, K] float32 from the four buffers, by the formula at the top of checkpoint/foreign/gptq.py."""
    qweight, qzeros, scales, g_idx = (
        tensors[f"{name}.{key}"] for key in ("qweight", "qzeros", "scales", "g_idx")
    )
    columns, rows = len(g_idx), scales.shape[1]
    codes = torch.tensor([stream(column, q, columns) for column in qweight.T.tolist()])
    zeros = torch.tensor([stream(row, q, rows) for row in qzeros.tolist()])
    group = g_idx.long()
    return scales.float()[group].T * (codes - zeros[group].T)


@pytest.mark.parametrize(("q", "g"), [(2, 16), (3, 8), (4, -1), (8, 40)])
@pytest.mark.parametrize("act_order", [False, True])
def test_an_independent_decoder_reads_the_same_weights(q, g, act_order, tmp_path):
    ours = reorder(model(q, g)) if act_order else model(q, g)
    before = ours.config.quantization_config
    export_gptq(ours, tmp_path / "out", byte_tokenizer())
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    for name, layer in quantized_layers(ours).items():
        assert torch.equal(decoded(tensors, name, q), layer.packed.dequantize()), name
    others = {
        key for key in ours.state_dict() if not key.endswith(("qweight", "scale", "qzero", "order"))
    }
    assert others <= tensors.keys()
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["checkpoint_format"] == "gptq_v2"
    assert (config["bits"], config["group_size"], config["desc_act"]) == (q, g, act_order)
    assert ours.config.quantization_config is before, "the model is not changed"
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("the").input_ids


@pytest.mark.parametrize("q", [4, 8])
def test_transformers_loads_it(q, tmp_path):
    pytest.importorskip("gptqmodel")
    pytest.importorskip("optimum.gptq")
    ours = model(q, 32)
    export_gptq(ours, tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float16).eval()
    with torch.no_grad():
        exact, found = ours(token_ids()).logits, theirs(token_ids()).logits.float()
        naive = ours.half()(token_ids()).logits.float()
    assert (found - exact).abs().max() <= 2 * (naive - exact).abs().max()


def test_binary_codes_are_refused_with_the_reason(tmp_path):
    ours = lutlab.quantize(make("opt"), method="bcq", q=3, g=16)
    before = ours.config.quantization_config
    with pytest.raises(LutlabError, match=r"q_proj|k_proj: its codes are not uniform"):
        export_gptq(ours, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert ours.config.quantization_config is before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": 5}, "q=5: the GPTQ layout"),
        ({"scale_dtype": "fp32"}, "holds float16: quantize with scale_dtype=fp16"),
    ],
)
def test_widths_that_the_layout_has_not(change, message, tmp_path):
    ours = lutlab.quantize(make("opt"), **{"method": "rtn", "q": 4, "g": 16} | change)
    with pytest.raises(LutlabError, match=message):
        export_gptq(ours, tmp_path / "out")


def test_sizes_that_do_not_fill_words(tmp_path):
    ours = lutlab.quantize(make("opt"), method="rtn", q=3, g=16)  # ffn_dim 48 * 3 bits
    with pytest.raises(LutlabError, match="do not fill whole 32-bit words"):
        export_gptq(ours, tmp_path / "out")


def test_zero_points_out_of_range(tmp_path):
    ours = plain()
    with torch.no_grad():
        ours.model.layers[0].mlp.up_proj.weight.add_(20)  # no group of it contains 0
    lutlab.quantize(ours, method="rtn", variant="awq", q=4, g=16)
    tensor = quantized_layers(ours)["model.layers.0.mlp.up_proj"].packed.unpack()
    shifted = dataclasses.replace(tensor, zero_point=tensor.zero_point - 16)
    ours.set_submodule("model.layers.0.mlp.up_proj", QuantLinear(pack(shifted), None))
    with pytest.raises(LutlabError, match=r"up_proj: zero points from -\d+ to"):
        export_gptq(ours, tmp_path / "out")
    offset = -tensor.scale * 7.3
    floats = dataclasses.replace(tensor, zero_point=None, offset=offset)
    ours.set_submodule("model.layers.0.mlp.up_proj", QuantLinear(pack(floats), None))
    with pytest.raises(LutlabError, match=r"up_proj: its codes have a float offset a group"):
        export_gptq(ours, tmp_path / "out")


def test_one_q_and_g_for_all_layers(tmp_path):
    ours, others = model(4, 16), model(4, 8)
    name, _ = next(iter(linear_layers(ours)))
    ours.set_submodule(name, others.get_submodule(name))
    with pytest.raises(LutlabError, match=r"\(4, 8\), \(4, 16\).*export_compressed_tensors"):
        export_gptq(ours, tmp_path / "out")
    ours.set_submodule(name, plain().get_submodule(name))
    with pytest.raises(LutlabError, match=f"{name} is not"):
        export_gptq(ours, tmp_path / "out")
