"""vLLM's side of the plug-in, as its own code calls it, over a stand-in of the classes that it has; and the real one.

The stand-in does what vLLM's model loaders do: fused layers, whose parameters are filled part by part, in any order.
"""

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from tests.models.architectures import make

import lutlab
from lutlab.errors import LutlabError
from lutlab.generate.vllm import register

FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
SHARDS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "gate_proj": 0, "up_proj": 1}


class LinearBase(torch.nn.Module):
    """vLLM's linear layer: its method makes the weights and multiplies."""

    def __init__(self, sizes, columns, config, prefix, cut=1):
        super().__init__()
        self.quant_method = config.get_quant_method(self, prefix)
        self.quant_method.create_weights(
            self, columns // cut, sizes, columns, sum(sizes), torch.float32, weight_loader=None
        )


class Unquantized:
    def create_weights(self, layer, *sizes, **attributes):
        pass


@pytest.fixture
def vllm(monkeypatch):
    """The modules that the plug-in imports; returns the registered methods."""
    registered = {}
    base = type(
        "QuantizationConfig",
        (),
        {"__init__": lambda self: setattr(self, "packed_modules_mapping", {})},
    )
    contents = {
        "vllm": {},
        "vllm.model_executor": {},
        "vllm.model_executor.layers": {},
        "vllm.model_executor.layers.linear": {
            "LinearBase": LinearBase,
            "LinearMethodBase": type("LinearMethodBase", (), {}),
            "UnquantizedLinearMethod": Unquantized,
        },
        "vllm.model_executor.layers.quantization": {
            "QUANTIZATION_METHODS": registered,
            "register_quantization_config": lambda name: (
                lambda cls: registered.setdefault(name, cls)
            ),
        },
        "vllm.model_executor.layers.quantization.base_config": {"QuantizationConfig": base},
    }
    for name, members in contents.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, module)
    register()
    register()  # as every process of a server may
    return registered


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model of two layouts: q, k and v are of one, gate and up are not; of the second block's MLP nothing is."""
    model = make("llama-2")
    skip = [f"*.layers.1.mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")]
    lutlab.quantize(model, "rtn", q=4, g=8, skip=skip, layers={"*.up_proj": (3, 8)})
    folder = tmp_path_factory.mktemp("saved") / "model"
    lutlab.save(model, folder)
    return model, folder


def config_of(vllm, folder):
    written = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert written["quant_method"] in vllm
    config = vllm["lutlab"].from_config(written)
    config.packed_modules_mapping = FUSED
    return config


def filled(config, folder, prefix, sizes, columns, leave=()):
    """A fused layer, loaded from the files as vLLM loads it."""
    layer = LinearBase(sizes, columns, config, prefix)
    path, _, name = prefix.rpartition(".")
    stored = load_file(folder / "model.safetensors")
    for part in reversed(FUSED.get(name, [name])):
        for key, tensor in stored.items():
            if key.startswith(f"{path}.{part}.") and key.rpartition(".")[2] not in leave:
                parameter = dict(layer.named_parameters())[key.rpartition(".")[2]]
                parameter.weight_loader(
                    parameter, tensor, *([SHARDS[part]] if name in FUSED else [])
                )
    layer.quant_method.process_weights_after_loading(layer)
    return layer


@pytest.mark.parametrize(
    ("name", "parts", "sizes", "columns", "products"),
    [
        ("self_attn.qkv_proj", ["q_proj", "k_proj", "v_proj"], [32, 16, 16], 32, 1),
        ("mlp.gate_up_proj", ["gate_proj", "up_proj"], [48, 48], 32, 2),
        ("mlp.down_proj", ["down_proj"], [32], 48, 1),
    ],
)
def test_a_fused_layer_multiplies_as_its_parts_do(
    vllm, saved, name, parts, sizes, columns, products
):
    model, folder = saved
    layer = filled(config_of(vllm, folder), folder, f"model.layers.0.{name}", sizes, columns)
    assert len(layer.lutlab_products) == products
    block = model.model.layers[0].get_submodule(name.partition(".")[0])
    x, bias = torch.randn(5, columns), torch.randn(sum(sizes))
    expected = torch.cat([block.get_submodule(part)(x) for part in parts], -1)
    assert torch.equal(layer.quant_method.apply(layer, x), expected)
    assert torch.equal(layer.quant_method.apply(layer, x, bias), expected + bias)
    compiled = torch.compile(
        lambda x: layer.quant_method.apply(layer, x), backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(x), expected)
    with pytest.raises(LutlabError, match="is a layer of two models"):
        filled(config_of(vllm, folder), folder, f"model.layers.0.{name}", sizes, columns)


def test_what_is_not_quantized_is_vllms_own(vllm, saved):
    config = config_of(vllm, saved[1])
    layer = LinearBase([48, 48], 32, config, "model.layers.1.mlp.gate_up_proj")
    assert isinstance(layer.quant_method, Unquantized)
    assert config.get_quant_method(torch.nn.Embedding(2, 2), "model.embed_tokens") is None
    assert (config.get_name(), config.get_min_capability()) == ("lutlab", 80)


def test_what_is_refused(vllm, saved):
    config, prefix = config_of(vllm, saved[1]), "model.layers.0.self_attn.qkv_proj"
    with pytest.raises(LutlabError, match="tensor_parallel_size=1"):
        LinearBase([32, 16, 16], 32, config, prefix, cut=2)
    with pytest.raises(LutlabError, match="64 x 32 for a layer of 96 x 32"):
        LinearBase([32, 32, 32], 32, config, prefix)
    with pytest.raises(LutlabError, match="scale is missing"):
        filled(config, saved[1], prefix, [32, 16, 16], 32, leave=("scale",))
    config.layers.pop("model.layers.0.self_attn.k_proj")
    with pytest.raises(LutlabError, match="only some are quantized"):
        LinearBase([32, 16, 16], 32, config, prefix)


def test_vllm_finds_the_plug_in():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    group = project.partition('[project.entry-points."vllm.general_plugins"]')[2]
    module, name = re.search(r'^lutlab = "(.+):(.+)"$', group, re.MULTILINE).groups()
    assert getattr(importlib.import_module(module), name) is register


def test_the_real_vllm_takes_it():
    quantization = pytest.importorskip("vllm.model_executor.layers.quantization")
    register()
    config = quantization.get_quantization_config("lutlab").from_config(
        {"quant_method": "lutlab", "format": 2, "layers": {}}
    )
    assert config.get_name() == "lutlab"
