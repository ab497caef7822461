"""The library of that name reads what we wrote to the last bit, and writes the same words itself."""

import dataclasses
import json

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import load_file
from tests.models.architectures import make, token_ids
from transformers import AutoModelForCausalLM

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.checkpoint.foreign.compressed_tensors import export_compressed_tensors
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.formats import pack
from lutlab.models.families import linear_layers, weight_of
from lutlab.modules import QuantLinear


def mixed(name, widths=((4, 16), (3, 8), (8, -1), (5, 16), (2, 32))):
    """Layers of these widths in turn, one left in full precision."""
    model = make(name)
    donors = [lutlab.quantize(make(name), "rtn", q, g) for q, g in widths]
    for index, (path, _) in enumerate(list(linear_layers(model))):
        if index != 1:
            model.set_submodule(path, donors[index % len(donors)].get_submodule(path))
    return model


def symmetric(model):
    """All zero points in the middle, as GPTQ's symmetric grids have them."""
    for name, layer in quantized_layers(model).items():
        tensor = layer.packed.unpack()
        middle = tensor.zero_point.clone().fill_(2 ** (tensor.bits - 1))
        packed = pack(dataclasses.replace(tensor, zero_point=middle))
        model.set_submodule(name, QuantLinear(packed, layer.bias))
    return model


@pytest.mark.parametrize(
    ("name", "widths", "change", "options"),
    [
        ("opt", [(3, 8)], None, {}),
        ("gpt-neo", [(8, -1)], None, {}),
        ("opt", [(4, 16), (3, 8), (8, -1)], symmetric, {}),
        ("llama-2", [(4, 16), (3, 8), (8, -1)], None, {"format": "int-quantized"}),
        ("opt", [(4, 16), (8, -1)], symmetric, {"format": "int-quantized"}),
    ],
)
def test_plain_from_pretrained_loads_the_same_logits(name, widths, change, options, tmp_path):
    ours = mixed(name, widths=widths)
    if change:
        ours = change(ours)
    export_compressed_tensors(ours, tmp_path / "out", **options)
    theirs, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    back = lutlab.load(tmp_path / "out")
    assert quantized_layers(back).keys() == quantized_layers(ours).keys()
    for layer, module in quantized_layers(ours).items():
        dense = module.packed.dequantize()
        assert torch.equal(back.get_submodule(layer).packed.dequantize(), dense)
        if "dequantize" in ours_config(tmp_path):
            assert torch.equal(weight_of(theirs.get_submodule(layer)), dense)
    with torch.no_grad():  # ours through a kernel, which adds in another order than torch
        torch.testing.assert_close(theirs.eval()(token_ids()).logits, ours(token_ids()).logits)


def test_what_transformers_cannot_read_is_said(tmp_path, caplog):
    export_compressed_tensors(mixed("opt"), tmp_path / "out")
    assert "asymmetric pack-quantized weights of several (q, g), lutlab.load does" in caplog.text
    with pytest.raises(LutlabError, match=r"unknown format 'int'.*int-quantized"):
        export_compressed_tensors(mixed("opt"), tmp_path / "more", format="int")


def test_the_library_reads_and_writes_the_same_tensors(tmp_path):
    """Its compressor, given our weights, scales and zero points, makes the words we made."""
    ours = mixed("opt")
    export_compressed_tensors(ours, tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    groups = ours_config(tmp_path)["config_groups"].values()
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    seen = 0
    for group in groups:
        scheme = QuantizationScheme.model_validate(group)
        for name in scheme.targets:
            stored = {
                key.removeprefix(f"{name}."): tensor
                for key, tensor in tensors.items()
                if key.startswith(f"{name}.weight_")
            }
            dense = compressor.decompress(stored, scheme)
            weight = ours.get_submodule(name).packed.dequantize()
            assert torch.equal(dense["weight"], weight), name
            again = compressor.compress(dense, scheme)
            assert again.keys() == stored.keys()
            for key in stored:
                assert torch.equal(again[key], stored[key]), (name, key)
            seen += 1
    assert seen == len(quantized_layers(ours)) == 11


def ours_config(tmp_path):
    return json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("opt", {"method": "bcq", "q": 3, "g": 16}, "codes are not uniform"),
        ("opt", {"method": "rtn", "q": 4, "g": 24}, "groups of 24 do not divide K = 32"),
        ("gpt2", {"method": "rtn", "q": 4, "g": 16}, "is a Conv1D in this architecture"),
    ],
)
def test_what_the_format_cannot_say_is_refused(name, options, message, tmp_path):
    ours = lutlab.quantize(make(name), **options)
    with pytest.raises(LutlabError, match=message):
        export_compressed_tensors(ours, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_reordered_channels_are_refused(tmp_path):
    ours = lutlab.quantize(make("opt"), "rtn", 4, 16)
    name, layer = next(iter(quantized_layers(ours).items()))
    order = torch.arange(layer.in_features, dtype=torch.int32).flip(0)
    packed = dataclasses.replace(layer.packed, order=order)
    ours.set_submodule(name, QuantLinear(packed, layer.bias))
    with pytest.raises(LutlabError, match=r"reordered channels \(act_order\)"):
        export_compressed_tensors(ours, tmp_path / "out")


def test_scales_that_the_models_dtype_would_round(tmp_path):
    ours = lutlab.quantize(make("opt"), "rtn", 4, 16).to(torch.bfloat16)
    with pytest.raises(LutlabError, match="bfloat16, the model's dtype, cannot hold its scales"):
        export_compressed_tensors(ours, tmp_path / "out")
