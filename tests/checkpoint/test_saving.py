"""A saved model is the model: the same logits to the last bit, or an error that says why not."""

import dataclasses
import json
import random
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.architectures import CONFIGS, ENCODERS, make, token_ids
from tests.tiny_models import byte_tokenizer
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from lutlab.api import quantize_tensor
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import write_sums
from lutlab.checkpoint.loading import load
from lutlab.checkpoint.saving import save
from lutlab.checkpoint.transformers import LutlabConfig
from lutlab.formats import pack
from lutlab.models.families import linear_layers, model_class, weight_of
from lutlab.modules import QuantLinear


def mixed(name, skip=(1,)):
    """Every layer has its own q, g, method and dtypes; some stay in full precision, one has its channels reordered."""
    model = make(name)
    for index, (path, module) in enumerate(list(linear_layers(model))):
        if index in skip:
            continue
        options = [
            {"method": "rtn"},
            {"method": "bcq"},
            {"method": "bcq", "offset": True},
            {"method": "rtn", "scale_dtype": "fp32"},
        ][index % 4]
        weight = weight_of(module).contiguous()
        packed = quantize_tensor(weight, q=1 + index % 5, g=[8, 16, -1, 13][index % 4], **options)
        if index == 7:  # of a float offset a group
            tensor = packed.unpack()
            offset = -tensor.scale * (tensor.zero_point + 0.3)
            packed = pack(dataclasses.replace(tensor, zero_point=None, offset=offset))
        if index == 2:
            order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(0))
            packed = dataclasses.replace(packed, order=order.int())
        model.set_submodule(path, QuantLinear(packed, module.bias))
    return model


def logits(model):
    with torch.no_grad():
        return model(token_ids()).logits


def rewrite(folder, **changes):
    """Change config.json on purpose."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(config))
    write_sums(folder)
    return config


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_loads_the_same_model_to_the_last_bit(name, tmp_path):
    model = mixed(name)
    save(model, tmp_path / "saved")
    loaded = model_class(model.config).from_pretrained(tmp_path / "saved").eval()
    assert torch.equal(logits(loaded), logits(model))
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    for key in before:
        assert after[key].dtype == before[key].dtype, key
        assert torch.equal(after[key], before[key]), key
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
    save(model, tmp_path / "one", byte_tokenizer(), max_shard_size="20KB")
    assert len(list((tmp_path / "one").glob("*.safetensors"))) > 1
    loaded = load(tmp_path / "one")
    assert not loaded.training
    loaded.save_pretrained(tmp_path / "two")
    save(loaded, tmp_path / "three")
    for folder, warned in (("two", 1), ("three", 0)):
        caplog.clear()
        assert torch.equal(logits(load(tmp_path / folder)), logits(model))
        assert sum("has no SHA256SUMS" in line for line in caplog.messages) == warned
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    assert tokenizer("the end").input_ids == byte_tokenizer()("the end").input_ids


def test_the_config_names_each_layer_and_its_widths(tmp_path):
    save(mixed("llama-1"), tmp_path / "saved")
    written = json.loads((tmp_path / "saved" / "config.json").read_text())["quantization_config"]
    assert written["quant_method"] == "lutlab"
    assert len(written["layers"]) == 13, "2 blocks of 7, one skipped"
    assert "model.layers.0.self_attn.k_proj" not in written["layers"]
    assert written["layers"]["model.layers.0.self_attn.o_proj"] == {
        "format": "uniform", "out_features": 32, "in_features": 32, "q": 4, "g": 13, "has_order": False,
        "scale_dtype": "float32", "packed_zeros": True, "bias_dtype": None,
    }  # fmt: skip


def test_a_model_that_is_not_quantized_is_not_saved(tmp_path):
    with pytest.raises(LutlabError, match=r"no layer .* is quantized: call lutlab.quantize first"):
        save(make("opt"), tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(LutlabError, match="is not empty"):
        save(mixed("opt"), tmp_path)
    with pytest.raises(LutlabError, match="is not empty"):
        save(mixed("opt"), tmp_path / "notes.txt")
    (tmp_path / "empty").mkdir()
    save(mixed("opt"), tmp_path / "empty")
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "empty"}


def test_a_save_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    model = mixed("opt")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model, "save_pretrained", full)
    with pytest.raises(LutlabError, match="No space left"):
        save(model, tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def saved(tmp_path):
    save(mixed("opt"), tmp_path / "saved")
    return tmp_path / "saved"


def refused(folder, message):
    """By both loaders."""
    for loader in (load, AutoModelForCausalLM.from_pretrained):
        with pytest.raises(LutlabError, match=message):
            loader(folder)


@pytest.mark.parametrize("truncated", [False, True])
def test_a_truncated_file_is_refused(saved, truncated):
    """By its digest; a folder without digests, by what transformers finds."""
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    if truncated:
        (saved / "SHA256SUMS").unlink()
    refused(saved, "damaged or truncated" if truncated else r"model\.safetensors is not the file")
    path.unlink()
    with pytest.raises(LutlabError, match=r"lacks model\.safetensors"):
        load(saved)


def test_any_change_of_a_saved_folder_is_refused(tmp_path):
    """Whichever file, bit and loader; the folder is whole again with what it had."""
    model, folder = mixed("opt"), tmp_path / "saved"
    save(model, folder, byte_tokenizer(), max_shard_size="20KB")
    done = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, check=True
    )
    assert done.stdout.count(b": OK\n") == len(list(folder.iterdir())) - 1
    chance, whole = random.Random(3), {path: path.read_bytes() for path in sorted(folder.iterdir())}
    assert len(whole) > 5
    for number, (path, data) in enumerate(whole.items()):
        at = chance.randrange(len(data))
        damaged = data[:at] + bytes([data[at] ^ 1 << chance.randrange(7)]) + data[at + 1 :]
        path.write_bytes(damaged)
        loader = (load, AutoModelForCausalLM.from_pretrained)[number % 2]
        # transformers first reads the part of a config that it may not understand any more.
        if path.name == "config.json":
            loader = load
        with pytest.raises(LutlabError, match=r"copy|is damaged|fetch"):
            loader(folder)
        path.write_bytes(data)
    shards = sorted(folder.glob("*.safetensors"))[:2]
    for path, other in (shards, shards[::-1]):
        path.write_bytes(whole[other])
    refused(folder, rf"{shards[0].name} is not the file that SHA256SUMS names: .*sha256sum \*")
    for path in shards:
        path.write_bytes(whole[path])
    # transformers prefers one whole file to the shards.
    (folder / "model.safetensors").write_bytes(whole[shards[0]])
    refused(folder, r"model\.safetensors is not named in SHA256SUMS")
    (folder / "model.safetensors").unlink()
    (folder / "SHA256SUMS").write_bytes(b"")
    refused(folder, "is not named in SHA256SUMS")
    (folder / "SHA256SUMS").unlink()
    (folder / "SHA256SUMS").symlink_to("SHA256SUMS")
    refused(folder, "SHA256SUMS is damaged or cannot be read")
    (folder / "SHA256SUMS").unlink()
    (folder / "SHA256SUMS").write_bytes(whole[folder / "SHA256SUMS"])
    assert torch.equal(logits(load(folder)), logits(model))


def test_a_config_that_does_not_say_quantized_any_more_is_refused(saved):
    path = saved / "config.json"
    for word in ("quantization_config", "lutlab"):
        whole = path.read_text()
        path.write_text(whole.replace(word, word[:-1] + "0"))
        with pytest.raises(
            LutlabError, match=r"config\.json is not the file that SHA256SUMS names"
        ):
            load(saved)
        path.write_text(whole)


def test_a_missing_shard(tmp_path):
    save(mixed("opt"), tmp_path / "saved", max_shard_size="20KB")
    gone = sorted((tmp_path / "saved").glob("model-*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(LutlabError, match=f"lacks {gone.name}"):
        load(tmp_path / "saved")


@pytest.mark.parametrize(
    "key", ["fc1.qweight", "fc1.scale", "fc1.bias", "fc1.qzero", "self_attn.v_proj.offset"]
)
def test_a_missing_tensor(saved, key):
    key = f"model.decoder.layers.0.{key}"
    tensors = load_file(saved / "model.safetensors")
    del tensors[key]
    save_file(tensors, saved / "model.safetensors", {"format": "pt"})
    write_sums(saved)
    with pytest.raises(LutlabError, match=key):
        load(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": 7}, r"qweight .* config.json says"),
        ({"g": 16}, r"scale .* config.json says"),
        ({"scale_dtype": "float32"}, r"scale is \('F16'.* config.json says \('F32'"),
        ({"has_order": True}, "order is not there"),
        ({"out_features": 31}, "belong to different models"),
        ({"bias_dtype": None}, "with bias=False"),
        ({"scale_dtype": "int4"}, r"layer model\.decoder\.layers\.0\.fc1: .*scale_dtype='int4'"),
        ({"format": "bcq"}, r"layer model\.decoder\.layers\.0\.fc1: .*lacks 'alpha_dtype'"),
        ({"format": "ours"}, r"layer model\.decoder\.layers\.0\.fc1: unknown format 'ours'"),
    ],
)
def test_a_config_of_another_checkpoint(saved, change, message):
    config = rewrite(saved)
    config["quantization_config"]["layers"]["model.decoder.layers.0.fc1"] |= change
    rewrite(saved, **config)
    for loader in (load, AutoModelForCausalLM.from_pretrained):
        with pytest.raises(LutlabError, match=message):
            loader(saved)


def test_a_config_of_another_architecture_or_version(saved):
    config = rewrite(saved)["quantization_config"]
    layout = config["layers"]["model.decoder.layers.0.fc1"]
    for name in ("model.layers.0.fc1", "model.decoder.layers.0.final_layer_norm"):
        rewrite(saved, quantization_config=config | {"layers": {name: layout}})
        with pytest.raises(LutlabError, match=f"layer {name}: .*no such layer|not a linear layer"):
            load(saved)
    rewrite(saved, quantization_config=config | {"format": 1})
    with pytest.raises(LutlabError, match=r"is of format 1 .*or quantize and save it again"):
        load(saved)
    with pytest.raises(LutlabError, match="keys"):
        LutlabConfig(layers=[])


def test_the_model_without_its_head_is_refused(saved):
    with pytest.raises(LutlabError, match="AutoModelForCausalLM"):
        AutoModel.from_pretrained(saved)


def test_folders_that_lutlab_did_not_write(tmp_path):
    with pytest.raises(LutlabError, match=r"no config\.json"):
        load(tmp_path)
    make("opt").save_pretrained(tmp_path)
    with pytest.raises(LutlabError, match="holds no quantized weights"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LutlabError, match="damaged"):
        load(tmp_path)
