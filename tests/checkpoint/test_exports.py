"""What other projects' readers find in our exports, to the last bit; what has no words in their layouts is refused."""

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import load_file
from tests.base.refusals import refused
from tests.checkpoint.readers import change_layer, config_of, plain, tensors_of, wide
from tests.kernels.weights import uniform_second_order_tensor
from tests.models.architectures import logits, make
from tests.tiny_models import byte_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import lutlab
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.formats import pack
from lutlab.models.families import linear_layers, weight_of
from lutlab.modules import QuantLinear


def stream(words, q, count):
    """Values of q bits out of the words of one stream, as Python's integers."""
    number = sum((word % 2**32) << (32 * i) for i, word in enumerate(words))
    return [(number >> (i * q)) % 2**q for i in range(count)]


def decoded(q, qweight, qzeros, scales, g_idx):
    """W [N, K] float32 from the four buffers, by the formula at the top of checkpoint/foreign/gptq.py."""
    columns, rows = len(g_idx), scales.shape[1]
    codes = torch.tensor([stream(column, q, columns) for column in qweight.T.tolist()])
    zeros = torch.tensor([stream(row, q, rows) for row in qzeros.tolist()])
    group = g_idx.long()
    return scales.float()[group].T * (codes - zeros[group].T)


@pytest.mark.parametrize(("q", "g"), [(2, 16), (3, 8), (4, -1), (8, 40)])
@pytest.mark.parametrize("act_order", [False, True])
def test_an_independent_decoder_reads_the_same_weights(q, g, act_order, tmp_path):
    ours, folder = lutlab.quantize(plain(), "rtn", q, g), tmp_path / "out"
    if g == 16:  # scales of second order are written in 16 bits
        name, layer = next(iter(quantized_layers(ours).items()))
        tensor = uniform_second_order_tensor(*layer.packed.shape, q, g, zeros=(0, 4))
        ours.set_submodule(name, QuantLinear(pack(tensor), layer.bias))
    for name, layer in quantized_layers(ours).items() if act_order else ():
        generator = torch.Generator().manual_seed(1)
        change_layer(ours, name, torch.randperm(layer.in_features, generator=generator))
    before = ours.config.quantization_config
    lutlab.export_gptq(ours, folder, byte_tokenizer())
    tensors = load_file(folder / "model.safetensors")
    for name, layer in quantized_layers(ours).items():
        weight = decoded(q, **tensors_of(tensors, name))
        assert torch.equal(weight, layer.packed.dequantize()), name
    replaced = ("qweight", "scale", "scale_code", "scale_step", "scale_zero", "qzero", "order")
    assert {key for key in ours.state_dict() if not key.endswith(replaced)} <= tensors.keys()
    config = config_of(folder)
    assert config["checkpoint_format"] == "gptq_v2"
    assert (config["bits"], config["group_size"], config["desc_act"]) == (q, g, act_order)
    assert ours.config.quantization_config is before, "the model is not changed"
    assert AutoTokenizer.from_pretrained(folder)("the").input_ids


@pytest.mark.parametrize("q", [4, 8])
def test_transformers_loads_it(q, tmp_path):
    pytest.importorskip("gptqmodel")
    pytest.importorskip("optimum.gptq")
    ours = lutlab.quantize(plain(), "rtn", q, 32)
    lutlab.export_gptq(ours, tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float16)
    exact = logits(ours)
    rounding = (logits(ours.half()).float() - exact).abs().max()
    assert (logits(theirs).float() - exact).abs().max() <= 2 * rounding


WIDTHS = ((4, 16), (3, 8), (8, -1), (5, 16), (2, 32))


def mixed(name, widths=WIDTHS, symmetric=False):
    """Layers of these widths in turn, one in full precision; symmetric: with zero points in the middle, as GPTQ's."""
    model = make(name)
    donors = [lutlab.quantize(make(name), "rtn", q, g) for q, g in widths]
    for index, (path, _) in enumerate(list(linear_layers(model))):
        if index != 1:
            model.set_submodule(path, donors[index % len(donors)].get_submodule(path))
    for path, layer in quantized_layers(model).items() if symmetric else ():
        tensor = layer.packed.unpack()
        middle = torch.full_like(tensor.zero_point, 2 ** (tensor.bits - 1))
        change_layer(model, path, zero_point=middle)
    return model


@pytest.mark.parametrize(("name", "widths", "symmetric", "options"), [
    ("opt", WIDTHS[1:2], False, {}),
    ("gpt-neo", WIDTHS[2:3], False, {}),
    ("opt", WIDTHS[:3], True, {}),
    ("llama-2", WIDTHS[:3], False, {"format": "int-quantized"}),
    ("opt", [(4, 16), (8, -1)], True, {"format": "int-quantized"}),
])  # fmt: skip
def test_plain_from_pretrained_loads_the_same_logits(name, widths, symmetric, options, tmp_path):
    ours, folder = mixed(name, widths, symmetric), tmp_path / "out"
    lutlab.export_compressed_tensors(ours, folder, **options)
    theirs, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    back = lutlab.load(folder)
    assert quantized_layers(back).keys() == quantized_layers(ours).keys()
    for path, layer in quantized_layers(ours).items():
        dense = layer.packed.dequantize()
        assert torch.equal(back.get_submodule(path).packed.dequantize(), dense)
        if "dequantize" in config_of(folder):
            assert torch.equal(weight_of(theirs.get_submodule(path)), dense)
    # ours through a kernel, which adds in another order than torch
    torch.testing.assert_close(logits(theirs), logits(ours))


def test_the_library_reads_and_writes_the_same_tensors(tmp_path, caplog):
    """Its compressor, given our weights, scales and zero points, makes the words we made."""
    ours, folder = mixed("opt"), tmp_path / "out"
    lutlab.export_compressed_tensors(ours, folder)
    assert "asymmetric pack-quantized weights of several (q, g), lutlab.load does" in caplog.text
    tensors = load_file(folder / "model.safetensors")
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    names = []
    for group in config_of(folder)["config_groups"].values():
        scheme = QuantizationScheme.model_validate(group)
        for name in scheme.targets:
            stored = tensors_of(tensors, name)
            stored.pop("bias", None)
            dense = compressor.decompress(stored, scheme)
            assert torch.equal(dense["weight"], ours.get_submodule(name).packed.dequantize()), name
            torch.testing.assert_close(compressor.compress(dense, scheme), stored, rtol=0, atol=0)
            names.append(name)
    assert sorted(names) == sorted(quantized_layers(ours))
    assert len(names) == 11


EXPORTS = {
    "gptq": lutlab.export_gptq, "ct": lutlab.export_compressed_tensors, "gguf": lutlab.export_gguf,
    "wider": lambda model, path: lutlab.export_gguf(model, path, wider=True),
}  # fmt: skip
RTN, BCQ = {"method": "rtn", "q": 4, "g": 16}, {"method": "bcq", "q": 3, "g": 16}


@pytest.mark.parametrize(("export", "name", "options", "message"), [
    ("gptq", "opt", BCQ, r"(q|k)_proj: its codes are not uniform"),
    ("gptq", "opt", RTN | {"q": 5}, "q=5: the GPTQ layout"),
    ("gptq", "opt", RTN | {"scale_dtype": "fp32"}, "holds float16: quantize with scale_dtype=fp16"),
    ("gptq", "opt", RTN | {"q": 3}, "do not fill whole 32-bit words"),  # ffn_dim 48 * 3 bits
    ("ct", "opt", BCQ, "codes are not uniform"),
    ("ct", "opt", RTN | {"g": 24}, "groups of 24 do not divide K = 32"),
    ("ct", "gpt2", RTN, "is a Conv1D in this architecture"),
    ("gguf", "", BCQ | {"g": 32}, r"codes are not uniform .* lutlab\.save"),
    ("gguf", "", RTN | {"q": 3, "g": 32}, r"self_attn\.q_proj: q=3 g=32 .* no type of 3 bits\. Q4_0 holds"),
    ("gguf", "", RTN | {"q": 2, "g": 64}, r"Q2_0 has no room for weights of -2 to 2 scales\. Q4_0 holds"),
    ("gguf", "", RTN | {"g": 48}, r"Q4_0 has one scale for 32 neighbours, .* multiple of 32"),
    ("wider", "", RTN | {"q": 8, "g": 32}, r"Q8_0 has no room .* at q=8 with symmetric=true"),
    ("wider", "", RTN | {"g": 32, "scale_dtype": "fp32"}, "scales are torch.float32.* scale_dtype=fp16"),
])  # fmt: skip
def test_what_has_no_place_is_refused_by_name(export, name, options, message, tmp_path):
    ours = lutlab.quantize(make(name) if name else wide(), **options)
    before = ours.config.quantization_config
    refused(message, EXPORTS[export], ours, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert ours.config.quantization_config is before


@pytest.mark.parametrize(("export", "g", "message"), [
    ("ct", 16, r"reordered channels \(act_order\)"), ("gguf", 32, "its groups are of reordered channels"),
])  # fmt: skip
def test_reordered_channels_are_refused(export, g, message, tmp_path):
    ours = lutlab.quantize(wide(), "rtn", 4, g)
    for name, layer in quantized_layers(ours).items():
        change_layer(ours, name, torch.arange(layer.in_features).flip(0))
    refused(message, EXPORTS[export], ours, tmp_path / "out")


def test_scales_that_the_models_dtype_would_round(tmp_path):
    ours = lutlab.quantize(make("opt"), "rtn", 4, 16).to(torch.bfloat16)
    refused("bfloat16, the model's dtype, cannot hold its", EXPORTS["ct"], ours, tmp_path / "out")
    refused(r"format 'int'.*int-quantized", EXPORTS["ct"], ours, tmp_path / "out", format="int")


def test_zero_points_out_of_range(tmp_path):
    ours, name = plain(), "model.layers.0.mlp.up_proj"
    ours.get_submodule(name).weight.data += 20  # no group of it contains 0
    lutlab.quantize(ours, method="rtn", variant="awq", q=4, g=16)
    tensor = ours.get_submodule(name).packed.unpack()
    change_layer(ours, name, zero_point=tensor.zero_point - 16)
    refused(r"up_proj: zero points from -\d+ to", EXPORTS["gptq"], ours, tmp_path / "out")
    change_layer(ours, name, zero_point=None, offset=-tensor.scale * 7.3)
    refused("up_proj: its codes have a float offset a g", EXPORTS["gptq"], ours, tmp_path / "out")


def test_one_q_and_g_for_all_layers(tmp_path):
    ours, others = (lutlab.quantize(plain(), "rtn", 4, g) for g in (16, 8))
    name, _ = next(iter(linear_layers(ours)))
    ours.set_submodule(name, others.get_submodule(name))
    refused(r"\(4, 8\), \(4, 16\).*export_compr", EXPORTS["gptq"], ours, tmp_path / "out")
    ours.set_submodule(name, plain().get_submodule(name))
    refused(f"{name} is not", EXPORTS["gptq"], ours, tmp_path / "out")


def test_gguf_of_other_models(tmp_path):
    path, export = tmp_path / "model.gguf", lutlab.export_gguf
    refused("of type 'opt'", export, make("opt"), path)
    refused(r"has the bias model.*q_proj\.bias", export, wide(attention_bias=True), path)
    path.write_text("here")
    refused("overwrites no model", export, wide(), path)
