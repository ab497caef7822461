"""The headers of a checkpoint say the same of a model as the model itself, for every family."""

import json

import pytest
from tests.base.refusals import refused
from tests.models.architectures import CONFIGS, make
from tests.models.folders import spec

from lutlab.models import shape
from lutlab.models.families import linear_layers, weight_of
from lutlab.models.files import shape_folders
from lutlab.models.load import embedded_names


@pytest.mark.parametrize("name", CONFIGS)
def test_headers_and_modules_agree(name, tmp_path):
    model = make(name)
    model.save_pretrained(tmp_path)
    read = shape._from_files(tmp_path)
    assert read == shape._from_config(tmp_path, None)
    whole, linears = shape._read(spec(tmp_path))
    assert linears == {path: tuple(weight_of(m).shape) for path, m in linear_layers(model)}
    assert whole.parameters == sum(p.numel() for p in model.parameters())
    assert sum(k * n for k, n in whole.inputs) * whole.layers == whole.linear_parameters


def test_a_synthetic_model_has_the_shape_of_its_config(tmp_path):
    make("opt").config.save_pretrained(tmp_path)
    cut = shape.shape_of(spec(tmp_path, "synthetic", layers=1))
    assert cut.layers == 1
    assert 0 < cut.linear_parameters < cut.parameters


def gpt(layers, d, vocabulary=50257, positions=2048):
    """12 d^2 + 13 d a layer, biases and norms among them."""
    return layers * (12 * d**2 + 13 * d) + (vocabulary + positions) * d + 2 * d


# as their papers and repositories count them: OPT by its formula, whose biases and positions count; LLaMA exactly
PARAMETERS = {
    "gpt-j-6b": gpt(28, 4096, 50400) + 50400 * 4096,  # an untied head, and positions that GPT-J itself turns
    "gpt-3-175b": gpt(96, 12288), "mt-nlg-530b": gpt(105, 20480),
    "llama-3-8b": 8_030_261_248, "mistral-7b": 7_241_732_096, "qwen2.5-7b": 7_615_616_512,
    "opt-6.7b": 6_658_473_984, "opt-13b": 12_853_473_280, "opt-30b": 29_974_540_288, "opt-66b": 65_719_701_504,
    "opt-175b": 174_604_468_224,
    "llama-7b": 6_738_415_616, "llama-13b": 13_015_864_320, "llama-30b": 32_528_943_616, "llama-65b": 65_285_660_672,
}  # fmt: skip


def test_shapes_of_the_papers_models_have_their_parameters():
    counts = {}
    for name, folder in shape_folders().items():
        first, both = (shape.shape_of(spec(name, "synthetic", layers=n)).parameters for n in (1, 2))
        config = json.loads((folder / "config.json").read_text())
        layers = config.get("num_hidden_layers") or config["n_layer"]
        counts[name] = first + (layers - 1) * (both - first)
    assert counts == PARAMETERS


@pytest.mark.parametrize(
    "header", [b"", b"1234567", b"\0" * 8, b"\xff" * 16, b"\2" + b"\0" * 7 + b"[]", None]
)
def test_a_damaged_header_is_named(header, tmp_path):
    make("opt").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content.replace(b'"shape"', b'"sharp"') if header is None else header)
    refused(r"cannot read .*model\.safetensors .*damaged", shape.linear_shapes, spec(tmp_path))


@pytest.mark.parametrize("name", embedded_names())
def test_the_shape_of_an_embedded_model_needs_no_modeling_code(name, monkeypatch):
    monkeypatch.setattr(shape, "_from_config", None)
    shape._read.cache_clear()
    assert shape.linear_shapes(spec(name, "embedded"))
