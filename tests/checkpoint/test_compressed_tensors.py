"""The library of that name reads what we wrote to the last bit, and writes the same words itself."""

import dataclasses
import json

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import load_file
from tests.models.architectures import make, token_ids
from tests.tiny_models import one_thread  # noqa: F401
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

import lutlab
from lutlab.checkpoint.compressed_tensors import export_compressed_tensors
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.errors import LutlabError
from lutlab.models.families import linear_layers, weight_of
from lutlab.modules import QuantLinear

pytestmark = pytest.mark.usefixtures("one_thread")


def mixed(name, widths=((4, 16), (3, 8), (8, -1), (5, 16), (2, 32))):
    """Layers of these widths in turn, one left in full precision."""
    model = make(name)
    donors = [lutlab.quantize(make(name), "rtn", q, g) for q, g in widths]
    for index, (path, _) in enumerate(list(linear_layers(model))):
        if index != 1:
            model.set_submodule(path, donors[index % len(donors)].get_submodule(path))
    return model


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`:UserWarning")
@pytest.mark.parametrize(
    ("name", "q", "g"), [("opt", 3, 8), ("llama-2", 4, 16), ("gpt-neo", 8, -1)]
)
def test_transformers_loads_the_same_logits(name, q, g, tmp_path):
    ours = mixed(name, widths=[(q, g)])
    export_compressed_tensors(ours, tmp_path / "out")
    theirs, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out",
        quantization_config=CompressedTensorsConfig(dequantize=True),
        output_loading_info=True,
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for layer, module in ours.named_modules():
        if isinstance(module, QuantLinear):
            assert torch.equal(weight_of(theirs.get_submodule(layer)), module.packed.dequantize())
    with torch.no_grad():  # ours through a kernel, which adds in another order than torch
        torch.testing.assert_close(theirs.eval()(token_ids()).logits, ours(token_ids()).logits)


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
