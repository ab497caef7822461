"""A saved model is the model: the same logits to the last bit, or an error that says why not."""

import random
import subprocess
from unittest import mock

import pytest
import torch
from tests.base.refusals import refused
from tests.checkpoint.readers import change_layer, config_of, rewrite
from tests.kernels.weights import second_order_tensor, uniform_second_order_tensor
from tests.models.architectures import CONFIGS, ENCODERS, logits, make, token_ids
from tests.models.folders import change_tensors, flip
from tests.tiny_models import byte_tokenizer
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from lutlab import formats, load, save
from lutlab.api import quantize_tensor
from lutlab.base.kept.files import write_sums
from lutlab.checkpoint.transformers import LutlabConfig
from lutlab.models.families import linear_layers, model_class, weight_of
from lutlab.modules import QuantLinear

FC1 = "model.decoder.layers.0.fc1"
OPTIONS = [
    {"method": "rtn", "g": 8}, {"method": "bcq", "g": 16}, {"method": "bcq", "offset": True, "g": -1},
    {"method": "rtn", "scale_dtype": "fp32", "g": 13},
]  # fmt: skip


def mixed(name):
    """Every layer has its own q, g, method and dtypes; the second stays in full precision, the third is reordered."""
    model = make(name)
    for index, (path, module) in enumerate(list(linear_layers(model))):
        if index == 1:
            continue
        weight = weight_of(module).contiguous()
        packed = quantize_tensor(weight, q=1 + index % 5, **OPTIONS[index % 4])
        if index == 6:
            packed = formats.pack(second_order_tensor(*weight.shape, 3, 16, ordered=True))
        if index == 8:
            packed = formats.pack(uniform_second_order_tensor(*weight.shape, 4, 16))
        model.set_submodule(path, QuantLinear(packed, module.bias))
        if index == 7:  # of a float offset a group
            tensor = packed.unpack()
            offset = -tensor.scale * (tensor.zero_point + 0.3)
            change_layer(model, path, zero_point=None, offset=offset)
        if index == 2:
            generator = torch.Generator().manual_seed(0)
            change_layer(model, path, torch.randperm(weight.shape[1], generator=generator))
    return model


def assert_same_state(state, expected):
    """Dtypes, too."""
    torch.testing.assert_close(dict(state), dict(expected), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_loads_the_same_model_to_the_last_bit(name, tmp_path):
    model = mixed(name)
    save(model, tmp_path / "saved")
    loaded = model_class(model.config).from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(logits(loaded), logits(model))
    assert_same_state(loaded.state_dict(), model.state_dict())
    if name in ENCODERS:
        assert torch.equal(logits(load(tmp_path / "saved")), logits(model))
        return
    prompt = token_ids()[:1, :4]
    out = [m.generate(prompt, max_new_tokens=4, do_sample=False) for m in (model, loaded)]
    assert torch.equal(*out)
    tied = loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    assert tied == model.config.tie_word_embeddings


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_another_dtype_leaves_the_packed_weights_alone(dtype, tmp_path):
    model = mixed("gpt2")
    save(model, tmp_path / "saved")
    loaded = load(tmp_path / "saved", dtype=dtype)
    assert torch.equal(logits(loaded), logits(model.to(dtype)))
    assert logits(loaded).dtype == dtype
    for key, tensor in model.state_dict().items():
        assert loaded.state_dict()[key].dtype == tensor.dtype, key


def test_a_model_in_half_precision_stays_in_it(tmp_path):
    model = mixed("opt").to(torch.bfloat16)
    save(model, tmp_path / "saved")
    assert torch.equal(logits(load(tmp_path / "saved")), logits(model))


def test_what_was_loaded_saves_again_in_either_way(tmp_path, caplog):
    model = mixed("opt")
    save(model, tmp_path / "first", byte_tokenizer(), max_shard_size="20KB")
    assert len(list((tmp_path / "first").glob("*.safetensors"))) > 1
    loaded = load(tmp_path / "first")
    assert not loaded.training
    loaded.save_pretrained(tmp_path / "two")
    save(loaded, tmp_path / "three")
    for folder, warned in (("two", 1), ("three", 0)):
        caplog.clear()
        assert torch.equal(logits(load(tmp_path / folder)), logits(model))
        assert sum("has no SHA256SUMS" in line for line in caplog.messages) == warned
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "first")
    assert tokenizer("the end").input_ids == byte_tokenizer()("the end").input_ids


def test_the_config_names_each_layer_and_its_widths(tmp_path):
    save(mixed("llama-1"), tmp_path / "saved")
    written = config_of(tmp_path / "saved")
    assert written["quant_method"] == "lutlab"
    assert len(written["layers"]) == 13, "2 blocks of 7, one skipped"
    assert "model.layers.0.self_attn.k_proj" not in written["layers"]
    assert written["layers"]["model.layers.0.self_attn.o_proj"] == {
        "format": "uniform", "out_features": 32, "in_features": 32, "q": 4, "g": 13, "has_order": False,
        "scale_dtype": "float32", "packed_zeros": True, "bias_dtype": None,
    }  # fmt: skip


def test_what_is_not_quantized_and_where_something_is(tmp_path):
    refused("no layer .* is quantized: call lutlab.q", save, make("opt"), tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    (tmp_path / "notes.txt").write_text("mine")
    refused("is not empty", save, mixed("opt"), tmp_path)
    refused("is not empty", save, mixed("opt"), tmp_path / "notes.txt")
    (tmp_path / "empty").mkdir()
    save(mixed("opt"), tmp_path / "empty")
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "empty"}


def test_a_save_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    model, full = mixed("opt"), OSError(28, "No space left on device")
    monkeypatch.setattr(model, "save_pretrained", mock.Mock(side_effect=full))
    refused("No space left", save, model, tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def saved(tmp_path):
    save(mixed("opt"), tmp_path / "saved")
    return tmp_path / "saved"


def refused_by_both(message, folder):
    refused(message, load, folder)
    refused(message, AutoModelForCausalLM.from_pretrained, folder)


@pytest.mark.parametrize("sums", [True, False])
def test_a_truncated_file_is_refused(saved, sums):
    """By its digest; a folder without digests, by what transformers finds."""
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    if not sums:
        (saved / "SHA256SUMS").unlink()
    refused_by_both(r"safetensors is not the file" if sums else "damaged or truncated", saved)
    path.unlink()
    refused(r"lacks model\.safetensors", load, saved)


def test_any_change_of_a_saved_folder_is_refused(tmp_path):
    """Whichever file, bit and loader; the folder is whole again with what it had."""
    model, folder = mixed("opt"), tmp_path / "saved"
    save(model, folder, byte_tokenizer(), max_shard_size="20KB")
    sums = folder / "SHA256SUMS"
    done = subprocess.run(["sha256sum", "-c", sums], cwd=folder, capture_output=True, check=True)
    assert done.stdout.count(b": OK\n") == len(list(folder.iterdir())) - 1
    chance, whole = random.Random(3), {path: path.read_bytes() for path in sorted(folder.iterdir())}
    assert len(whole) > 5
    for number, (path, data) in enumerate(whole.items()):
        flip(path, chance.randrange(len(data)), chance.randrange(7))
        # transformers first reads the part of a config that it may not understand any more.
        ours = number % 2 == 0 or path.name == "config.json"
        loader = load if ours else AutoModelForCausalLM.from_pretrained
        refused("copy|is damaged|fetch", loader, folder)
        path.write_bytes(data)
    shards = sorted(folder.glob("*.safetensors"))[:2]
    for path, other in (shards, shards[::-1]):
        path.write_bytes(whole[other])
    refused_by_both(rf"{shards[0].name} is not the file .*: .*sha256sum \*", folder)
    for path in shards:
        path.write_bytes(whole[path])
    # transformers prefers one whole file to the shards.
    (folder / "model.safetensors").write_bytes(whole[shards[0]])
    refused_by_both(r"model\.safetensors is not named in SHA256SUMS", folder)
    (folder / "model.safetensors").unlink()
    sums.write_bytes(b"")
    refused_by_both("is not named in SHA256SUMS", folder)
    sums.unlink()
    sums.symlink_to("SHA256SUMS")
    refused_by_both("SHA256SUMS is damaged or cannot be read", folder)
    sums.unlink()
    sums.write_bytes(whole[sums])
    assert torch.equal(logits(load(folder)), logits(model))


@pytest.mark.parametrize("word", ["quantization_config", "lutlab"])
def test_a_config_that_does_not_say_quantized_any_more_is_refused(saved, word):
    path = saved / "config.json"
    path.write_text(path.read_text().replace(word, word[:-1] + "0"))
    refused(r"config\.json is not the file that SHA256SUMS names", load, saved)


def test_a_missing_shard(tmp_path):
    save(mixed("opt"), tmp_path / "saved", max_shard_size="20KB")
    lacking = sorted((tmp_path / "saved").glob("model-*.safetensors"))[1]
    lacking.unlink()
    refused(f"lacks {lacking.name}", load, tmp_path / "saved")


@pytest.mark.parametrize(
    "key", ["fc1.qweight", "fc1.scale", "fc1.bias", "fc1.qzero", "self_attn.v_proj.offset"]
)
def test_a_missing_tensor(saved, key):
    key = f"model.decoder.layers.0.{key}"
    change_tensors(saved, lambda tensors: tensors.pop(key))
    write_sums(saved)
    refused(key, load, saved)


@pytest.mark.parametrize(("change", "message"), [
    ({"q": 7}, r"qweight .* config.json says"),
    ({"g": 16}, r"scale .* config.json says"),
    ({"scale_dtype": "float32"}, r"scale is \('F16'.* config.json says \('F32'"),
    ({"has_order": True}, "order is not there"),
    ({"out_features": 31}, "belong to different models"),
    ({"bias_dtype": None}, "with bias=False"),
    ({"scale_dtype": "int4"}, f"layer {FC1}: .*scale_dtype='int4'"),
    ({"format": "bcq"}, f"layer {FC1}: .*lacks 'alpha_dtype'"),
    ({"format": "ours"}, f"layer {FC1}: unknown format 'ours'"),
])  # fmt: skip
def test_a_config_of_another_checkpoint(saved, change, message):
    config = config_of(saved)
    config["layers"][FC1] |= change
    rewrite(saved, config)
    refused_by_both(message, saved)


def test_a_config_of_another_architecture_or_version(saved):
    config = config_of(saved)
    for name in ("model.layers.0.fc1", "model.decoder.layers.0.final_layer_norm"):
        rewrite(saved, config | {"layers": {name: config["layers"][FC1]}})
        refused(f"layer {name}: .*no such layer|not a linear layer", load, saved)
    rewrite(saved, config | {"format": 1})
    refused(r"is of format 1 .*or quantize and save it again", load, saved)
    refused("keys", LutlabConfig, layers=[])


def test_the_model_without_its_head_is_refused(saved):
    refused("AutoModelForCausalLM", AutoModel.from_pretrained, saved)


def test_folders_that_lutlab_did_not_write(tmp_path):
    refused(r"no config\.json", load, tmp_path)
    make("opt").save_pretrained(tmp_path)
    refused("holds no quantized weights", load, tmp_path)
    (tmp_path / "config.json").write_text("{")
    refused("damaged", load, tmp_path)
