"""Every damage of a model's folder is an error that names cause and cure."""

import json
import math
import shutil

import pytest
import torch
from tests.models.architectures import make
from tests.models.folders import change_config, change_weight, loaded, spec

from lutlab.base.errors import LutlabError
from lutlab.models import load
from lutlab.models.files import weight_files


def refused(folder, message, **fields):
    with pytest.raises(LutlabError, match=message) as caught:
        loaded(folder, **fields)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("source", ["folder", "synthetic"])
def test_missing_folder(tmp_path, source):
    refused(tmp_path / "absent", r"no model in folder .*expected config\.json", source=source)


def test_no_config(folder):
    (folder / "config.json").unlink()
    refused(folder, r"no model in folder .*expected config\.json")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"model_type": 3}', ""])
def test_damaged_config(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(LutlabError, match=r"cannot read .*config\.json|no family of models '3'"):
        loaded(folder)


def test_only_pickled_weights_are_never_read(folder):
    (folder / "model.safetensors").unlink()
    torch.save(make("opt").state_dict(), folder / "pytorch_model.bin")
    message = r"lacks model\.safetensors: lutlab reads safetensors only, never pickled.*convert"
    refused(folder, message)
    with pytest.raises(LutlabError, match=message):
        load.fingerprint(spec(folder))


def test_missing_shard(folder):
    (folder / "model.safetensors").unlink()
    make("opt").save_pretrained(folder, max_shard_size="20KB")
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    refused(folder, f"lacks {shard.name}: .*fetch the missing shards")


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "[" * 100_000]
)
def test_damaged_index(folder, content):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    refused(folder, r"index\.json is damaged .*fetch it again")


@pytest.mark.parametrize("name", ["../{}/model.safetensors", "{}/model.safetensors", "../x"])
def test_an_index_names_files_of_its_folder_only(name, folder):
    elsewhere = shutil.copytree(folder, folder.with_name("elsewhere"))
    (folder / "model.safetensors").unlink()
    index, named = folder / "model.safetensors.index.json", name.format(elsewhere)
    index.write_text(json.dumps({"weight_map": {"x": named}}))
    refused(folder, r"index\.json names .*, which is not in its folder.*put a link")
    index.write_text(json.dumps({"weight_map": {"x": "link.safetensors"}}))
    (folder / "link.safetensors").symlink_to(elsewhere / "model.safetensors")
    assert weight_files(folder)[0].resolve() == elsewhere / "model.safetensors"


@pytest.mark.parametrize("kept", [0, 4, 50, 0.5, -1])
def test_truncated_weights(folder, kept):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept) if kept == 0.5 else kept])
    refused(folder, "cannot load the weights .*truncated: fetch it again")


def test_weights_missing_for_the_config(folder):
    change_config(folder, num_hidden_layers=3)
    refused(folder, r"lacks 16 weights .*first model\.decoder\.layers\.2\..*random weights")


def test_weights_without_a_place_in_the_config(folder):
    change_config(folder, num_hidden_layers=1)
    refused(folder, r"holds 16 tensors .*no place for.*num_hidden_layers")


def test_weights_of_other_shapes(folder):
    change_config(folder, ffn_dim=64)
    refused(folder, r"lacks 6 weights .*fc1\.bias \(the file holds \[48\] instead of \[64\]\)")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name", ["model.decoder.layers.1.fc2.weight", "model.decoder.final_layer_norm.bias"]
)
def test_weights_that_are_no_numbers(folder, name, bad):
    change_weight(
        folder,
        name,
        lambda weight: weight.flatten().index_fill(0, torch.tensor(7), bad).view_as(weight),
    )
    refused(folder, f"weight {name} holds NaN or infinite values.*fetch it again")


def test_weights_beyond_half_precision(folder):
    change_weight(folder, "model.decoder.layers.0.fc1.weight", lambda weight: weight * 1e6)
    loaded(folder)
    refused(folder, "holds NaN or infinite values.*half precision", dtype=torch.float16)


@pytest.mark.parametrize("source", ["folder", "synthetic"])
@pytest.mark.parametrize("architecture", ["t5", "bloom", "nosuch"])
def test_unknown_architecture(folder, architecture, source):
    (folder / "config.json").write_text(json.dumps({"model_type": architecture}))
    with pytest.raises(
        LutlabError, match=f"no family of models '{architecture}'.*known: bert, glm, gpt2, gpt_neo"
    ):
        loaded(folder, source)


def test_model_quantized_already(folder):
    change_config(folder, quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 32})
    refused(folder, "quantized already")


def test_no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    refused(folder, r"no tokenizer in .*expected one of tokenizer\.json")


@pytest.mark.parametrize("content", ["{", "{}"])
def test_damaged_tokenizer(folder, content):
    (folder / "tokenizer.json").write_text(content)
    refused(folder, "cannot read the tokenizer .*fetch its files again")


@pytest.mark.parametrize("architecture", ["opt", "mine"])
def test_code_of_a_repository_is_never_run(folder, architecture):
    """With a known model_type the built-in class is used, with an unknown one the model is refused."""
    code = f"open({str(folder / 'ran')!r}, 'w')\nclass Config: pass\nclass Model: pass\nclass Tokenizer: pass\n"
    (folder / "custom.py").write_text(code)
    classes = {"AutoConfig": "custom.Config", "AutoModelForCausalLM": "custom.Model"}
    change_config(folder, model_type=architecture, auto_map=classes)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"auto_map": {"AutoTokenizer": ["custom.Tokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if architecture == "opt":
        assert type(loaded(folder).model).__name__ == "OPTForCausalLM"
    else:
        with pytest.raises(LutlabError, match="'mine'"):
            loaded(folder)
    assert not (folder / "ran").exists()
