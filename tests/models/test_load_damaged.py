"""Every damage of a model's folder is an error that names cause and cure."""

import json
import math
import shutil

import pytest
import torch
from tests.base.refusals import refused
from tests.models.architectures import make
from tests.models.folders import change_config, change_tensors, change_weight, loaded, spec
from tests.tiny_models import tiny_llama

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.models import load
from lutlab.models.files import weight_files
from lutlab.models.pretrained import check_heads
from lutlab.models.shape import shape_of

INDEX = "model.safetensors.index.json"
BOTH = (False, True)
LOST = r"no model in folder .*expected config\.json"
TOKENIZER = "cannot read the tokenizer .*fetch its files again"
DAMAGED = {
    "config.json": (["{", "[]", "{}", '{"model_type": 3}', ""], r"cannot read .*config\.json|no family of models '3'"),
    "tokenizer.json": (["{", "{}"], TOKENIZER),
    "tokenizer_config.json": (["{"], TOKENIZER),
    INDEX: (["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "[" * 100_000],
            r"index\.json is damaged .*fetch it again"),
}  # fmt: skip


def refused_by_name(folder, message, streams=(False,), **fields):
    """The message names the folder, whether the model is in memory or its blocks are read one by one."""
    for stream in streams:
        with pytest.raises(LutlabError, match=message) as caught:
            loaded(folder, stream=stream, **fields).blocks.fill()
        assert str(folder) in str(caught.value)


def test_missing_files(folder, tmp_path):
    refused_by_name(tmp_path / "absent", LOST)
    refused_by_name(tmp_path / "absent", LOST, source="synthetic")
    (folder / "tokenizer.json").unlink()
    refused_by_name(folder, r"no tokenizer in .*expected one of tokenizer\.json")
    (folder / "config.json").unlink()
    refused_by_name(folder, LOST)


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_file(folder, name):
    contents, message = DAMAGED[name]
    if name == INDEX:
        (folder / "model.safetensors").unlink()
    for content in contents:
        (folder / name).write_text(content)
        refused(message, loaded, folder)


@pytest.mark.parametrize(("name", "fields"), [
    ("config.json", {"dtype": "x"}), ("config.json", {"dtype": []}),
    ("tokenizer_config.json", {"model_max_length": "x"}),
    ("tokenizer.json", {"post_processor": {  # Rust panics: the template's token is not in the list behind it
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
        "pair": [], "special_tokens": {}}}),
])  # fmt: skip
def test_a_value_of_a_wrong_type(folder, name, fields):
    change_config(folder, name, **fields)
    refused(DAMAGED[name][1], loaded, folder)


def test_only_pickled_weights_are_never_read(folder):
    (folder / "model.safetensors").unlink()
    torch.save(make("opt").state_dict(), folder / "pytorch_model.bin")
    message = r"lacks model\.safetensors: lutlab reads safetensors only, never pickled.*convert"
    refused_by_name(folder, message, BOTH)
    refused(message, load.fingerprint, spec(folder))


def test_missing_shard(folder):
    (folder / "model.safetensors").unlink()
    make("opt").save_pretrained(folder, max_shard_size="20KB")
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    refused_by_name(folder, f"lacks {shard.name}: .*fetch the missing shards", BOTH)


@pytest.mark.parametrize("name", ["../{}/model.safetensors", "{}/model.safetensors", "../x"])
def test_an_index_names_files_of_its_folder_only(name, folder):
    elsewhere = shutil.copytree(folder, folder.with_name("elsewhere"))
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": {"x": name.format(elsewhere)}}))
    refused_by_name(folder, r"index\.json names .*, which is not in its folder.*put a link")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"x": "link.safetensors"}}))
    (folder / "link.safetensors").symlink_to(elsewhere / "model.safetensors")
    assert weight_files(folder)[0].resolve() == elsewhere / "model.safetensors"


@pytest.mark.parametrize("size", [0, 4, 50, 0.5, -1])
def test_truncated_weights(folder, size):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * size) if size == 0.5 else size])
    refused_by_name(folder, "cannot load the weights .*truncated: fetch it again")


@pytest.mark.parametrize(("config", "message"), [
    ({"num_hidden_layers": 3}, r"lacks 16 weights .*first model\.decoder\.layers\.2\..*random weights"),
    ({"num_hidden_layers": 1}, r"holds 16 tensors .*no place for.*num_hidden_layers"),
    ({"ffn_dim": 64}, r"lacks 6 weights .*fc1\.bias \(the file holds \[48\] instead of \[64\]\)"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}, "quantized already"),
])  # fmt: skip
def test_weights_of_another_config(folder, config, message):
    change_config(folder, **config)
    refused_by_name(folder, message, BOTH[: 1 + ("ffn_dim" not in config)])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["layers.1.fc2.weight", "final_layer_norm.bias"])
def test_weights_that_are_no_numbers(folder, name, bad):
    change_tensors(folder, lambda tensors: tensors[f"model.decoder.{name}"].view(-1)[7].fill_(bad))
    refused_by_name(
        folder, f"weight model.decoder.{name} holds NaN or infinite values.*fetch", BOTH
    )


def test_weights_beyond_half_precision(folder):
    change_weight(folder, "model.decoder.layers.0.fc1.weight", lambda weight: weight * 1e6)
    loaded(folder)
    refused_by_name(folder, "NaN or infinite values.*half precision", BOTH, dtype=torch.float16)


@pytest.mark.parametrize("source", ["folder", "synthetic"])
@pytest.mark.parametrize("architecture", ["t5", "bloom", "nosuch"])
def test_unknown_architecture(folder, architecture, source):
    (folder / "config.json").write_text(json.dumps({"model_type": architecture}))
    known = "known: bert, glm, gpt2, gpt_neo"
    refused(f"no family of models '{architecture}'.*{known}", loaded, folder, source)


@pytest.mark.parametrize(("values", "message"), [
    ({"num_attention_heads": 3}, "3 attention heads do not divide the hidden size of 32"),
    ({"num_attention_heads": 0}, "num_attention_heads is 0, no positive integer"),
    ({"num_attention_heads": "two"}, "is 'two', no positive integer"),
    ({"num_attention_heads": 4, "num_key_value_heads": 3}, "3 key-value heads do not divide the 4"),
])  # fmt: skip
def test_heads_that_do_not_fit_are_refused(tmp_path, values, message):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 32} | values))
    refused(f"config.json: .*{message}.*fetch it again", check_heads, tmp_path)


@pytest.mark.parametrize("values", [
    {}, {"n_head": 12, "n_embd": 768}, {"num_attention_heads": 5, "hidden_size": 32, "head_dim": 16},
])  # fmt: skip
def test_heads_that_fit_and_defaults_are_not(tmp_path, values):
    (tmp_path / "config.json").write_text(json.dumps(values))
    check_heads(tmp_path)


def test_whoever_reads_a_folder_refuses_them(folder, tmp_path):
    change_config(folder, num_attention_heads=5)
    lutlab.save(lutlab.quantize(tiny_llama(), "rtn", q=4, g=16), tmp_path / "quantized")
    change_config(tmp_path / "quantized", num_key_value_heads=3, num_attention_heads=2)
    (tmp_path / "quantized" / "SHA256SUMS").unlink()  # it names the config.json that was saved
    message = "heads do not divide the"
    refused(message, loaded, folder)
    refused(message, shape_of, spec(folder))
    refused(message, lutlab.load, tmp_path / "quantized")
